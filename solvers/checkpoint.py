"""Checkpoints of a solve: complete or not there, and bound to the problem they belong to.

A step is a folder `step-000002/rank-00000` with one `.npy` file an array and `metadata.json`,
which is written last and renamed into place: a step without it does not exist. Arrays carry
sha256 digests; operator, measurements, start, algorithm and settings enter as fingerprints, so
that a step is only continued as what it was. Elements are whole, whatever devices or ranks solve:
the layout is a record, not a condition. No pickle is read or written.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linops import arrays
from linops.errors import CheckpointError
from linops.operator import LinearOperator
from solvers.fingerprint import array_digest, fingerprint

__all__ = ["SCHEMA", "Checkpointer", "Saved"]

SCHEMA = 1
_HOST = frozenset({"g"})  # coefficients of the iteration: NumPy float64 in every namespace
_RANK = "rank-00000"
_METADATA = "metadata.json"
_STEP = re.compile(r"step-(\d{6,})")
_NAME = re.compile(r"[A-Za-z0-9_]+(-\d+)?")


@dataclass(frozen=True)
class Saved:
    """A step as it was read."""

    path: Path
    iteration: int
    state: dict[str, Any]
    history: list[Any]
    histories: dict[str, list[float]]
    ended: list[Any]
    tolerances: dict[str, float]


class Checkpointer:
    """Saves and loads the steps of one solve.

    Parameters
    ----------
    algorithm
        Its name.
    directory
        Root of the steps; None saves nothing.
    every, keep
        Save each `every` iterations; keep the last `keep` steps (None: all).
    operator, measurements, start, settings
        What the solve is; they enter as fingerprints.
    writes
        Whether this process writes: where several solve together, one does, and all read.
    """

    def __init__(
        self,
        algorithm: str,
        *,
        directory: Any,
        every: int,
        keep: int | None,
        operator: LinearOperator,
        measurements: Any,
        start: Any,
        settings: Mapping[str, Any],
        writes: bool = True,
    ) -> None:
        self.root = None if directory is None else Path(directory).expanduser()
        self._writes = writes
        self._every, self._keep = every, keep
        self._written: list[Path] = []
        self._layout = {
            side: [None if m.placement is None else str(m.placement) for m in space.members]
            for side, space in (("domain", operator.domain), ("codomain", operator.codomain))
        }
        self._problem: dict[str, Any] = {
            "algorithm": algorithm,
            "domain": str(operator.domain),
            "codomain": str(operator.codomain),
            "precision": str(operator.precision),
            "operator": fingerprint(operator),
            "measurements": fingerprint(measurements),
            "x0": fingerprint(start),
        }
        for name, value in settings.items():
            plain = value is None or isinstance(value, (bool, int, float, str))
            self._problem[f"setting {name}"] = value if plain else fingerprint(value)
        if self.root is not None and self.root.exists() and not self.root.is_dir():
            raise CheckpointError(f"checkpoint_directory {self.root} is no folder")

    def due(self, iteration: int) -> bool:
        """Whether this iteration is one to save."""
        return self.root is not None and iteration % self._every == 0

    def save(
        self,
        iteration: int,
        state: Mapping[str, Any],
        *,
        history: list[Any],
        histories: Mapping[str, list[float]],
        ended: list[Any],
        tolerances: Mapping[str, float],
    ) -> None:
        """Publish a step.

        Raises
        ------
        CheckpointError
            Where the step exists already; what is there stays as it is.
        """
        if self.root is None or not self._writes:
            return
        step = self.root / f"step-{iteration:06d}"
        folder = step / _RANK
        try:
            folder.mkdir(parents=True, exist_ok=False)
        except FileExistsError:
            raise CheckpointError(
                f"{folder} exists; a checkpoint is never replaced. Save to another "
                "checkpoint_directory, or remove that step"
            ) from None
        try:
            specs = {name: _write(folder, name, value) for name, value in state.items()}
            metadata = {
                "schema": SCHEMA,
                "library": _version(),
                "rank": 0,
                "world": 1,
                "iteration": iteration,
                "problem": self._problem,
                "layout": self._layout,
                "tolerances": dict(tolerances),
                "history": history,
                "histories": dict(histories),
                "ended": ended,
                "state": specs,
            }
            text = json.dumps(metadata, indent=1)
            temporary = folder / "metadata.tmp"
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(folder / _METADATA)
        except BaseException:
            # Half a step is worse than none; what was published before is untouched.
            if not (folder / _METADATA).exists():
                shutil.rmtree(folder, ignore_errors=True)
            raise
        for place in (folder, step, self.root):
            _sync(place)
        self._written.append(step)
        while self._keep is not None and len(self._written) > self._keep:
            # First the metadata: a step that is going is not there any more.
            old = self._written.pop(0)
            (old / _RANK / _METADATA).unlink(missing_ok=True)
            shutil.rmtree(old, ignore_errors=True)

    def load(self, path: Any, like: Any) -> Saved:
        """Read and check a step.

        Parameters
        ----------
        path
            The root (its latest complete step), a step, or a rank's folder.
        like
            An array whose namespace and device the state gets.

        Raises
        ------
        CheckpointError
            Where there is none, a file is missing or damaged (named), or the step belongs to
            another solve (what differs is named).
        """
        folder = _find(Path(path).expanduser())
        source = folder / _METADATA
        metadata = _parsed(source)
        if metadata.get("schema") != SCHEMA:
            raise CheckpointError(
                f"{source} has schema {metadata.get('schema')!r}; this version reads {SCHEMA}"
            )
        saved = _checked(metadata, source)
        theirs = metadata["problem"]
        different = [
            name
            for name in sorted({*theirs, *self._problem})
            if _json(theirs.get(name)) != _json(self._problem.get(name))
        ]
        if different:
            raise CheckpointError(
                f"{folder} belongs to another solve: {', '.join(different)} "
                f"{'differs' if len(different) == 1 else 'differ'}"
            )
        state: dict[str, Any] = {}
        for name, spec in metadata["state"].items():
            members = spec["arrays"]
            parts = [_read(folder, member, source) for member in members]
            if spec["kind"] == "host":
                state[name] = parts[0]
            else:
                placed = tuple(arrays.convert(part, like) for part in parts)
                state[name] = placed if spec["kind"] == "tuple" else placed[0]
        return Saved(path=folder, state=state, **saved)


def _write(folder: Path, name: str, value: Any) -> dict[str, Any]:
    kind = "tuple" if isinstance(value, tuple) else "array"
    parts = value if isinstance(value, tuple) else (value,)
    if name in _HOST:
        kind = "host"
    members = []
    for number, part in enumerate(parts):
        label = f"{name}-{number}" if isinstance(value, tuple) else name
        host = arrays.to_numpy(part.detach() if hasattr(part, "detach") else part)
        with open(folder / f"{label}.npy", "xb") as file:
            np.save(file, np.ascontiguousarray(host).reshape(host.shape), allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        members.append(
            {
                "file": label,
                "shape": list(host.shape),
                "dtype": host.dtype.name,
                "sha256": array_digest(host),
            }
        )
    return {"kind": kind, "arrays": members}


def _read(folder: Path, member: Mapping[str, Any], source: Path) -> np.ndarray:
    label = member["file"]
    if not isinstance(label, str) or not _NAME.fullmatch(label):
        raise CheckpointError(f"{source} names the file {label!r}, which is no name of an array")
    path = folder / f"{label}.npy"
    try:
        value: np.ndarray = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise CheckpointError(f"{path} is missing or damaged: {error}") from error
    if list(value.shape) != member["shape"] or value.dtype.name != member["dtype"]:
        raise CheckpointError(
            f"{path} holds {value.dtype} {value.shape}, {source.name} says "
            f"{member['dtype']} {tuple(member['shape'])}"
        )
    if array_digest(value) != member["sha256"]:
        raise CheckpointError(f"{path} is damaged: its sha256 is not the one it was saved with")
    return value


def _find(path: Path) -> Path:
    if (path / _METADATA).is_file():
        return path
    if (path / _RANK / _METADATA).is_file():
        return path / _RANK
    steps = []
    if path.is_dir():
        for entry in path.iterdir():
            match = _STEP.fullmatch(entry.name)
            if match and (entry / _RANK / _METADATA).is_file():
                steps.append((int(match.group(1)), entry / _RANK))
    if not steps:
        raise CheckpointError(f"{path} holds no complete checkpoint: no step-*/{_RANK}/{_METADATA}")
    return max(steps)[1]


def _parsed(source: Path) -> dict[str, Any]:
    try:
        metadata = json.loads(source.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{source} is damaged: {error}") from error
    if not isinstance(metadata, dict):
        raise CheckpointError(f"{source} is damaged: it holds no object at its root")
    return metadata


def _checked(metadata: Mapping[str, Any], source: Path) -> dict[str, Any]:
    def need(good: bool, what: str) -> None:
        if not good:
            raise CheckpointError(f"{source} is damaged: {what}")

    iteration = metadata.get("iteration")
    need(isinstance(iteration, int) and iteration >= 0, "no iteration")
    need(isinstance(metadata.get("problem"), dict), "no description of the problem")
    history = metadata.get("history")
    assert isinstance(iteration, int)
    need(isinstance(history, list) and len(history) == iteration + 1, "no history of that length")
    histories = metadata.get("histories")
    need(isinstance(histories, dict) and all(map(_floats, histories.values())), "bad histories")
    ended = metadata.get("ended")
    need(
        isinstance(ended, list)
        and all(isinstance(e, list) and len(e) == 3 and isinstance(e[0], list) for e in ended),
        "bad list of ended members",
    )
    tolerances = metadata.get("tolerances")
    need(isinstance(tolerances, dict), "no tolerances")
    state = metadata.get("state")
    need(isinstance(state, dict) and bool(state), "no state")
    assert isinstance(state, dict)
    for name, spec in state.items():
        good = isinstance(spec, dict) and spec.get("kind") in ("array", "tuple", "host")
        good = good and isinstance(spec.get("arrays"), list) and bool(spec["arrays"])
        good = good and all(
            isinstance(m, dict) and {"file", "shape", "dtype", "sha256"} <= set(m)
            for m in spec["arrays"]
        )
        need(good, f"no specification of {name!r}")
    return {
        "iteration": iteration,
        "history": history,
        "histories": histories,
        "ended": ended,
        "tolerances": tolerances,
    }


def _floats(values: Any) -> bool:
    return isinstance(values, list) and all(
        isinstance(value, (int, float)) and math.isfinite(value) for value in values
    )


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _sync(folder: Path) -> None:
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # systems that open no folders
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)


def _version() -> str:
    import linops

    return getattr(linops, "__version__", "unknown")
