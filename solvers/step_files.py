"""The files of one step of a checkpoint: written, published by one rename, read and checked.

A step is a folder `step-000002/rank-00000` with one `.npy` file an array and `metadata.json`. It is
made under another name (`.step-...`), synced, and renamed as a whole: half a step has no name that
anybody reads, and is swept when the next run saves. `metadata.json` carries sha256 digests of the
arrays and of itself. No pickle is read or written. Which steps there are to be, and what belongs to
which solve, is in `solvers/checkpoint.py`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from linops import arrays
from linops.errors import CheckpointError
from solvers.fingerprint import array_digest

__all__ = [
    "SCHEMA",
    "check_metadata",
    "found",
    "read_metadata",
    "read_state",
    "remove_step",
    "remove_unfinished",
    "steps_in",
    "writable",
    "write_step",
]  # fmt: skip

SCHEMA = 2
_HOST = frozenset({"g"})  # coefficients of the iteration: NumPy float64 in every namespace
_RANK = "rank-00000"
_METADATA = "metadata.json"
_STEP = re.compile(r"step-(\d{6,})")
_NAME = re.compile(r"[A-Za-z0-9_]+(-\d+)?")
_UNDER_WAY = ".step-"


def writable(root: Path) -> None:
    """Make the folder, and try whether steps can be made in it.

    Raises
    ------
    CheckpointError
        Where they cannot.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        os.rmdir(_fresh(root))
    except OSError as error:
        raise CheckpointError(
            f"checkpoint_directory {root} cannot be written: {error}; choose another folder"
        ) from error


def remove_unfinished(root: Path) -> None:
    """Remove what runs that were killed have left: steps that were never finished."""
    for entry in list(root.iterdir()):
        torn = bool(_STEP.fullmatch(entry.name)) and entry.is_dir() and not _complete(entry)
        # Of earlier versions: nothing but arrays under the name of a step.
        torn = torn and all(
            p.name == _RANK or p.suffix in (".npy", ".tmp") for p in entry.rglob("*")
        )
        if torn or (entry.name.startswith(_UNDER_WAY) and entry.is_dir()):
            shutil.rmtree(entry, ignore_errors=True)


def write_step(
    root: Path, iteration: int, state: Mapping[str, Any], metadata: dict[str, Any]
) -> Path:
    """Write a step and give it its name.

    Raises
    ------
    CheckpointError
        Where the step exists already; what is there stays as it is.
    OSError
        Where the disk is full or fails; it names the folder, and nothing is published.
    """
    step = root / f"step-{iteration:06d}"
    if step.exists():
        raise _exists(step)
    try:
        made = _fresh(root)
    except OSError as error:
        raise _write_error(step, error) from error
    try:
        folder = made / _RANK
        folder.mkdir()
        specs = {name: _write(folder, name, value) for name, value in state.items()}
        whole = {"schema": SCHEMA, **metadata, "iteration": iteration, "state": specs}
        whole["digest"] = _digest(whole)
        with open(folder / _METADATA, "x", encoding="utf-8") as file:
            json.dump(whole, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        for place in (folder, made):
            _sync(place)
        made.rename(step)
    except OSError as error:
        if step.exists():
            raise _exists(step) from None
        raise _write_error(step, error) from error
    finally:
        if made.exists():
            shutil.rmtree(made, ignore_errors=True)
    _sync(root)
    return step


def steps_in(root: Path) -> list[tuple[int, Path]]:
    """The complete steps of a folder, by their numbers."""
    if not root.is_dir():
        return []
    named = ((_STEP.fullmatch(entry.name), entry) for entry in root.iterdir())
    return sorted((int(m.group(1)), entry) for m, entry in named if m and _complete(entry))


def remove_step(step: Path) -> None:
    """Remove a step: it loses its name first."""
    with contextlib.suppress(OSError):
        grave = _fresh(step.parent)
        step.rename(grave / step.name)
        shutil.rmtree(grave, ignore_errors=True)


def found(path: Path) -> Path:
    """The folder of a step's files: `path` itself, in it, or of the last complete step in it.

    Raises
    ------
    CheckpointError
        Where there is none.
    """
    if (path / _METADATA).is_file():
        return path
    if _complete(path):
        return path / _RANK
    steps = steps_in(path)
    if not steps:
        raise CheckpointError(f"{path} holds no complete checkpoint: no step-*/{_RANK}/{_METADATA}")
    return steps[-1][1] / _RANK


def read_metadata(folder: Path) -> tuple[dict[str, Any], Path]:
    """What `metadata.json` says, as it was written, and its path.

    Raises
    ------
    CheckpointError
        Where it is of another version, damaged or edited.
    """
    source = folder / _METADATA
    try:
        metadata = json.loads(source.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise CheckpointError(f"{source} is damaged: {error}") from error
    if not isinstance(metadata, dict):
        raise CheckpointError(f"{source} is damaged: it holds no object at its root")
    if metadata.get("schema") != SCHEMA:
        raise CheckpointError(
            f"{source} has schema {metadata.get('schema')!r}; this version reads {SCHEMA}"
        )
    digest = metadata.pop("digest", None)
    if digest != _digest(metadata):
        raise CheckpointError(
            f"{source} is damaged or was edited: its sha256 is not the one it was saved with"
        )
    return metadata, source


def check_metadata(metadata: Mapping[str, Any], source: Path) -> dict[str, Any]:
    """The entries of `Saved` other than state and path."""

    def need(good: bool, what: str) -> None:
        if not good:
            raise CheckpointError(f"{source} is damaged: {what}")

    iteration = metadata.get("iteration")
    need(type(iteration) is int and iteration >= 0, "no iteration")
    assert isinstance(iteration, int)
    name = _STEP.fullmatch(source.parent.parent.name)
    need(
        name is None or int(name.group(1)) == iteration,
        f"it is of iteration {iteration}, its folder of another one",
    )
    need(isinstance(metadata.get("problem"), dict), "no description of the problem")
    history = metadata.get("history")
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


def read_state(metadata: Mapping[str, Any], source: Path, like: Any) -> dict[str, Any]:
    """The elements of the state, in the namespace and on the device of `like`."""
    state: dict[str, Any] = {}
    for name, spec in metadata["state"].items():
        parts = [_read(member, source) for member in spec["arrays"]]
        if spec["kind"] == "host":
            state[name] = parts[0]
        else:
            placed = tuple(arrays.convert(part, like) for part in parts)
            state[name] = placed if spec["kind"] == "tuple" else placed[0]
    return state


def _complete(step: Path) -> bool:
    return (step / _RANK / _METADATA).is_file()


def _exists(step: Path) -> CheckpointError:
    return CheckpointError(
        f"{step / _RANK} exists; a checkpoint is never replaced. Save to another "
        "checkpoint_directory, or remove that step"
    )


def _write_error(step: Path, error: OSError) -> OSError:
    kind = type(error) if error.errno is not None else OSError
    text = f"the checkpoint {step} could not be written: {error.strerror or error}"
    return OSError(text) if error.errno is None else kind(error.errno, text, error.filename)


def _fresh(root: Path) -> Path:
    made = root / f"{_UNDER_WAY}{secrets.token_hex(8)}"
    made.mkdir()
    return made


def _digest(metadata: Mapping[str, Any]) -> str:
    """The sha256 of what `metadata.json` says, however it is laid out."""
    text = json.dumps(metadata, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


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


def _read(member: Mapping[str, Any], source: Path) -> np.ndarray:
    label = member["file"]
    if not isinstance(label, str) or not _NAME.fullmatch(label):
        raise CheckpointError(f"{source} names the file {label!r}, which is no name of an array")
    path = source.parent / f"{label}.npy"
    shape, dtype = tuple(member["shape"]), np.dtype(member["dtype"])
    try:
        with open(path, "rb") as file:
            # The header before any memory is taken: a damaged one can ask for all there is.
            said = _header(file)
            there = path.stat().st_size - file.tell()
            if said == (shape, dtype) and there == math.prod(shape) * dtype.itemsize:
                file.seek(0)
                value: np.ndarray = np.load(file, allow_pickle=False)
    except Exception as error:  # whatever a damaged file makes its reader raise
        raise CheckpointError(f"{path} is missing or damaged: {error}") from error
    if said != (shape, dtype):
        raise CheckpointError(
            f"{path} holds {said[1]} {said[0]}, {source.name} says {dtype} {shape}"
        )
    if there != math.prod(shape) * dtype.itemsize:
        raise CheckpointError(f"{path} is damaged: it holds {there} bytes of numbers")
    if array_digest(value) != member["sha256"]:
        raise CheckpointError(f"{path} is damaged: its sha256 is not the one it was saved with")
    return value


def _header(file: Any) -> tuple[tuple[int, ...], np.dtype]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0
    if version != (1, 0):
        read = np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype


def _floats(values: Any) -> bool:
    return isinstance(values, list) and all(
        isinstance(value, (int, float)) and math.isfinite(value) for value in values
    )


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
