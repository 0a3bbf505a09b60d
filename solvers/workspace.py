"""A folder in which a solve larger than memory keeps its vectors, and the steps it resumes from.

Vectors are .npy files, one a member of a space; every operation on them takes blocks of a bounded
number of entries. A step is a copy of the vectors that an iteration starts from: it is written
beside the others, forced to the disk and then named, so that it is whole or is not there.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from linops import arrays
from linops.errors import CheckpointError
from linops.reductions import dot
from linops.space import AnySpace
from linops.stores import NumpyStore
from linops.stores.protocol import pieces, require_room

__all__ = ["Vector", "Workspace"]

_STEP = re.compile(r"step-(\d{6,})")
_VECTORS, _WRITING, _METADATA = "vectors", "writing", "metadata.json"


class Vector:
    """An element of a space in stores, one a member.

    Parameters
    ----------
    stores
        Of the members' shapes.
    count
        The most entries that are in hand at a time.
    """

    def __init__(self, stores: Sequence[Any], count: int) -> None:
        self.stores, self.count = list(stores), count

    def set(self, function: Callable[..., Any], *others: Vector) -> None:
        """Every block becomes `function` of the blocks of others."""
        for m, store in enumerate(self.stores):
            for at in pieces(tuple(store.shape), self.count):
                blocks = [_block(other.stores[m], at) for other in others]
                store.write(at, np.asarray(function(*blocks), np.dtype(store.dtype)))

    def product(self, other: Vector) -> float:
        """The real part of the inner product, accumulated in float64."""
        sums = []
        for mine, theirs in zip(self.stores, other.stores, strict=True):
            for at in pieces(tuple(mine.shape), self.count):
                a, b = _block(mine, at), _block(theirs, at)
                sums.append(complex(dot(a, b, a.ndim)).real)
        return math.fsum(sums)

    def greatest(self) -> list[float]:
        """The largest entry of each member."""
        return [
            max(
                (float(_block(s, at).max()) for at in pieces(tuple(s.shape), self.count)), default=0
            )
            for s in self.stores
        ]

    def digest(self) -> str:
        """The sha256 of shapes, dtypes and entries in C order, whatever the blocks."""
        found = hashlib.sha256()
        for store in self.stores:
            found.update(repr((tuple(store.shape), np.dtype(store.dtype).str)).encode())
            for at in pieces(tuple(store.shape), self.count):
                found.update(np.ascontiguousarray(_block(store, at)).tobytes())
        return found.hexdigest()

    def require_finite(self, name: str) -> None:
        """Raise a `ValueError` that names the first entry that is NaN or infinite."""
        for store in self.stores:
            for at in pieces(tuple(store.shape), self.count):
                bad = np.argwhere(~np.isfinite(_block(store, at)))
                if len(bad):
                    index = tuple(int(i) + s.start for i, s in zip(bad[0], at, strict=True))
                    raise ValueError(
                        f"{name}[{', '.join(map(str, index))}] is not finite; repair or mask the "
                        "data (weight 0 does not hide it)"
                    )


class Workspace:
    """The folder of one solve.

    Parameters
    ----------
    path
        It must not exist, unless it is what `resume` names.
    resume
        None; True, to go on in `path`; or a workspace, or a step of one.
    problem
        What the solve is: a step is only continued as what it was.
    spaces
        Of each vector, by name.
    saved
        Names of the vectors that a step holds besides the solution x.
    solution
        Where x lives.
    count
        The most entries that are in hand at a time.
    limit
        Iterations asked for: a step beyond them is refused.
    """

    def __init__(
        self,
        path: Any,
        resume: Any,
        problem: Mapping[str, Any],
        spaces: Mapping[str, AnySpace],
        saved: Sequence[str],
        solution: Vector,
        count: int,
        limit: int,
    ) -> None:
        self.path = Path(path).expanduser()
        self._problem, self._count = dict(problem), count
        self.found: dict[str, Any] | None = None
        source = self._source(resume)
        own = source is not None and source.parent.resolve() == self.path.resolve()
        if os.path.lexists(self.path) and not own:
            raise FileExistsError(
                f"the workspace {self.path} exists, and what is in it stays; choose another "
                "folder, or pass resume=True to go on with a solve that was killed there"
            )
        if source is not None:
            self.found = self._read_metadata(source, limit)
        sizes = {k: sum(m.size * m.dtype.itemsize for m in s.members) for k, s in spaces.items()}
        step = sum(sizes[k] for k in saved) + sum(
            math.prod(s.shape) * np.dtype(s.dtype).itemsize for s in solution.stores
        )
        folder = self.path.absolute().parent
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder}, where the workspace is to be made, is no folder")
        # Two steps lie there while one takes the place of the other.
        require_room([(sum(sizes.values()) + 2 * step, folder)])
        self.path.mkdir(exist_ok=own)
        vectors = self.path / _VECTORS
        if own:
            for left in (vectors, self.path / _WRITING):
                shutil.rmtree(left, ignore_errors=True)
        vectors.mkdir()
        self.vectors = {
            name: Vector(
                [
                    NumpyStore(vectors / f"{name}-{m}.npy", member.shape, member.dtype)
                    for m, member in enumerate(space.members)
                ],
                count,
            )
            for name, space in spaces.items()
        }
        self._state = {"x": solution, **{name: self.vectors[name] for name in saved}}
        if source is not None:
            for name, vector in self._state.items():
                vector.set(_same, self._open_vector(source, name, "r"))

    def save(self, iteration: int, history: list[float], numbers: Mapping[str, float]) -> None:
        """Publish a step; those before it are removed once it is there."""
        writing = self.path / _WRITING
        writing.mkdir()
        digests = {}
        for name, vector in self._state.items():
            stores = [
                NumpyStore(writing / f"{name}-{m}.npy", s.shape, s.dtype)
                for m, s in enumerate(vector.stores)
            ]
            copy = Vector(stores, self._count)
            copy.set(_same, vector)
            digests[name] = copy.digest()
            for store in stores:
                store.flush()
        said = {"problem": self._problem, "iteration": iteration, "history": history,
                "numbers": dict(numbers), "digests": digests}  # fmt: skip
        with open(writing / _METADATA, "x") as file:
            json.dump(said, file)
            file.flush()
            os.fsync(file.fileno())
        before = self._steps(self.path)
        step = self.path / f"step-{iteration:06d}"
        if step in before:
            raise CheckpointError(f"{step} exists; a step is never replaced")
        writing.rename(step)
        _sync(self.path)
        for old in before:
            shutil.rmtree(old)

    def close(self) -> None:
        """Give back what only a running solve needs; the last step stays."""
        shutil.rmtree(self.path / _VECTORS, ignore_errors=True)

    def _source(self, resume: Any) -> Path | None:
        if resume is None or resume is False:
            return None
        given = self.path if resume is True else Path(resume).expanduser()
        if _STEP.fullmatch(given.name) and (given / _METADATA).is_file():
            return given
        steps = self._steps(given)
        if not steps:
            raise CheckpointError(f"{given} holds no step to resume from")
        return steps[-1]

    def _read_metadata(self, step: Path, limit: int) -> dict[str, Any]:
        try:
            said = json.loads((step / _METADATA).read_text())
            theirs, iteration = said["problem"], said["iteration"]
            good = len(said["history"]) == iteration + 1 and isinstance(said["numbers"], dict)
            digests = dict(said["digests"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{step / _METADATA} is missing or damaged: {error}") from error
        if not good:
            raise CheckpointError(f"{step / _METADATA} is damaged: no history of that length")
        different = [k for k in sorted({*theirs, *self._problem})
                     if theirs.get(k) != self._problem.get(k)]  # fmt: skip
        if different:
            raise CheckpointError(
                f"{step} belongs to another solve: {', '.join(different)} "
                f"{'differs' if len(different) == 1 else 'differ'}"
            )
        if iteration > limit:
            raise CheckpointError(
                f"{step} is of iteration {iteration}, past iterations={limit}, which counts from "
                "the start of the solve"
            )
        for name, digest in digests.items():
            if self._open_vector(step, name, "r").digest() != digest:
                raise CheckpointError(f"{step / name}-*.npy is damaged: its sha256 is another one")
        return said  # type: ignore[no-any-return]

    def _open_vector(self, step: Path, name: str, mode: str) -> Vector:
        files = sorted(step.glob(f"{name}-*.npy"), key=lambda f: int(f.stem.rpartition("-")[2]))
        try:
            return Vector([NumpyStore(file, mode=mode) for file in files], self._count)
        except (OSError, TypeError, ValueError) as error:
            raise CheckpointError(f"{step / name}-*.npy is damaged: {error}") from error

    @staticmethod
    def _steps(root: Path) -> list[Path]:
        if not root.is_dir():
            return []
        found = [p for p in root.iterdir() if _STEP.fullmatch(p.name)]
        return sorted(
            (p for p in found if (p / _METADATA).is_file()), key=lambda p: int(p.name[5:])
        )


def _same(block: Any) -> Any:
    return block


def _block(store: Any, at: Any) -> np.ndarray:
    block = store.read(at)
    if hasattr(block, "detach"):
        block = block.detach()
    return arrays.to_numpy(block)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
