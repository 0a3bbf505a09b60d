"""Inner products on JAX devices: one program and one collective for several of them.

Padding is left out, whatever stands there. Reproducible ones take two collectives: the largest of
all products, and sums that are exact in any order. Which arrays these are, and where their results
go, is said in `sharding/array_backends/jax_devices.py`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from linops import reproducible
from linops.reductions import paired_dot, sum_pairs
from sharding.array_backends.jax_devices import on_shards, spec

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
    lines = [_DotLayout(placement, ndim, mesh) for placement, ndim in terms]
    names = tuple(n for n in mesh.names if any(n in line.cutting for line in lines))
    combined = _reproducible if ordered else _sum_up

    def body(*operands: Any) -> Any:
        return combined(lines, operands, names)

    def run(*operands: Any) -> Any:
        if mesh.by_batch:  # members lie on one device each, or all on all
            found = body(*operands)
        else:
            inside = [line.spec(x) for line, x in zip(_twice(lines), operands, strict=True)]
            found = on_shards(body, mesh, tuple(inside), PartitionSpec())(*operands)
        return tuple(zip(found[::2], found[1::2], strict=True))

    return jax.jit(_differentiable(run, program(terms, False)) if ordered else run)


def _differentiable(run: Any, plain: Any) -> Any:
    """`run` with the derivatives of the sums that are not reproducible."""
    import jax

    def tangent(operands: Any, changes: Any) -> Any:
        left, right = list(operands), list(operands)
        left[::2], right[1::2] = changes[::2], changes[1::2]
        pairs = zip(plain(*left), plain(*right), strict=True)
        slopes = [high + low + more + less for (high, low), (more, less) in pairs]
        return tuple((slope, jax.numpy.zeros_like(slope)) for slope in slopes)

    made = jax.custom_jvp(run)
    made.defjvp(lambda operands, changes: (made(*operands), tangent(operands, changes)))
    return made


class _DotLayout:
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

    def local(self, a: Any, b: Any) -> tuple[Any, Any]:
        """This device's part of both operands, with zeros in the padding."""
        return self._real(a), self._real(b)

    def entries(self, part: Any) -> int:
        """Real entries of the whole element of which a device has this part."""
        shape = list(part.shape[part.ndim - self.ndim :])
        for axis in self.cut:
            shape[axis] = self._size(axis)
        return math.prod(shape)

    def counts(self, names: tuple[str, ...]) -> Any:
        """Whether this device's part counts: of copies that of the first device."""
        import jax

        first: Any = True
        for name in names:
            if name not in self.cutting:
                first &= jax.lax.axis_index(name) == 0
        return first

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


def _twice(lines: list[_DotLayout]) -> list[_DotLayout]:
    return [line for line in lines for _ in range(2)]


def _sum_up(
    lines: list[_DotLayout], operands: Sequence[Any], names: tuple[str, ...]
) -> tuple[Any, ...]:
    """The halves of all inner products, by one collective."""
    import jax

    jnp, lax = jax.numpy, jax.lax
    rows: list[Any] = []
    for line, a, b in zip(lines, operands[::2], operands[1::2], strict=True):
        rows += paired_dot(*line.local(a, b), line.ndim)
    if not names:
        return tuple(rows)
    rows = [
        jnp.where(line.counts(names), row, jnp.zeros((), row.dtype))
        for line, row in zip(_twice(lines), rows, strict=True)
    ]
    if jax.config.jax_enable_x64:
        return tuple(_apart(lax.psum(_together(rows), names), rows))
    gathered = _apart(lax.all_gather(_together(rows), names), rows)
    found: list[Any] = []
    for high, low in zip(gathered[::2], gathered[1::2], strict=True):
        found += sum_pairs(jnp.moveaxis(high, 0, -1), jnp.moveaxis(low, 0, -1))
    return tuple(found)


def _reproducible(
    lines: list[_DotLayout], operands: Sequence[Any], names: tuple[str, ...]
) -> tuple[Any, ...]:
    """The same in bits that no order of summation changes, by two collectives."""
    import jax

    jnp, lax = jax.numpy, jax.lax
    wide = bool(jax.config.jax_enable_x64)
    with jax.enable_x64(True):
        terms = [
            reproducible.products(*line.local(a, b), line.ndim)
            for line, a, b in zip(lines, operands[::2], operands[1::2], strict=True)
        ]
        peaks = [reproducible.largest(part) for part in terms]
        if names:
            peaks = _apart(lax.pmax(_together(peaks), names), peaks)
        sums = [
            reproducible.slices(part, peak, line.entries(a))
            for line, part, peak, a in zip(lines, terms, peaks, operands[::2], strict=True)
        ]
        if names:
            sums = [
                jnp.where(line.counts(names), part, jnp.zeros((), part.dtype))
                for line, part in zip(lines, sums, strict=True)
            ]
            sums = _apart(lax.psum(_together(sums), names), sums)
        found: list[Any] = []
        for part, peak in zip(sums, peaks, strict=True):
            found += _halves(reproducible.total(part, peak), wide)
    return tuple(found)


def _halves(value: Any, wide: bool) -> tuple[Any, Any]:
    """What is there in the widest dtype that the caller has, and what that rounds away."""
    import jax

    if wide:
        return value, jax.numpy.zeros_like(value)
    dtype = "complex64" if value.dtype.kind == "c" else "float32"
    high = value.astype(dtype)
    return high, (value - high.astype(value.dtype)).astype(dtype)


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
