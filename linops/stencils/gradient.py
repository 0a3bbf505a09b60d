"""The forward-difference gradient that total variation is made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.compiled import pool
from linops.compiled.writeable import writeable
from linops.cost import Cost
from linops.elementary.axes import resized
from linops.errors import ShapeError
from linops.linear_operator import LinearOperator
from linops.relations import fresh_name
from linops.rule import Axis, Rule
from linops.space import Space

__all__ = ["Gradient"]

_TILED = 1 << 15
"""Entries from which on a fused pass is worth several threads."""


class Gradient(LinearOperator):
    """Forward differences over the spacing: `(x[i+1] - x[i]) / h`, 0 at the last plane.

    Parameters
    ----------
    space
        The domain; distances are its spacing, 1 where it has none.

    Notes
    -----
    The codomain has a first axis `component`, one entry for each axis of the space in order:
    shape `(ndim, *space.shape)`. The adjoint is minus the divergence with zero outer faces.
    """

    batched = True
    _serves_complex: ClassVar[bool] = True
    _exact: ClassVar[bool] = True

    def __init__(self, space: Space) -> None:
        if not isinstance(space, Space) or space.ndim == 0:
            raise ShapeError(f"Gradient takes a space with one or more axes, got {space}")
        ends = np.array([[0, n] for n in space.shape], np.int32).reshape(space.ndim, 2)
        # planes: of the output; lead: input planes before the first of them; ends: the real
        # range of output planes, the last of which has no forward neighbor.
        names = space.axes or tuple(f"axis{i}" for i in range(space.ndim))
        component = fresh_name("component", set(names))
        axes = None if space.axes is None else (component, *names)
        codomain = Space((space.ndim, *space.shape), space.dtype, axes)
        left = tuple(Axis(name, 1) for name in names)
        right = (Axis(component), *map(Axis, names))
        super().__init__(space, codomain, Rule((left,), (right,)))
        self._steps = space.spacing or (1.0,) * space.ndim
        self._planes, self._lead = space.shape, (0,) * space.ndim
        self._padded = (False,) * space.ndim
        self._planes_in = space.shape
        self.ends = arrays.snapshot(ends)

    def _apply(self, x: Array) -> Array:
        n = len(self._planes)
        if type(x) is np.ndarray and not any(self._padded):
            batch = x.shape[: x.ndim - n]
            out = np.zeros((*batch, n, *self._planes), x.dtype)
            for a in range(n):
                count = self._differences(a)
                if count > 0:
                    part = narrowed(self._core(x, a), a - n, self._lead[a], count + 1)
                    view = narrowed(out[(..., a) + (slice(None),) * n], a - n, 0, count)
                    np.subtract(
                        narrowed(part, a - n, 1, count), narrowed(part, a - n, 0, count), view
                    )
                    if self._steps[a] != 1.0:
                        view *= x.dtype.type(1.0 / self._steps[a])
            return out
        xp = arrays.namespace(x)
        parts = []
        for a in range(n):
            core, count = self._core(x, a), self._differences(a)
            lead, axis = self._lead[a], a - n
            high = narrowed(core, axis, lead + 1, count)
            low = narrowed(core, axis, lead, count)
            part = (high - low) * (1.0 / self._steps[a])
            parts.append(self._masked(arrays.widen(part, axis, 0, self._planes[a] - count), a))
        return xp.stack(parts, axis=-n - 1)

    def _apply_adjoint(self, y: Array) -> Array:
        n = len(self._planes)
        total: Any = None
        shape = self._planes_in
        if type(y) is np.ndarray and not any(self._padded):
            batch = y.shape[: y.ndim - n - 1]
            out = np.zeros((*batch, *shape), y.dtype)
            for a in range(n):
                count = self._differences(a)
                if count > 0:
                    part = narrowed(y[(..., a) + (slice(None),) * n], a - n, 0, count)
                    if self._steps[a] != 1.0:
                        part = part * y.dtype.type(1.0 / self._steps[a])
                    core = self._core(out, a)
                    view = narrowed(core, a - n, self._lead[a] + 1, count)
                    view += part
                    view = narrowed(core, a - n, self._lead[a], count)
                    view -= part
            return out
        for a in range(n):
            count, lead, axis = self._differences(a), self._lead[a], a - n
            part = self._masked(y[(..., a) + (slice(None),) * n], a)
            part = narrowed(part, axis, 0, count) * (1.0 / self._steps[a])
            rest = shape[a] - lead - count
            moved = (
                arrays.widen(part, axis, lead + 1, rest - 1) - arrays.widen(part, axis, lead, rest)
                if count
                else arrays.widen(part, axis, 0, shape[a])
            )
            for b in range(n):
                if b != a:
                    after = shape[b] - self._lead[b] - self._planes[b]
                    moved = arrays.widen(moved, b - n, self._lead[b], after)
            total = moved if total is None else total + moved
        return total

    def _input_range(self, axis: str, start: int, stop: int) -> tuple[int, int]:
        lead = self._lead[self._position(axis)]
        return start + lead - 1, stop + lead + 1

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator | None:
        if axis == self.rule.codomain[0][0].name:
            return None
        a = self._position(axis)
        domain = self.domain
        assert isinstance(domain, Space)
        if self._padded[a] or self._lead[a] or domain.shape[a] != self._planes[a]:
            return None
        n = domain.shape[a]
        lo, hi = (start - 1, stop + 1) if padded else (max(start - 1, 0), min(stop + 1, n))
        shape = list(domain.shape)
        shape[a] = hi - lo
        planes, lead, flags = list(self._planes), list(self._lead), list(self._padded)
        planes[a], lead[a], flags[a] = stop - start, start - lo, padded
        ends = np.array(self.ends)
        ends[a] = (-start, n - start)
        space = Space(tuple(shape), domain.dtype, domain.axes, domain.spacing)
        return self._with(
            domain=space,
            codomain=resized(self.codomain, [(0, a + 1)], stop - start),
            ends=arrays.snapshot(ends),
            _planes=tuple(planes),
            _lead=tuple(lead),
            _padded=tuple(flags),
            _planes_in=space.shape,
        )

    def _fused_gram(self, weights: LinearOperator | None) -> Callable[[np.ndarray], Any] | None:
        domain = self.domain
        assert isinstance(domain, Space)
        if domain.is_complex or domain.ndim > 3 or self._planes != domain.shape:
            return None
        if any(self._padded) or domain.dtype.itemsize < 4 or not domain.size:
            return None
        held = None
        if weights is not None:
            held = weights._diagonal() if "diagonal" in weights.tags else None
            if type(held) is not np.ndarray or held.dtype != domain.dtype:
                return None
        return partial(self._gram_pass, held)

    def _gram_pass(self, weights: np.ndarray | None, x: np.ndarray) -> np.ndarray:
        from linops.stencils.passes import gram_rows

        n, missing = len(self._planes), 3 - len(self._planes)
        shape = (1,) * missing + self._planes
        real = x.dtype.type
        scales = (real(1.0),) * missing + tuple(real(1.0 / h) for h in self._steps)
        size, count = math.prod(shape), shape[0] * shape[1]
        offsets = (0,) * missing + tuple(a * size for a in range(n))
        batch = writeable(np.ascontiguousarray(x)).reshape(-1, size)
        out = np.empty_like(batch)
        held = batch if weights is None else writeable(np.ascontiguousarray(weights))
        w = held.reshape(-1)
        tiles = min(count, 4 * pool.workers()) if size > _TILED else 1

        def task(tile: int) -> None:
            member, part = divmod(tile, tiles)
            rows = (count * part // tiles, count * (part + 1) // tiles)
            gram_rows(
                batch[member], w, weights is not None, scales, shape, offsets, rows, out[member]
            )

        pool.run(task, tiles * len(batch))
        return out.reshape(x.shape)

    def _known_norm(self) -> float | None:
        """Cosines diagonalise the Gram matrix; the highest has `4 cos(pi / (2 n))^2 / h^2`."""
        if self._planes != self.domain.shape or any(self._padded):
            return None
        pairs = zip(self._planes, self._steps, strict=True)
        return math.sqrt(sum((2 * math.cos(math.pi / (2 * n)) / h) ** 2 for n, h in pairs if n > 1))

    def _cost(self) -> Cost:
        return Cost.streaming(self.domain, self.codomain, 2.0 * self.codomain.size)

    def _position(self, axis: str) -> int:
        return [a.name for a in self.rule.domain[0]].index(axis)

    def _differences(self, a: int) -> int:
        """Output planes along axis `a` for which the input holds both neighbors."""
        return max(min(self._planes[a], self._planes_in[a] - self._lead[a] - 1), 0)

    def _core(self, x: Array, a: int) -> Array:
        """`x` without the halo planes of the axes other than `a`."""
        n = len(self._planes)
        for b in range(n):
            if b != a and x.shape[b - n] != self._planes[b]:
                x = narrowed(x, b - n, self._lead[b], self._planes[b])
        return x

    def _masked(self, part: Array, a: int) -> Array:
        """Zero outside the array, and at its last plane along `a`."""
        n = len(self._planes)
        xp = arrays.namespace(self.ends)
        for b in range(n):
            if self._padded[b] and part.shape[b - n]:
                plane = xp.arange(part.shape[b - n], dtype=self.ends.dtype)
                end = self.ends[b, 1] - (1 if a == b else 0)
                valid = (plane >= self.ends[b, 0]) & (plane < end)
                part = arrays.gather_planes(part, b - n, plane, valid)
        return part


def narrowed(x: Array, axis: int, start: int, count: int) -> Array:
    """`count` planes from `start` along a negative axis."""
    return arrays.narrow(x, axis, start, start + count)
