"""The bands of a leaf as one loop: its program is as large as that of one band.

Padded blocks of equal length have equal structure, so a band is one body, and what differs between
bands are arrays, stacked along a leading axis. For JAX devices; bands on workers stand one after
the other (`sharding/banding.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from linops import arrays
from linops.algebra.blocks import extent
from linops.arrays import Array
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.relations import positions
from linops.rule import Relation
from linops.space import AnySpace, Space
from linops.structure import Skeleton
from linops.transforms.pytree import unpack
from sharding.executors.share import Share

__all__ = ["BandLoop", "BlockLoop", "Split", "loops_of", "shared_columns"]

Split = Callable[[LinearOperator], tuple[Skeleton, tuple[Array, ...]]]


def loops_of(
    shares: Sequence[Share], name: str, length: int, split: Split
) -> list[BandLoop] | None:
    """The padded blocks of all devices in bands of an axis, as loops; None where bands differ.

    Parameters
    ----------
    shares
        For each device its part of a linear leaf.
    name, length
        The axis of its rule, and the planes of a band.
    split
        The structure of a band and its arrays.
    """
    whole = shares[0].whole
    rule, relation = whole.rule, whole.rule.relation(name)
    halo = rule.halo(name)
    if not (isinstance(whole.domain, Space) and isinstance(whole.codomain, Space)):
        return None
    if halo and (relation is Relation.CONTRACTED or rule.periodic(name)):
        return None
    n = extent(whole, name)
    # Planes that are added up lie in one band each; others may be made twice.
    last = n if relation is Relation.CONTRACTED else n - length
    starts = tuple(min(k, last) for k in range(0, n, length))
    first = shares[0].reads(name, 0, length)[0] if relation is Relation.ALIGNED else 0
    if len(starts) < 2:
        return None
    tables = []
    for share in shares:
        parts = []
        for s in starts:
            reads = first + s, first + s + length + 2 * halo
            if relation is Relation.ALIGNED and share.reads(name, s, s + length) != reads:
                return None
            band = share.part(name, s, s + length)
            if not isinstance(band, LinearOperator):
                return None
            parts.append(split(band))
        if any(shown != parts[0][0] for shown, _ in parts):
            return None
        tables.append((parts[0][0], list(zip(*(leaves for _, leaves in parts), strict=True))))
    sides = tuple(
        cuts[0][1] - space.ndim if cuts else None
        for space, cuts in (
            (whole.domain, positions(rule.domain, name)),
            (whole.codomain, positions(rule.codomain, name)),
        )
    )
    same = shared_columns([columns for _, columns in tables])
    return [
        BandLoop(whole, band, columns, same, starts, length, sides, first, halo)
        for band, columns in tables
    ]


class BlockLoop(LinearOperator):
    """A loop over blocks of one structure, inside a compiled program; which ones is up to its kind.

    Parameters
    ----------
    domain, codomain
        Of the loop.
    whole
        What the blocks are parts of.
    band
        What all blocks share.
    columns, same
        For each array of a block those of all blocks, and whether one serves them all.
    """

    batched = True
    _exact: ClassVar[bool] = True

    def __init__(
        self,
        domain: AnySpace,
        codomain: AnySpace,
        whole: Operator,
        band: Skeleton,
        columns: Sequence[Sequence[Array]],
        same: tuple[bool, ...],
    ) -> None:
        super().__init__(domain, codomain, precision=whole.precision, name=whole.name)
        self.band, self.same = band, same
        self.leaves = tuple(
            column[0] if one else arrays.namespace(*column).stack(list(column))
            for one, column in zip(same, columns, strict=True)
        )

    def _of_block(self, k: Any, x: Array, adjoint: bool) -> Array:
        """What block `k`, which may be traced, makes of `x`."""
        own = [a if one else a[k] for a, one in zip(self.leaves, self.same, strict=True)]
        block = self.band.build(iter(own), unpack)
        made: Array = block._backward(x) if adjoint else block._forward(x)
        return made


class BandLoop(BlockLoop):
    """A block that runs its bands in a loop.

    Parameters
    ----------
    whole
        The block; its spaces are taken over.
    band, columns, same
        As for `BlockLoop`.
    starts, length
        The planes of `whole` with which bands begin, and how many each has.
    sides
        The axes of domain and codomain that are cut, counted from the last; None for a whole one.
    first, halo
        The first plane that the band at 0 reads, and how many it reads on each side of its own.
    """

    def __init__(
        self,
        whole: Operator,
        band: Skeleton,
        columns: Sequence[Sequence[Array]],
        same: tuple[bool, ...],
        starts: tuple[int, ...],
        length: int,
        sides: tuple[int | None, ...],
        first: int,
        halo: int,
    ) -> None:
        super().__init__(whole.domain, whole.codomain, whole, band, columns, same)
        self.starts, self.length = starts, length
        self.sides, self.first, self.halo = sides, first, halo

    def _apply(self, x: Array) -> Array:
        return self._over(x, self.domain, self.codomain, self.sides, False)

    def _apply_adjoint(self, y: Array) -> Array:
        return self._over(y, self.codomain, self.domain, self.sides[::-1], True)

    def _over(
        self, x: Array, source: Any, target: Any, sides: tuple[int | None, ...], adjoint: bool
    ) -> Array:
        """Bands of `x` are read, and bands of the result added to it, where these sides are cut."""
        import jax

        jnp, lax = jax.numpy, jax.lax
        read, made = sides
        batch = x.shape[: x.ndim - source.ndim]
        x = _widen(x, read, self._margins(source, read, not adjoint))
        margins = self._margins(target, made, adjoint)
        total = _widen(jnp.zeros((*batch, *target.shape), target.dtype), made, margins)
        starts = jnp.asarray(self.starts)

        def add(k: Any, total: Array) -> Array:
            at = starts[k]
            part = x
            if read is not None:
                part = lax.dynamic_slice_in_dim(x, at, self._planes(not adjoint), x.ndim + read)
            # Of planes that two bands hold the later one counts for the first of them only.
            if adjoint and read is not None:
                part = _from(part, read, at, k * self.length)
            part = self._of_block(k, part, adjoint)
            if made is None:
                return total + part
            if not adjoint:
                # In jax 0.11.1 each costs the whole of `total` on the CPU.
                return lax.dynamic_update_slice_in_dim(total, part, at, total.ndim + made)
            wide = self._planes(True)
            old = lax.dynamic_slice_in_dim(total, at, wide, total.ndim + made)
            return lax.dynamic_update_slice_in_dim(total, old + part, at, total.ndim + made)

        total = lax.fori_loop(0, len(self.starts), add, total)
        if made is None:
            return total
        axis = total.ndim + made
        return lax.slice_in_dim(total, margins[0], margins[0] + target.shape[made], axis=axis)

    def _planes(self, inputs: bool) -> int:
        return self.length + (2 * self.halo if inputs else 0)

    def _margins(self, space: Any, axis: int | None, inputs: bool) -> tuple[int, int]:
        """Planes of zeros before and after an array, so that every band lies within."""
        if axis is None:
            return 0, 0
        first = self.first if inputs else 0
        end = self.starts[-1] + first + self._planes(inputs)
        return max(-first, 0), max(end - space.shape[axis], 0)


def shared_columns(tables: Sequence[Sequence[Sequence[Array]]]) -> tuple[bool, ...]:
    """For each array of a block whether one serves all of them, on every device."""
    return tuple(all(map(_equal, rows)) for rows in zip(*tables, strict=True))


def _equal(column: Sequence[Array]) -> bool:
    first = column[0]
    return all(a is first for a in column) or (
        all(map(arrays.is_numpy, column)) and all(np.array_equal(a, first) for a in column)
    )


def _widen(x: Array, axis: int | None, margins: tuple[int, int]) -> Array:
    return x if axis is None else arrays.widen(x, axis, *margins)


def _from(x: Array, axis: int, first: Any, begin: Any) -> Array:
    """Planes of `x`, which starts at plane `first`, from `begin` on; zeros before."""
    import jax

    jnp = jax.numpy
    inside = (jnp.arange(x.shape[axis]) + first >= begin).reshape(-1, *(1,) * (-axis - 1))
    return jnp.where(inside, x, jnp.zeros((), x.dtype))
