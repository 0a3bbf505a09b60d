"""`apply_into`: an operator from store to store, block by block.

Everything that can be wrong is looked for before the target is touched (`admitted`). What a tile
reads is decided in `linops.stores.tiles`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from linops import apply, arguments, arrays, numeric
from linops.algebra.blocks import axis_name
from linops.arrays import Array
from linops.errors import DTypeError, ShapeError
from linops.operator import Operator
from linops.precision import real_of
from linops.progress import bar as drawn_bar
from linops.space import AnySpace, ProductSpace, Space
from linops.stores import aliases
from linops.stores.protocol import (
    BlockStore,
    as_store,
    flush,
    require_room,
    require_writable,
)
from linops.stores.tiles import BlockRow, Cutting, rows
from linops.structure import leaves

__all__ = ["Stream", "admit_stores", "apply_into", "explain_into", "refuse_gradients"]


def apply_into(
    A: Operator,
    source: Any,
    target: Any,
    chunks: int | Mapping[str, int] | None = None,
    *,
    memory: float | None = None,
    check_finite: bool = True,
    progress: bool = False,
) -> Any:
    """`A @ source` written into `target`, tile by tile; `target` itself comes back.

    Parameters
    ----------
    A
        Any operator; axes that its rule lets be split are cut.
    source
        A store of the domain's shape, leading batch axes in front; a tuple of stores where the
        domain is a product. A plain array, or a data set of h5py, zarr or tensorstore, is taken
        as its store.
    target
        A store of the codomain's shape and dtype, with the same batch axes.
    chunks
        Planes of a block by the name of an axis, such as `{"view": 16, "z": 32}`; or one number,
        for the first axis of the output and the first that is summed over. By default blocks that
        `memory` holds.
    memory
        Bytes for the blocks in hand; by default a quarter of what is free, 8 to 256 MiB. What A
        itself holds while it runs comes on top.
    check_finite
        Whether a NaN or infinity in the source is refused, before anything is written. Where a
        tile does not read all of the source this takes one more reading of it.
    progress
        Whether to draw a bar (needs tqdm).

    Raises
    ------
    ShapeError, DTypeError, ValueError, OSError
        For wrong shapes or dtypes, a target that is read-only, overlaps itself or the source (one
        file under two names too), arrays that require a gradient, values that are not finite, and
        a full disk; before anything is written.

    Examples
    --------
    >>> import numpy as np, linops as lo
    >>> y = np.empty((2, 6, 5), "float32")
    >>> A = lo.Gradient(lo.Space((6, 5), axes=("y", "x")))
    >>> A.apply_into(np.ones((6, 5), "float32"), y, chunks=2) is y
    True
    """
    A = arguments.hold("Operator", A, "apply_into", "A")
    stream = Stream(A, chunks, memory)
    sources, targets, batch = admit_stores(A, source, target)
    _check_flag("check_finite", check_finite)
    stream.run(sources, targets, batch, check_finite, progress)
    return target


def explain_into(
    A: Operator, chunks: int | Mapping[str, int] | None = None, *, memory: float | None = None
) -> str:
    """What `apply_into` will do: tiles, their sizes, the bytes that it reads and writes."""
    return "\n".join(cutting.explain() for _, cutting in Stream(A, chunks, memory).rows)


class Stream:
    """An operator cut into tiles, ready to run between admitted stores, as often as one likes.

    Parameters
    ----------
    A, chunks, memory
        As `apply_into` takes them.
    elements
        The most entries of a block.
    """

    def __init__(
        self,
        A: Operator,
        chunks: int | Mapping[str, int] | None = None,
        memory: float | None = None,
        elements: int | None = None,
    ) -> None:
        self.A = A
        limit = None if memory is None else numeric.positive("memory", memory)
        found = rows(A)
        self.rows: list[tuple[BlockRow, Cutting]] = []
        for row in found:
            given = chunks
            if isinstance(chunks, Mapping) and len(found) > 1:
                # Names that the whole operator has serve the rows that have them too.
                names = set(row.operator.rule.names)
                for axis in chunks:
                    axis_name(A, axis)
                given = {axis: count for axis, count in chunks.items() if axis in names}
            self.rows.append((row, Cutting(row.operator, given, limit, elements)))

    def run(
        self,
        sources: list[Any],
        targets: list[Any],
        batch: tuple[int, ...] = (),
        check_finite: bool = False,
        show: Any = False,
        ahead: bool = True,
    ) -> None:
        """Write the result; stores are one a member, and checked.

        Values that are not finite are found before the first write, or without `ahead` as they are
        read, for targets that nobody else sees.
        """
        looks = check_finite and any(np.dtype(s.dtype).kind in "fc" for s in sources)
        later = len(self.rows) == 1 and self.rows[0][1].reads_all_first and not batch
        later = later or not ahead
        count = sum(1 for _, cutting in self.rows for _ in cutting.tiles()) * math.prod(batch)
        bar = drawn_bar(show, self.A.name, count)
        members = list(np.ndindex(batch))
        try:
            if looks and not later:
                for (row, cutting), at in itertools.product(self.rows, members):
                    _look(cutting, sources[row.domain], at)
            first = looks and later
            for (row, cutting), at in itertools.product(self.rows, members):
                for tile in cutting.tiles():
                    values = _compute(cutting, tile, sources[row.domain], at, first)
                    first = first and not ahead
                    written = zip(targets[row.codomain], tile.writes, values, strict=True)
                    for store, ranges, value in written:
                        _put(store, at, ranges, value)
                    if bar is not None:
                        bar.update()
        finally:
            if bar is not None:
                bar.close()
        for store in targets:
            flush(store)


def _compute(
    cutting: Cutting, tile: Any, sources: list[Any], at: tuple[int, ...], look: bool
) -> list[Any]:
    """One tile, an array a member of the codomain."""
    A = cutting.A
    total: list[Any] | None = None
    for part in cutting.parts(tile):
        read = []
        for store, ranges, space in zip(sources, part.reads, A.domain.members, strict=True):
            block = _take(store, at, ranges, space)
            if look:
                _require_finite(block, at, ranges, "source")
            read.append(block)
        y = part.operator(tuple(read) if isinstance(A.domain, ProductSpace) else read[0])
        made = list(y) if isinstance(A.codomain, ProductSpace) else [y]
        total = made if total is None else [a + b for a, b in zip(total, made, strict=True)]
    assert total is not None
    return total


def _look(cutting: Cutting, sources: list[Any], at: tuple[int, ...]) -> None:
    """Read what the tiles will read, and raise at the first value that is not finite."""
    seen = set()
    for tile in cutting.tiles():
        for part in cutting.parts(tile):
            if part.reads in seen:
                continue
            seen.add(part.reads)
            members = cutting.A.domain.members
            for store, ranges, space in zip(sources, part.reads, members, strict=True):
                _require_finite(_take(store, at, ranges, space), at, ranges, "source")


def admit_stores(
    A: Operator, source: Any, target: Any
) -> tuple[list[Any], list[Any], tuple[int, ...]]:
    """The stores of source and target, one a member, and their batch axes; everything checked.

    Raises
    ------
    ShapeError, DTypeError, OSError
        As `apply_into` says.
    """
    sources = _members(source, A.domain, "source")
    targets = _members(target, A.codomain, "target")
    batch = _batch(sources, A.domain, "source", A.name)
    if _batch(targets, A.codomain, "target", A.name) != batch:
        raise ShapeError(
            f"{A.name}: source has the batch axes {batch}, target those of shape "
            f"{tuple(targets[0].shape)}; they have the same ones"
        )
    for store, space in zip(sources, A.domain.members, strict=True):
        _check_source(A, store, space)
    for store, space in zip(targets, A.codomain.members, strict=True):
        if np.dtype(store.dtype) != space.dtype:
            raise DTypeError(
                f"{A.name} computes {space.dtype}, target {store!r} holds {np.dtype(store.dtype)}; "
                f"create it with dtype {space.dtype}, or build the operator in another precision"
            )
        require_writable(store, "target")
        aliases.require_injective(store, "target")
    for k, store in enumerate(targets):
        for other in sources:
            aliases.require_apart(store, other, ("target", "source"))
        for other in targets[:k]:
            aliases.require_apart(store, other, ("one member of target", "another"))
    refuse_gradients(A, *sources, *targets)
    require_room([s.unallocated() for s in targets if isinstance(s, BlockStore)])
    return sources, targets, batch


def refuse_gradients(A: Operator | None, *stores: Any) -> None:
    """Raise a `DTypeError` where an array of the operator or of a store requires a gradient."""
    for store in stores:
        held = store.memory() if isinstance(store, BlockStore) else None
        if held is not None and arrays.requires_gradient(held):
            raise DTypeError(
                f"{store!r} requires a gradient, and what is streamed has none: pass the array's "
                "detach(), or apply the operator in memory, A @ x"
            )
    if A is not None:
        for part in leaves(A):
            if arrays.requires_gradient(part):
                raise DTypeError(
                    f"an array of {A.name}, of shape {tuple(part.shape)}, requires a gradient, and "
                    "what is streamed has none: build it of the array's detach(), or apply the "
                    "operator in memory, A @ x"
                )


def _members(value: Any, space: AnySpace, name: str) -> list[Any]:
    if not isinstance(space, ProductSpace):
        return [as_store(value, name)]
    if not isinstance(value, (tuple, list)) or len(value) != len(space.spaces):
        raise ShapeError(
            f"{name} is a tuple of {len(space.spaces)} stores, one for each of {space}"
        )
    return [as_store(part, f"{name}[{k}]") for k, part in enumerate(value)]


def _batch(stores: list[Any], space: AnySpace, name: str, owner: str) -> tuple[int, ...]:
    batches = []
    for store, member in zip(stores, space.members, strict=True):
        shape = tuple(int(n) for n in store.shape)
        n = len(member.shape)
        if len(shape) < n or shape[len(shape) - n :] != member.shape:
            raise ShapeError(
                f"{owner}: {name} {store!r} has shape {shape}; it has {member.describe_shape()}, "
                "batch axes in front"
            )
        batches.append(shape[: len(shape) - n])
    if len(set(batches)) > 1:
        raise ShapeError(f"{owner}: members of {name} have the batch axes {batches}")
    return batches[0]


def _check_source(A: Operator, store: Any, space: Space) -> None:
    dtype = np.dtype(store.dtype)
    if dtype.kind not in "biufc" or (dtype.kind == "c" and not space.is_complex):
        raise DTypeError(
            f"{A.name} reads {space.dtype}, source {store!r} holds {dtype}; take its real part, or "
            "build the operator on a space that holds it"
        )
    if dtype.kind in "fc" and real_of(dtype).itemsize > real_of(space.dtype).itemsize:
        apply.warn(
            f"{A.name} works in {space.dtype}; the {dtype} blocks of its source are cast. Build it "
            "in that precision, or store the source in this one."
        )


def _take(store: Any, at: tuple[int, ...], ranges: Any, space: Space) -> Array:
    """A block of one member of the batch, in the space's dtype."""
    front = tuple(slice(i, i + 1) for i in at)
    every = [_around(start, stop, n) for (start, stop), n in zip(ranges, space.shape, strict=True)]
    block = _read(store, front, every, ())
    return arrays.cast(block.reshape(tuple(stop - start for start, stop in ranges)), space.dtype)


def _read(store: Any, front: Any, every: list[list[slice]], done: tuple[slice, ...]) -> Array:
    if len(done) == len(every):
        slices = (*front, *done)
        block = store.read(slices)
        wanted = tuple(s.stop - s.start for s in slices)
        if tuple(block.shape) != wanted:
            raise ShapeError(f"{store!r} read {tuple(block.shape)} where {wanted} was asked for")
        return block
    parts = [_read(store, front, every, (*done, s)) for s in every[len(done)]]
    if len(parts) == 1:
        return parts[0]
    return arrays.namespace(*parts).concat(parts, axis=len(front) + len(done))


def _around(start: int, stop: int, n: int) -> list[slice]:
    """Planes `start` to `stop` of an axis that wraps, as slices within its `n` planes."""
    if 0 <= start <= stop <= n:
        return [slice(start, stop)]
    cuts = [start, *range((start // n + 1) * n, stop, n), stop]
    return [slice(a % n, a % n + b - a) for a, b in itertools.pairwise(cuts)]


def _put(store: Any, at: tuple[int, ...], ranges: Any, value: Array) -> None:
    shape = tuple(stop - start for start, stop in ranges)
    front = tuple(slice(i, i + 1) for i in at)
    slices = (*front, *(slice(start, stop) for start, stop in ranges))
    store.write(slices, value.reshape((1,) * len(at) + shape))


def _require_finite(block: Array, at: tuple[int, ...], ranges: Any, name: str) -> None:
    xp = arrays.namespace(block)
    finite = xp.isfinite(block)
    if arrays.item(xp.all(finite)):
        return
    bad = np.argwhere(~arrays.to_numpy(finite))[0]
    index = (*at, *(int(i) + start for i, (start, _) in zip(bad, ranges, strict=True)))
    value = arrays.to_numpy(block)[tuple(bad)]
    raise ValueError(
        f"{name}[{', '.join(map(str, index))}] is {value}; repair or mask the data (nothing was "
        "written; apply_into(..., check_finite=False) lets such values through)"
    )


def _check_flag(name: str, value: Any) -> None:
    if value is not True and value is not False:
        raise ValueError(f"{name} is {value!r}; it is True or False")
