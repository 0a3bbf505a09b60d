"""Many acoustic steps with sources and receivers: linear in the source, or a map of the medium.

The adjoint in the source runs the adjoint steps and stores nothing. The derivative in the medium
needs the forward states: it keeps about the square root of their number and runs the forward
steps once more, or, where nothing damps, undoes them one by one and keeps two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.cost import Cost
from linops.elementary.interpolate import Interpolate
from linops.errors import ShapeError
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.space import Space
from linops.stencils.faces import named_sides
from linops.stencils.laplacian import Laplacian
from linops.stencils.weights import checked_order

__all__ = ["WaveModel", "WaveRecords"]

State = tuple[Array, Array]


class WaveRecords(LinearOperator):
    """From source wavelets, `(steps, sources)`, to records, `(steps, receivers)`.

    Parameters
    ----------
    space, order, boundary, damping
        As for `AcousticWave`.
    square
        c squared, a number or an array of the space's shape.
    dt, steps
        The time step and how many there are.
    sources, receivers
        Positions counted in planes, shape `(number, ndim)`; between planes values are interpolated
        linearly, and injection is the adjoint of sampling.

    Notes
    -----
    The field starts at rest; step n injects wavelet n, `p+ = 2 p - p- + dt^2 c^2 (L p + s)`, and
    record n is the field after it.
    """

    def __init__(
        self,
        space: Space,
        square: Any,
        dt: float,
        steps: int,
        sources: Any,
        receivers: Any,
        order: int = 2,
        boundary: Any = "zero",
        damping: Any = None,
    ) -> None:
        order = checked_order(order, "WaveRecords")
        pairs = named_sides(boundary, space, "WaveRecords")
        self.laplacian = Laplacian(space, order, pairs)
        self.injection = _sampling(space, sources, "sources").H
        self.sampling = _sampling(space, receivers, "receivers")
        self.square = arrays.snapshot(_full(square, space))
        self.damping = None if damping is None else arrays.snapshot(_full(damping, space))
        self._times = (float(dt), int(steps))
        super().__init__(
            Space((steps, *self.injection.domain.shape), space.dtype),
            Space((steps, *self.sampling.codomain.shape), space.dtype),
        )

    def _apply(self, x: Array) -> Array:
        records = [self.sampling._forward(p) for p, _ in _states(self, self._held(x), x)]
        return arrays.namespace(x).stack(records, axis=0)

    def _apply_adjoint(self, y: Array) -> Array:
        parts = [self.injection._backward(a) for a, _ in _costates(self, self._held(y), y)]
        return arrays.namespace(y).stack(parts[::-1], axis=0)

    def _held(self, like: Array) -> tuple[Array, Any]:
        return _resident(self, self.square, self.damping, self._times[0], like)

    def _cost(self) -> Cost:
        return _cost(self, self._times[1], 8.0)


class WaveModel(Operator):
    """The records of given sources as a map of the medium: c squared to `(steps, receivers)`.

    Parameters
    ----------
    space, dt, sources, receivers, order, boundary, damping
        As for `WaveRecords`.
    wavelets
        What the sources send, shape `(steps, sources)`.
    states
        `"checkpoints"` (about twice the square root of the number of steps are held, and the
        forward steps run once more), `"reversal"` (two, where nothing damps), or `"auto"`: reversal
        where nothing damps and the space is float64, else checkpoints.

    Notes
    -----
    `vjp` is the adjoint-state gradient, `dt^2 sum_n lambda^{n+1} (L p^n + s^n)`; `jvp` steps field
    and perturbation together. `jacobian(m).H` of one point runs both passes for each residual.
    """

    domain: Space

    def __init__(
        self,
        space: Space,
        dt: float,
        wavelets: Any,
        sources: Any,
        receivers: Any,
        order: int = 2,
        boundary: Any = "zero",
        damping: Any = None,
        states: str = "auto",
    ) -> None:
        if states not in ("auto", "checkpoints", "reversal"):
            raise ValueError(
                f"WaveModel: states is 'auto', 'checkpoints' or 'reversal', got {states!r}"
            )
        if states == "reversal" and damping is not None:
            raise ValueError("WaveModel: damped steps cannot be undone; take states='checkpoints'")
        order = checked_order(order, "WaveModel")
        pairs = named_sides(boundary, space, "WaveModel")
        self.laplacian = Laplacian(space, order, pairs)
        self.injection = _sampling(space, sources, "sources").H
        self.sampling = _sampling(space, receivers, "receivers")
        wavelets = wavelets if arrays.is_array(wavelets) else np.asarray(wavelets)
        if wavelets.ndim == 1:
            wavelets = wavelets[:, None]
        if tuple(wavelets.shape[1:]) != self.injection.domain.shape:
            raise ShapeError(
                f"WaveModel: wavelets have the shape (steps, {self.injection.domain.size}), got "
                f"{tuple(wavelets.shape)}"
            )
        self.wavelets = arrays.snapshot(arrays.cast(wavelets, space.dtype))
        self.damping = None if damping is None else arrays.snapshot(_full(damping, space))
        steps = int(wavelets.shape[0])
        self._times = (float(dt), steps)
        undone = states == "reversal" or (
            states == "auto" and damping is None and space.dtype.itemsize >= 8
        )
        self._reverses = undone
        super().__init__(space, Space((steps, *self.sampling.codomain.shape), space.dtype))

    @property
    def held_states(self) -> int:
        """The most fields `(p, p-)` that a derivative holds at one time."""
        steps = self._times[1]
        if self._reverses:
            return 1
        every = _stride(steps)
        return -(-steps // every) + every

    def _apply(self, x: Array) -> Array:
        held = self._held(x)
        records = [self.sampling._forward(p) for p, _ in _states(self, held, self._sent(x))]
        return arrays.namespace(x).stack(records, axis=0)

    def _jacobian(self, x: Any) -> LinearOperator:
        return WaveJacobian(self, x)

    def _held(self, square: Array) -> tuple[Array, Any]:
        return _resident(self, square, self.damping, self._times[0], square)

    def _sent(self, like: Array) -> Array:
        cache = self.__dict__.setdefault("_cache_resident", {})
        return arrays.resident(cache, "wavelets", self.wavelets, like)

    def _cost(self) -> Cost:
        return _cost(self, self._times[1], 8.0)


class WaveJacobian(LinearOperator):
    """The derivative of a `WaveModel` at one medium."""

    domain: Space

    def __init__(self, model: WaveModel, point: Array) -> None:
        super().__init__(model.domain, model.codomain, name="WaveModel derivative")
        self.model = model
        self.point = point

    def _apply(self, x: Array) -> Array:
        model = self.model
        held = model._held(arrays.convert(self.point, x))
        scaled = x * model._times[0] ** 2
        zero = x * 0
        dp, before = zero, zero
        records = []
        for p, rate in _rates(model, held, model._sent(x)):
            moved = held[0] * model.laplacian._forward(dp) + scaled * rate
            dp, before = _damp(held[1], 2.0 * dp - before + moved, dp)
            records.append(model.sampling._forward(dp))
            del p
        return arrays.namespace(x).stack(records, axis=0)

    def _apply_adjoint(self, y: Array) -> Array:
        model = self.model
        held = model._held(arrays.convert(self.point, y))
        total: Any = None
        rates = _rates_backwards(model, held, model._sent(y))
        for (_, a), rate in zip(_costates(model, held, y), rates, strict=True):
            part = a * rate
            total = part if total is None else total + part
        if total is None:
            return self.domain.zeros(y)
        return total * model._times[0] ** 2

    def _cost(self) -> Cost:
        return _cost(self.model, self.model._times[1], 4.0 * (4.0 + self.model.held_states))


def _states(owner: Any, held: Any, sent: Array) -> Iterator[State]:
    """The field after each step, with the one before it."""
    zero = _rest(owner, sent)
    p, before = zero, zero
    for n in range(owner._times[1]):
        p, before = _step(owner, held, sent, n, p, before)
        yield p, before


def _step(owner: Any, held: Any, sent: Array, n: int, p: Array, before: Array) -> State:
    square, damping = held
    rate = owner.laplacian._forward(p) + owner.injection._forward(sent[n, ...])
    return _damp(damping, 2.0 * p - before + square * rate, p)


def _damp(damping: Any, after: Array, p: Array) -> State:
    return (after, p) if damping is None else (damping * after, damping * p)


def _costates(owner: Any, held: Any, records: Array) -> Iterator[State]:
    """Backwards in time: `dt^2 c^2` times the cotangent of the field after each step, damped, and
    that cotangent itself."""
    square, damping = held
    a = _rest(owner, records)
    b = a
    for n in reversed(range(owner._times[1])):
        a = a + owner.sampling._backward(records[n, ...])
        if damping is not None:
            a, b = damping * a, damping * b
        weighted = square * a
        yield weighted, a
        a, b = 2.0 * a + owner.laplacian._backward(weighted) + b, -a


def _rates(owner: Any, held: Any, sent: Array) -> Iterator[tuple[Array, Array]]:
    """The field before each step, and `L p + s` there."""
    zero = _rest(owner, sent)
    p, before = zero, zero
    for n in range(owner._times[1]):
        rate = owner.laplacian._forward(p) + owner.injection._forward(sent[n, ...])
        yield p, rate
        p, before = _damp(held[1], 2.0 * p - before + held[0] * rate, p)


def _rates_backwards(owner: Any, held: Any, sent: Array) -> Iterator[Array]:
    """`L p + s` before each step, the last step first."""
    steps = owner._times[1]
    zero = _rest(owner, sent)

    def rate_of(p: Array, n: int) -> Array:
        return owner.laplacian._forward(p) + owner.injection._forward(sent[n, ...])

    if owner._reverses:
        p, before = zero, zero
        for n in range(steps):
            p, before = _step(owner, held, sent, n, p, before)
        for n in reversed(range(steps)):
            # (p, before) are the fields n + 1 and n; the one before follows from them.
            rate = rate_of(before, n)
            yield rate
            p, before = before, 2.0 * before - p + held[0] * rate
        return
    every = _stride(steps)
    kept: list[State] = []
    p, before = zero, zero
    for n in range(steps):
        if n % every == 0:
            kept.append((p, before))
        if n < steps - 1:
            p, before = _step(owner, held, sent, n, p, before)
    for first in reversed(range(0, steps, every)):
        p, before = kept.pop()
        segment = []
        for n in range(first, min(first + every, steps)):
            segment.append(p)
            if n < min(first + every, steps) - 1:
                p, before = _step(owner, held, sent, n, p, before)
        for n in reversed(range(first, min(first + every, steps))):
            yield rate_of(segment.pop(), n)


def _stride(steps: int) -> int:
    return max(1, math.isqrt(max(steps - 1, 0)) + 1)


def _rest(owner: Any, like: Array) -> Array:
    return arrays.zeros(owner.laplacian.domain.shape, arrays.dtype_of(like), like)


def _resident(owner: Any, square: Array, damping: Any, dt: float, like: Array) -> tuple[Array, Any]:
    cache = owner.__dict__.setdefault("_cache_resident", {})
    held = square if square is like else arrays.resident(cache, "square", square, like)
    sponge = None if damping is None else arrays.resident(cache, "damping", damping, like)
    return held * dt**2, sponge


def _full(value: Any, space: Space) -> Array:
    field = value if arrays.is_array(value) else np.asarray(value, space.dtype)
    if not field.ndim:
        field = field + arrays.zeros(space.shape, arrays.dtype_of(field), field)
    if tuple(field.shape) != space.shape:
        raise ShapeError(
            f"a field on {space} is a number or an array of its shape, got {tuple(field.shape)}"
        )
    return arrays.cast(field, space.dtype)


def _sampling(space: Space, positions: Any, what: str) -> LinearOperator:
    points = np.asarray(positions, float)
    if points.ndim == 1 and space.ndim == 1:
        points = points[:, None]
    points = np.atleast_2d(points)
    if points.shape[1] != space.ndim:
        raise ShapeError(
            f"positions of {what} have the shape (number, {space.ndim}), in planes along each "
            f"axis, got {points.shape}"
        )
    return Interpolate(space, np.ascontiguousarray(points.T))


def _cost(owner: Any, steps: int, fields: float) -> Cost:
    one: Cost = owner.laplacian.cost()
    size = float(owner.laplacian.domain.size) * owner.laplacian.domain.dtype.itemsize
    held = one.workspace + fields * size
    return Cost(steps * (one.flops + 6.0 * size), steps * 4 * one.read, steps * one.written, held)
