"""Inner products on JAX devices: one program and one collective for several of them.

Padding is left out, whatever stands there. In order, every plane of the cut axes is summed for
itself and the planes then in the order of the whole axis, so that the number of devices changes no
bit. Which arrays these are, and where their results go, is said in `sharding/homes/jax_devices.py`.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from linops.reductions import paired_dot, summed_pairs
from sharding.homes.jax_devices import on_shards, spec

if TYPE_CHECKING:
    from sharding.mesh import Mesh
    from sharding.placement import Placement

__all__ = ["program"]


@functools.lru_cache(maxsize=256)
def program(terms: tuple[tuple[Placement, int], ...], ordered: bool) -> Any:
    """The jitted program of several inner products on one mesh.

    Parameters
    ----------
    terms
        For each the placement of both operands, and how many axes it sums over.
    ordered
        Whether results are to be the same bits on any number of devices.

    Returns
    -------
    callable
        From left, right, left, right, ... to `(high, low)` of each, on every device; their sum is
        the inner product.
    """
    import jax
    from jax.sharding import PartitionSpec

    mesh = terms[0][0].mesh
    assert mesh is not None
    lines = [_Line(placement, ndim, mesh) for placement, ndim in terms]
    names = tuple(n for n in mesh.names if any(n in line.cutting for line in lines))

    def body(*operands: Any) -> Any:
        rows: list[Any] = []
        for line, a, b in zip(lines, operands[::2], operands[1::2], strict=True):
            rows += line.local(a, b, ordered)
        return _combined(rows, lines, mesh, names, ordered)

    def run(*operands: Any) -> Any:
        if mesh.by_batch:  # members lie on one device each, or all on all
            pairs = zip(lines, operands[::2], operands[1::2], strict=True)
            return tuple(paired_dot(a, b, line.ndim, ordered) for line, a, b in pairs)
        inside = [line.spec(x) for line, x in zip(_twice(lines), operands, strict=True)]
        found = on_shards(body, mesh, tuple(inside), PartitionSpec())(*operands)
        return tuple(zip(found[::2], found[1::2], strict=True))

    return jax.jit(run)


class _Line:
    """How one inner product is cut over the mesh."""

    def __init__(self, placement: Placement, ndim: int, mesh: Mesh) -> None:
        self.placement, self.ndim, self.mesh = placement, ndim, mesh
        axes = [None if a is None else placement.position(a, ndim) for a in placement.axes]
        self.axes = axes
        self.cutting = tuple(
            name
            for name, axis, n in zip(mesh.names, axes, mesh.shape, strict=True)
            if axis is not None and n > 1
        )
        self.cut = tuple(sorted({axis for axis in axes if axis is not None}))

    def spec(self, x: Any) -> Any:
        from jax.sharding import PartitionSpec

        batch = x.ndim - self.ndim
        cut = tuple(None if axis is None else batch + axis for axis in self.axes)
        return PartitionSpec(*spec(self.mesh.names, cut, x.ndim))

    def local(self, a: Any, b: Any, ordered: bool) -> list[Any]:
        """High and low half of this device's part; in order, those of each of its planes."""
        import jax

        jnp = jax.numpy
        a, b = (self._real(x) for x in (a, b))
        if not ordered:
            return list(paired_dot(a, b, self.ndim))
        batch = a.ndim - self.ndim
        # Copies are summed as if their first axis were cut: so it may be on other devices.
        planes = [batch + axis for axis in self.cut or range(self.ndim)[:1]]
        front = range(batch, batch + len(planes))
        a, b = (jnp.moveaxis(x, planes, front) for x in (a, b))
        return list(paired_dot(a, b, self.ndim - len(planes), True))

    def counts(self, names: tuple[str, ...]) -> Any:
        """Whether this device's part counts: of copies that of the first device."""
        import jax

        first: Any = True
        for name in names:
            if name not in self.cutting:
                first &= jax.lax.axis_index(name) == 0
        return first

    @functools.cached_property
    def order(self) -> np.ndarray:
        """Where each plane of the array stands among the planes of all devices."""
        sizes = tuple(self._size(axis) for axis in self.cut)
        shares = [self._size(axis, padded=True) // self._parts(axis) for axis in self.cut]
        table = np.empty(sizes, np.int32)
        local = np.arange(math.prod(shares), dtype=np.int32).reshape(shares)
        for number, at in enumerate(self.mesh.coordinates):
            target, own = [], []
            for axis, size, share in zip(self.cut, sizes, shares, strict=True):
                first = share * self._place(axis, at)
                target.append(slice(min(first, size), min(first + share, size)))
                own.append(slice(0, target[-1].stop - target[-1].start))
            table[tuple(target)] = number * local.size + local[tuple(own)]
        return table.ravel()

    def whole(self, x: Any) -> Any:
        """`(devices, *batch, *shares)` as `(*batch, planes)`, in the order of the array."""
        import jax

        if not self.cut:
            return x[0] if self.ndim else x[0, ..., None]
        batch = x.ndim - 1 - len(self.cut)
        x = jax.numpy.moveaxis(x, 0, batch)
        return x.reshape(*x.shape[:batch], -1)[..., self.order]

    def _parts(self, axis: int) -> int:
        """How many devices share an axis."""
        return math.prod(n for n, a in zip(self.mesh.shape, self.axes, strict=True) if a == axis)

    def _place(self, axis: int, at: tuple[int, ...]) -> int:
        """Which of its shares the device at these coordinates has."""
        place = 0
        for n, a, i in zip(self.mesh.shape, self.axes, at, strict=True):
            if a == axis:
                place = place * n + i
        return place

    def _size(self, axis: int, padded: bool = False) -> int:
        placement = self.placement
        sizes = placement.padded_sizes if padded else placement.real_sizes
        size = sizes[self.axes.index(axis)]
        assert size is not None
        return size

    def _real(self, x: Any) -> Any:
        """The operand with zeros in its padding: selected, for NaN times 0 is NaN."""
        import jax

        jnp, lax = jax.numpy, jax.lax
        for axis in self.cut:
            names = tuple(n for n, a in zip(self.mesh.names, self.axes, strict=True) if a == axis)
            size = self._size(axis)
            if self._size(axis, padded=True) == size:
                continue
            share = x.shape[axis - self.ndim]
            plane = jnp.arange(share) + lax.axis_index(names) * share
            inside = (plane < size).reshape(-1, *(1,) * (self.ndim - 1 - axis))
            x = jnp.where(inside, x, jnp.zeros((), x.dtype))
        return x


def _twice(lines: list[_Line]) -> list[_Line]:
    return [line for line in lines for _ in range(2)]


def _combined(
    rows: list[Any], lines: list[_Line], mesh: Mesh, names: tuple[str, ...], ordered: bool
) -> tuple[Any, ...]:
    """The halves of all inner products, from those of this device, by one collective."""
    import jax

    jnp, lax = jax.numpy, jax.lax
    if not ordered:
        if not names:
            return tuple(rows)
        rows = [
            jnp.where(line.counts(names), row, jnp.zeros((), row.dtype))
            for line, row in zip(_twice(lines), rows, strict=True)
        ]
        if jax.config.jax_enable_x64:
            return tuple(_apart(lax.psum(_together(rows), names), rows))
    gathered = _apart(lax.all_gather(_together(rows), mesh.names if ordered else names), rows)
    found: list[Any] = []
    for line, high, low in zip(lines, gathered[::2], gathered[1::2], strict=True):
        arrange = (
            line.whole if ordered else functools.partial(jnp.moveaxis, source=0, destination=-1)
        )
        found += summed_pairs(arrange(high), arrange(low))
    return tuple(found)


def _together(rows: list[Any]) -> Any:
    """Arrays as one flat one of real numbers."""
    import jax

    jnp = jax.numpy
    flat = []
    for row in rows:
        parts = (row.real, row.imag) if row.dtype.kind == "c" else (row,)
        flat += [part.ravel() for part in parts]
    return jnp.concatenate(flat)


def _apart(flat: Any, rows: list[Any]) -> list[Any]:
    """What `_together` joined, with the leading axes of `flat` in front."""
    import jax

    found, start = [], 0
    front = flat.shape[:-1]
    for row in rows:
        parts = []
        for _ in range(2 if row.dtype.kind == "c" else 1):
            parts.append(flat[..., start : start + row.size].reshape(*front, *row.shape))
            start += row.size
        found.append(jax.lax.complex(*parts) if len(parts) == 2 else parts[0])
    return found
