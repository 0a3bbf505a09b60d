"""Finite-volume steps of conservation laws: Burgers' equation and the isothermal Euler equations.

A step is a nonlinear stencil on components. Its Jacobian is a stencil with the partial
derivatives as coefficient fields, so adjoint, blocks and rule are those of every stencil.
"""

from __future__ import annotations

import itertools
import sys
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.cost import Cost
from linops.errors import ShapeError
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.rule import Rule
from linops.space import Space
from linops.stencils import slices
from linops.stencils.boundary import flipped
from linops.stencils.dual import Dual
from linops.stencils.faces import named_sides
from linops.stencils.stencil import Stencil

__all__ = ["Burgers", "IsothermalEuler"]

View = Callable[[int, tuple[int, ...]], Any]
Key = tuple[int, tuple[int, ...]]


class _FiniteVolume(Operator):
    """`u - dt sum_d (F[i+1/2] - F[i-1/2]) / h_d`, with fluxes from the states beside each face."""

    batched = True
    _exact: ClassVar[bool] = True
    domain: Space
    shape_of: Stencil

    def _set_up(self, shape: Stencil, dt: Any, limiter: str | None, steps: Any) -> None:
        Operator.__init__(self, shape.domain, shape.codomain, shape.rule, name=type(self).__name__)
        self.shape_of = shape
        self.dt = dt if arrays.is_array(dt) else float(dt)
        self._limiter, self._steps = limiter, steps

    @abstractmethod
    def _flux(self, left: list[Any], right: list[Any], axis: int, xp: Any) -> list[Any]:
        """The numerical flux along an axis between two states, one entry a component."""

    def _apply(self, x: Array) -> Array:
        view, count = self._views(x), len(self.shape_of._lines)
        parts = self._stepped(view, count, arrays.namespace(x), self._time(x))
        return arrays.cast(self._joined(parts), arrays.dtype_of(x))

    def _jacobian(self, x: Any) -> LinearOperator:
        base = self.shape_of
        view, count = self._views(x), len(base._lines)
        keys: list[Key] = sorted({(tap.input, tap.offset) for tap in base._taps})
        values = {key: view(*key) for key in keys}
        partials = self._partials(values, count, x)
        taps: list[slices.Tap] = []
        fields: list[Array] = []
        like = next(iter(values.values()))
        for (output, key), part in sorted(partials.items(), key=lambda item: item[0]):
            field = self._blanked(part + 0 * like)
            taps.append(slices.Tap(output, key[0], key[1], 1.0, len(fields)))
            fields.append(arrays.cast(field, arrays.dtype_of(x)))
        return base._rebuilt(taps=tuple(taps), fields=tuple(fields), tags=())

    def _partials(self, values: dict[Key, Array], count: int, x: Array) -> dict[Any, Any]:
        time = self._time(x)
        if arrays.is_jax(x) or arrays.is_torch(x):
            xp, keys = arrays.namespace(x), tuple(values)
            own = tuple(values.values())

            def stepped(*parts: Array) -> Any:
                table = dict(zip(keys, parts, strict=True))
                return tuple(self._stepped(lambda c, o: table[c, o], count, xp, time))

            found = {}
            along = _linearize(stepped, own)
            for key in keys:
                tangent = tuple((xp.ones_like if k == key else xp.zeros_like)(own[0]) for k in keys)
                for output, part in enumerate(along(tangent)):
                    found[output, key] = part
            return found
        duals = {key: Dual(value, {key: 1.0}) for key, value in values.items()}
        results = self._stepped(lambda c, o: duals[c, o], count, np, time)
        return {
            (output, key): part
            for output, result in enumerate(results)
            for key, part in result.parts.items()
        }

    def _stepped(self, view: View, count: int, xp: Any, time: Any) -> list[Any]:
        n = len(self._steps)
        center = (0,) * n
        totals = [view(c, center) for c in range(count)]
        for axis, h in enumerate(self._steps):
            below, above = (
                self._flux(*self._states(view, count, axis, k, xp), axis, xp) for k in (0, 1)
            )
            for c in range(count):
                totals[c] = totals[c] - (above[c] - below[c]) * (time / h)
        return totals

    def _states(
        self, view: View, count: int, axis: int, face: int, xp: Any
    ) -> tuple[list[Any], list[Any]]:
        """The states on both sides of the face below cell `face`."""

        def at(c: int, k: int) -> Any:
            return view(c, tuple(k if a == axis else 0 for a in range(len(self._steps))))

        left = [at(c, face - 1) for c in range(count)]
        right = [at(c, face) for c in range(count)]
        if self._limiter is None:
            return left, right
        slope = _LIMITERS[self._limiter]
        for c in range(count):
            middle = right[c] - left[c]
            lower, upper = left[c] - at(c, face - 2), at(c, face + 1) - right[c]
            left[c], right[c] = (
                left[c] + 0.5 * slope(lower, middle, xp),
                right[c] - 0.5 * slope(middle, upper, xp),
            )
        return left, right

    def _views(self, x: Array) -> View:
        base = self.shape_of
        d = len(base._lines[0])
        parts = slices.components(slices.wide(x), d, base.domain.ndim > d)
        frames = [
            slices.framed_input(part, row, base.starts)
            for part, row in zip(parts, base._lines, strict=True)
        ]
        return lambda c, offset: slices.shifted(frames[c], base._lines[c], offset)

    def _time(self, x: Array) -> Any:
        if not arrays.is_array(self.dt):
            return self.dt
        return arrays.cast(arrays.convert(self.dt, x), arrays.dtype_of(slices.wide(x)))

    def _joined(self, parts: list[Any]) -> Array:
        d = len(self.shape_of._lines[0])
        return slices.joined([self._blanked(p) for p in parts], d, self.domain.ndim > d)

    def _blanked(self, part: Array) -> Array:
        lines = self.shape_of._lines[0]
        for axis, line in enumerate(lines):
            part = slices.blanked(part, axis - len(lines), line, self.shape_of.starts[axis])
        return part

    def _input_range(self, axis: str, start: int, stop: int) -> tuple[int, int]:
        return self.shape_of._input_range(axis, start, stop)

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> Operator | None:
        inner = self.shape_of._block(axis, start, stop, padded)
        if inner is None:
            return None
        facts: Any = inner, self.dt, self._limiter, self._steps

        def fill(operator: Any) -> None:
            operator.__dict__.update(self._own())
            operator._set_up(*facts)

        return self._opened(fill)

    def _own(self) -> dict[str, Any]:
        """What a class adds to the common parts."""
        return {}

    def _derive_rule(self) -> Rule:
        return self.shape_of.rule

    def _cost(self) -> Cost:
        return self.shape_of.cost()


class Burgers(_FiniteVolume):
    """One step of `u_t + sum_d (u^2 / 2)_d = 0` with Godunov's flux.

    Parameters
    ----------
    space
        Domain and codomain.
    dt
        The time step; the scheme is stable for `dt sum_d max |u| / h_d <= 1`.
    boundary
        As for `Stencil`, without constants.
    order
        1, or 2 with limited slopes.
    limiter
        `"minmod"` or `"van leer"`.

    Notes
    -----
    The flux is `max(max(l, 0)^2 / 2, min(r, 0)^2 / 2)`. Derivatives at ties are those of the left
    state, and of a limiter that takes the first of two equal slopes.
    """

    def __init__(
        self,
        space: Space,
        dt: Any,
        boundary: Any = "periodic",
        order: int = 1,
        limiter: str = "minmod",
    ) -> None:
        pairs = named_sides(boundary, space, "Burgers")
        chosen = _limiter(order, limiter, "Burgers")
        shape = Stencil(space, dict.fromkeys(_star(space.ndim, order), 1.0), pairs, name="Burgers")
        self._set_up(shape, dt, chosen, space.spacing or (1.0,) * space.ndim)

    def _flux(self, left: list[Any], right: list[Any], axis: int, xp: Any) -> list[Any]:
        low, high = xp.maximum(left[0], 0 * left[0]), xp.minimum(right[0], 0 * right[0])
        return [xp.maximum(0.5 * low * low, 0.5 * high * high)]


class IsothermalEuler(_FiniteVolume):
    """One step of the isothermal Euler equations with the HLL flux.

    Parameters
    ----------
    space
        The grid, without components. Domain and codomain have a first axis `component`: density,
        then the momentum along each axis, in the order of the axes.
    dt
        The time step; density stays positive for `dt sum_d max |S| / h_d <= 1/2`.
    speed
        The speed of sound c: the pressure is `c^2 rho`.
    boundary
        Of the density: `"even"` is a wall, where the momentum across it is odd; `"edge"` lets
        waves out.
    order, limiter
        As for `Burgers`; slopes are those of the conserved variables.

    Notes
    -----
    `f = (m, m u + c^2 rho)`, transverse momenta are advected. At ties of wave speeds, as at rest,
    the derivative is that of the left state; the flux itself does not depend on it there.
    """

    def __init__(
        self,
        space: Space,
        dt: Any,
        speed: float = 1.0,
        boundary: Any = "periodic",
        order: int = 1,
        limiter: str = "minmod",
    ) -> None:
        pairs = named_sides(boundary, space, "IsothermalEuler")
        chosen = _limiter(order, limiter, "IsothermalEuler")
        n = space.ndim
        if not 1 <= n <= 3:
            raise ShapeError(f"IsothermalEuler takes a grid of one to three axes, got {space}")
        rows = [pairs]
        for a in range(n):
            rows.append(tuple(flipped(p) if a == b else p for b, p in enumerate(pairs)))
        axes = None if space.axes is None else ("component", *space.axes)
        vectors = Space((n + 1, *space.shape), space.dtype, axes)
        star = dict.fromkeys(_star(n, order), 1.0)
        tables = dict.fromkeys(itertools.product(range(n + 1), repeat=2), star)
        shape = Stencil(vectors, tables, rows, components=(n + 1, n + 1), name="IsothermalEuler")
        self._speed = (float(speed),)
        self._set_up(shape, dt, chosen, space.spacing or (1.0,) * n)

    def _own(self) -> dict[str, Any]:
        return {"_speed": self._speed}

    def _flux(self, left: list[Any], right: list[Any], axis: int, xp: Any) -> list[Any]:
        c = self._speed[0]
        normal = 1 + axis
        u_left, u_right = left[normal] / left[0], right[normal] / right[0]
        zero = 0 * u_left
        slow = xp.minimum(xp.minimum(u_left - c, u_right - c), zero)
        fast = xp.maximum(xp.maximum(u_left + c, u_right + c), zero)
        found = []
        for k, (a, b) in enumerate(zip(left, right, strict=True)):
            f_left, f_right = a * u_left, b * u_right
            if k == normal:
                f_left, f_right = f_left + c * c * left[0], f_right + c * c * right[0]
            top = fast * f_left - slow * f_right + slow * fast * (b - a)
            found.append(top / (fast - slow))
        return found


def _linearize(function: Callable[..., Any], point: Any) -> Callable[[Any], Any]:
    """The derivative of a function of arrays of JAX or torch along a direction."""
    if arrays.is_jax(point[0]):
        along = sys.modules["jax"].linearize(function, *point)[1]
        return lambda tangent: along(*tangent)
    jvp: Any = sys.modules["torch"].func.jvp
    return lambda tangent: jvp(function, point, tangent)[1]


def _minmod(a: Any, b: Any, xp: Any) -> Any:
    zero = 0 * a
    smaller = xp.where(abs(a) <= abs(b), a, b)
    return xp.where(a * b > 0, smaller, zero)


def _van_leer(a: Any, b: Any, xp: Any) -> Any:
    product = a * b
    alike = product > 0
    # The other branch is left out of derivatives too.
    total = xp.where(alike, a + b, 0 * a + 1.0)
    return xp.where(alike, 2.0 * product / total, 0 * a)


_LIMITERS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "minmod": _minmod,
    "van leer": _van_leer,
}


def _limiter(order: int, limiter: str, owner: str) -> str | None:
    if order not in (1, 2):
        raise ValueError(f"{owner}: the order is 1, or 2 with limited slopes, got {order!r}")
    name = limiter.replace("_", " ").replace("vanleer", "van leer")
    if name not in _LIMITERS:
        raise ValueError(f"{owner}: the limiter is 'minmod' or 'van leer', got {limiter!r}")
    return None if order == 1 else name


def _star(n: int, order: int) -> list[tuple[int, ...]]:
    return sorted(
        {
            tuple(k if a == axis else 0 for a in range(n))
            for axis in range(n)
            for k in range(-order, order + 1)
        }
    )
