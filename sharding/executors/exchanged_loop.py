"""The bands of a leaf whose input is gathered, or whose partial sums are scattered, band by band.

A band is the same range of planes of every device's share. What a gather brings are then n pieces,
one of each share, and what a scatter takes are n pieces of partial sums: a device never holds more
of them than a band of every share. All pieces are padded blocks of one structure, so one body
serves them, and what differs are arrays, stacked along a leading axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from linops import arrays
from linops.algebra.blocks import extent
from linops.arrays import Array
from linops.linear_operator import LinearOperator
from linops.relations import positions
from linops.rule import Relation
from linops.space import Space
from linops.structure import Skeleton
from sharding.banding import exchanged_bands
from sharding.executors.band_loop import BlockLoop, Split, shared_columns
from sharding.executors.share import Share
from sharding.mesh import Mesh
from sharding.program import Program
from sharding.states import share_of
from sharding.steps import Movement

__all__ = ["Exchange", "ExchangedLoop", "exchanged_loops", "exchanges"]


@dataclass(frozen=True)
class Exchange:
    """The mesh axis along which bands are exchanged: its name, and the devices along it."""

    name: str
    devices: int


def exchanges(program: Program, mesh: Mesh) -> dict[int, Exchange]:
    """Where the loops of a program, by position, exchange their bands."""
    found = {}
    for loop, position in exchanged_bands(program).items():
        move = program.steps[position]
        assert isinstance(move, Movement)
        found[loop] = Exchange(mesh.names[move.mesh_axis], mesh.shape[move.mesh_axis])
    return found


def exchanged_loops(
    shares: Sequence[Share], name: str, length: int, exchange: Exchange, split: Split
) -> list[ExchangedLoop] | None:
    """The padded blocks of all devices, as loops over bands of every share; None where they differ.

    Parameters
    ----------
    shares
        For each device its part of a linear leaf, whole along the axis of the bands.
    name, length
        The axis of its rule, and the planes of a band.
    exchange
        Where the bands come from or go to.
    split
        The structure of a band and its arrays.
    """
    whole = shares[0].whole
    if not (isinstance(whole.domain, Space) and isinstance(whole.codomain, Space)):
        return None
    share = share_of(extent(whole, name), exchange.devices)
    length = min(length, share)
    tables = []
    for own in shares:
        parts = []
        for first in range(0, share, length):
            for device in range(exchange.devices):
                start = device * share + first
                block = own.part(name, start, start + length)
                if not isinstance(block, LinearOperator):
                    return None
                parts.append(split(block))
        tables.append(parts)
    shown = tables[0][0][0]
    if any(other != shown for parts in tables for other, _ in parts):
        return None
    rule = whole.rule
    contracted = rule.relation(name) is Relation.CONTRACTED
    side = positions(rule.domain if contracted else rule.codomain, name)[0][1]
    columns = [list(zip(*(leaves for _, leaves in parts), strict=True)) for parts in tables]
    same = shared_columns(columns)
    return [
        ExchangedLoop(whole, shown, own, same, side, contracted, share, length, exchange)
        for own in columns
    ]


class ExchangedLoop(BlockLoop):
    """A block that runs inside `shard_map` on a device's share of an axis that it needs whole.

    Parameters
    ----------
    whole
        The block, from or to the whole axis.
    band, columns, same
        As for `BlockLoop`, of the pieces.
    axis, inward
        The axis of the bands in the domain (inward) or codomain.
    share, length
        Planes of a share, and of a band of it.
    exchange
        Where the pieces of a band come from or go to.
    """

    def __init__(
        self,
        whole: Any,
        band: Skeleton,
        columns: Sequence[Sequence[Array]],
        same: tuple[bool, ...],
        axis: int,
        inward: bool,
        share: int,
        length: int,
        exchange: Exchange,
    ) -> None:
        ends = [whole.domain, whole.codomain]
        side = 0 if inward else 1
        shape = list(ends[side].shape)
        shape[axis] = share
        ends[side] = Space(tuple(shape), ends[side].dtype)
        super().__init__(ends[0], ends[1], whole, band, columns, same)
        self.inward = inward
        self.axis = axis - ends[side].ndim
        self.share, self.length, self.exchange = share, length, exchange

    def _apply(self, x: Array) -> Array:
        return self._gathered(x, False) if self.inward else self._scattered(x, False)

    def _apply_adjoint(self, y: Array) -> Array:
        return self._scattered(y, True) if self.inward else self._gathered(y, True)

    def _gathered(self, x: Array, adjoint: bool) -> Array:
        """The sum of the pieces' results; bands of all shares come one after the other."""
        import jax

        jnp, lax = jax.numpy, jax.lax
        source, target = self._ends(adjoint)
        axis = x.ndim + self.axis
        batch = x.shape[: x.ndim - source.ndim]
        # What a last band has beyond the share is of the next one: it comes as zeros.
        x = arrays.widen(x, self.axis, 0, self._bands * self.length - self.share)

        def add(b: Any, total: Array) -> Array:
            own = lax.dynamic_slice_in_dim(x, b * self.length, self.length, axis)
            pieces = lax.all_gather(own, self.exchange.name)

            def piece(d: Any, total: Array) -> Array:
                part = lax.dynamic_index_in_dim(pieces, d, 0, keepdims=False)
                return total + self._applied(b, d, part, adjoint)

            return lax.fori_loop(0, self.exchange.devices, piece, total)

        start = jnp.zeros((*batch, *target.shape), target.dtype)
        return lax.fori_loop(0, self._bands, add, start)

    def _scattered(self, x: Array, adjoint: bool) -> Array:
        """The device's share of the sum over devices; a band of every share goes at a time."""
        import jax

        jnp, lax = jax.numpy, jax.lax
        source, target = self._ends(adjoint)
        batch = x.shape[: x.ndim - source.ndim]
        shape = [*batch, *target.shape]
        axis = len(shape) + self.axis
        shape[axis] = self._bands * self.length

        def add(b: Any, total: Array) -> Array:
            def piece(_: None, d: Any) -> tuple[None, Array]:
                return None, self._applied(b, d, x, adjoint)

            _, pieces = lax.scan(piece, None, jnp.arange(self.exchange.devices))
            own = lax.psum_scatter(pieces, self.exchange.name)
            return lax.dynamic_update_slice_in_dim(total, own, b * self.length, axis)

        total = lax.fori_loop(0, self._bands, add, jnp.zeros(shape, target.dtype))
        return lax.slice_in_dim(total, 0, self.share, axis=axis)

    def _ends(self, adjoint: bool) -> tuple[Any, Any]:
        return (self.codomain, self.domain) if adjoint else (self.domain, self.codomain)

    @property
    def _bands(self) -> int:
        return -(-self.share // self.length)

    def _applied(self, b: Any, d: Any, x: Array, adjoint: bool) -> Array:
        """The piece of band `b` that device `d` owns, on this device's views."""
        return self._of_block(b * self.exchange.devices + d, x, adjoint)
