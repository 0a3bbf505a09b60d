"""What functionals of differences of neighbors share: blocks, surrogate, second derivative.

Such a functional is a sum over voxels of terms that see the voxel and its following neighbors.
Its weights depend on the point x, and `S(x) v = sum over pairs of weight(x) * (v_s - v_r)` is its
surrogate, so that `S(x) x` is its gradient. A block sees one plane more on each side; it counts
the voxels in its `window`, and planes outside `real` are not of the array.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.compiled.writeable import writeable
from linops.cost import Cost, bytes_of
from linops.elementary.axes import resized
from linops.elementary.crop_pad import Crop
from linops.elementary.plane_windows import PlaneMask
from linops.functionals.functional import Functional, is_recorded, named_axes
from linops.functionals.linear_form import bare
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.rule import Axis, Rule
from linops.space import Space

__all__ = [
    "DifferenceHessian",
    "DifferenceSurrogate",
    "Differences",
    "compilable",
    "narrow_pair",
    "passes",
    "volume",
]


class Differences(Functional):
    """A functional of the differences of neighbors along the axes of a real space.

    Parameters
    ----------
    space
        The domain.
    """

    batched = True

    def __init__(self, space: Space) -> None:
        row = tuple(Axis(name, halo=1) for name in named_axes(space)[0])
        super().__init__(space, Rule((row,), ((),)))
        self.window: tuple[tuple[int, int], ...] | None = None
        self.real: Array | None = None

    def surrogate(self, x: Array) -> LinearOperator:
        """`D.H diag(weights(x)) D`, with D all differences of neighbors."""
        return DifferenceSurrogate(self, self._admit(x))

    def _hessian(self, x: Array) -> LinearOperator:
        return DifferenceHessian(self, x)

    _hessian_held: ClassVar[float] = 12.0
    # Arrays of the domain's size that a second derivative holds, which is no compiled pass.
    _term_flops: ClassVar[float] = 20.0
    # Operations that a pair of neighbors costs.

    def _cost(self) -> Cost:
        # Compiled: nothing is held.
        pairs = float(self.domain.size * self._space.ndim)
        return Cost(self._term_flops * pairs, bytes_of(self.domain), bytes_of(self.codomain))

    def _gradient_cost(self) -> Cost:
        pairs = float(self.domain.size * self._space.ndim)
        return Cost(1.5 * self._term_flops * pairs, bytes_of(self.domain), bytes_of(self.domain))

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> Operator:
        block, lo = self._cut(axis, start, stop, padded)
        space = self._space
        position = self._position(axis)
        window = list(block.window or tuple((0, n) for n in block.domain.shape))
        first, last = window[position]
        window[position] = (max(first, start - lo), max(min(last, stop - lo), start - lo, first))
        if (
            not padded
            and block.domain.shape == space.shape
            and self.window is None
            and (window == [(0, n) for n in space.shape])
        ):
            return self
        return block._with(window=tuple(window))  # type: ignore[no-any-return]

    def _gradient_block(self, axis: str, start: int, stop: int, padded: bool) -> Operator:
        block, lo = self._cut(axis, start, stop, padded)
        crop = self._crop(block.domain, axis, start - lo, stop - lo)
        if not padded:
            return crop @ block.gradient  # type: ignore[no-any-return]
        # A plane outside may be a neighbor of a real one that the block does not own.
        cuts = [(0, self._position(axis))]
        n = self._space.shape[cuts[0][1]]
        mask = PlaneMask(crop.codomain, cuts, -start, n - start, bare(self.rule.domain))
        return mask @ crop @ block.gradient  # type: ignore[no-any-return]

    def _cut(self, axis: str, start: int, stop: int, padded: bool) -> tuple[Any, int]:
        """The functional on the planes that a block of it reads, and the first of these."""
        position = self._position(axis)
        n = self._space.shape[position]
        lo, hi = start - 1, stop + 1
        if not padded:
            lo, hi = max(lo, 0), min(hi, n)
        space = resized(self._space, [(0, position)], hi - lo)
        fields: dict[str, Any] = {"domain": space}
        if self.window is not None:
            window = list(self.window)
            first, last = (min(max(w - lo, 0), hi - lo) for w in window[position])
            window[position] = (first, last)
            fields["window"] = tuple(window)
        if padded or self.real is not None:
            real = self.real
            if real is None:
                real = np.array([(0, extent) for extent in self._space.shape], np.int32)
            xp = arrays.namespace(real)
            row = xp.clip(real[position, ...] - lo, 0, hi - lo)
            rows = [row if p == position else real[p, ...] for p in range(len(real))]
            fields["real"] = xp.stack(rows)
        return self._with(**fields, **self._on(space)), lo

    def _crop(self, space: Any, axis: str, start: int, stop: int) -> LinearOperator:
        cuts = [(0, self._position(axis))]
        return Crop.along(space, cuts, start, stop, bare(self.rule.domain))

    def _position(self, axis: str) -> int:
        return [one.name for one in self.rule.domain[0]].index(axis)

    @property
    def _space(self) -> Space:
        assert isinstance(self.domain, Space)
        return self.domain

    def _on(self, space: Any) -> dict[str, Any]:
        """What else changes with the extent of the domain."""
        return {}

    def _clean(self, x: Array) -> Array:
        """x with zeros in planes that are not of the array."""
        if self.real is None:
            return x
        xp = arrays.namespace(x)
        for a in range(self._space.ndim):
            mask = self._shape_mask(self._planes(a, 0, False), a, x)
            x = xp.where(mask, x, xp.zeros_like(x))
        return x

    def _counted(self, like: Array, pairs: int | None = None) -> Array | None:
        """Which voxels count, and have a neighbor along the axis `pairs`; None: all (that do)."""
        if self.window is None and self.real is None:
            return None
        total = None
        for a in range(self._space.ndim):
            mask = self._shape_mask(self._planes(a, int(a == pairs), True), a, like)
            total = mask if total is None else total & mask
        return total

    def _planes(self, axis: int, ahead: int, counted: bool) -> Array:
        n = self._space.shape[axis]
        xp = np if self.real is None else arrays.namespace(self.real)
        plane = xp.arange(n)
        inside = plane + ahead < n
        if self.real is not None:
            begin, end = self.real[axis, 0], self.real[axis, 1]
            inside = inside & (plane >= begin) & (plane + ahead < end)
        if counted and self.window is not None:
            first, last = self.window[axis]
            inside = inside & (plane >= first) & (plane < last)
        return inside

    def _shape_mask(self, mask: Array, axis: int, like: Array) -> Array:
        after = self._space.ndim - 1 - axis
        return arrays.convert(arrays.namespace(mask).reshape(mask, (-1, *(1,) * after)), like)

    def _trim(self) -> tuple[tuple[slice, ...], tuple[int, ...]]:
        """The real planes, and the window among them, flat and for three axes."""
        shape = self._space.shape
        real = [(0, n) for n in shape] if self.real is None else np.asarray(self.real).tolist()
        window = self.window or tuple((0, n) for n in shape)
        flat: list[int] = [0, 1] * (3 - len(shape))
        for (begin, end), (first, last) in zip(real, window, strict=True):
            count = max(end - begin, 0)
            low = min(max(first - begin, 0), count)
            flat += [low, max(min(last - begin, count), low)]
        return tuple(slice(begin, max(end, begin)) for begin, end in real), tuple(flat)

    @abstractmethod
    def _form(self, x: Array, v: Array) -> Array:
        """`S(x) v`."""

    @abstractmethod
    def _form_diagonal(self, x: Array) -> Array:
        """The diagonal of S(x)."""

    @abstractmethod
    def _hessian_form(self, x: Array, v: Array) -> Array:
        """The second derivative at x on v."""


class DifferenceSurrogate(LinearOperator):
    """`S(x)` of a functional of differences: self-adjoint, positive, constants in its kernel.

    Parameters
    ----------
    functional
        Where the weights come from.
    point
        x, of the functional's domain, without batch axes.
    """

    def __init__(self, functional: Differences, point: Array) -> None:
        super().__init__(
            functional.domain,
            functional.domain,
            _point_rule(functional),
            tags=("self_adjoint", "psd"),
        )
        self.functional = functional
        self.point = arrays.snapshot(point)

    def _apply(self, v: Array) -> Array:
        return self.functional._form(_near(self, v), v)

    def _apply_adjoint(self, v: Array) -> Array:
        return self._apply(v)

    def _cost(self) -> Cost:
        cost = self.functional._gradient_cost()
        return replace(cost, read=2 * cost.read)

    def _diagonal(self) -> Array:
        return self.functional._form_diagonal(self.point)

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator | None:
        return None if padded else _cut_at(self, axis, start, stop)


class DifferenceHessian(LinearOperator):
    """The second derivative of a functional of differences at x: self-adjoint.

    Parameters
    ----------
    functional
        The functional.
    point
        x, of its domain, without batch axes.
    """

    def __init__(self, functional: Differences, point: Array) -> None:
        convex = getattr(functional, "convex", True)
        super().__init__(
            functional.domain,
            functional.domain,
            _point_rule(functional),
            tags=("self_adjoint", "psd") if convex else ("self_adjoint",),
        )
        self.functional = functional
        self.point = arrays.snapshot(point)

    def _apply(self, v: Array) -> Array:
        return self.functional._hessian_form(_near(self, v), v)

    def _apply_adjoint(self, v: Array) -> Array:
        return self._apply(v)

    def _cost(self) -> Cost:
        cost = self.functional._gradient_cost()
        held = self.functional._hessian_held * bytes_of(self.domain)
        return replace(cost, read=2 * cost.read, workspace=held)

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator | None:
        return None if padded else _cut_at(self, axis, start, stop)


def compilable(space: Space, *elements: Array) -> bool:
    """Whether the compiled passes serve these elements: plain memory, 1 to 3 axes, real."""
    if not 1 <= space.ndim <= 3 or space.dtype not in (np.float32, np.float64):
        return False
    return all(
        x.ndim == space.ndim
        and (
            type(x) is np.ndarray
            or (arrays.is_torch(x) and x.device.type == "cpu" and not is_recorded(x))
        )
        for x in elements
    )


def volume(x: Array) -> np.ndarray:
    """`x` as a C-contiguous NumPy volume of three axes, to be read; a view where it is one."""
    host = writeable(np.ascontiguousarray(arrays.to_numpy(x)))
    return host.reshape((1,) * (3 - host.ndim) + host.shape)


def narrow_pair(x: Array, axis: int) -> tuple[Array, Array]:
    """The planes that have a following neighbor along a negative `axis`, and those neighbors."""
    n = x.shape[axis]
    return arrays.narrow(x, axis, 0, n - 1), arrays.narrow(x, axis, 1, n)


@functools.cache
def passes() -> Any:
    """The module of compiled passes; Numba is imported here, on first use."""
    from linops.functionals import passes as module

    return module


def _point_rule(functional: Differences) -> Rule:
    rule = functional.rule
    return Rule(rule.domain, bare(rule.domain))


def _near(operator: Any, like: Array) -> Array:
    cache = operator.__dict__.setdefault("_cache_resident", {})
    return arrays.resident(cache, "point", operator.point, like)


def _cut_at(operator: Any, axis: str, start: int, stop: int) -> LinearOperator:
    functional = operator.functional
    block, lo = functional._cut(axis, start, stop, False)
    position: int = functional._position(axis)
    hi = lo + block.domain.shape[position]
    number = position - functional.domain.ndim
    inner = type(operator)(block, arrays.narrow(operator.point, number, lo, hi))
    cut: LinearOperator = functional._crop(block.domain, axis, start - lo, stop - lo) @ inner
    return cut
