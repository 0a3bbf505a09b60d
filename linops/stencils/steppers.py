"""Explicit steps in time: Euler, RK4, SSPRK(5,4) and low-storage RK4.

A step of a linear right-hand side is a polynomial in it, hence a LinearOperator with an exact
adjoint; of a nonlinear one it is an Operator whose Jacobian follows by the chain rule.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from linops import arrays
from linops.cost import Cost, bytes_of
from linops.elementary.identity import Identity
from linops.errors import ShapeError
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.rule import Rule

__all__ = ["LSRK4", "RK4", "SSPRK54", "Euler", "advective_step", "diffusive_step"]

# Each stage: u_s = sum of weights of earlier states + dt * (sum of weights of L(states)).
_Stage = tuple[dict[int, float], dict[int, float]]

_RK4: tuple[_Stage, ...] = (
    ({0: 1.0}, {0: 0.5}),
    ({0: 1.0}, {1: 0.5}),
    ({0: 1.0}, {2: 1.0}),
    ({0: 1.0}, {0: 1 / 6, 1: 1 / 3, 2: 1 / 3, 3: 1 / 6}),
)
# R. Spiteri and S. Ruuth, SIAM J. Numer. Anal. 40, 2002.
_SSPRK54: tuple[_Stage, ...] = (
    ({0: 1.0}, {0: 0.391752226571890}),
    ({0: 0.444370493651235, 1: 0.555629506348765}, {1: 0.368410593050371}),
    ({0: 0.620101851488403, 2: 0.379898148511597}, {2: 0.251891774271694}),
    ({0: 0.178079954393132, 3: 0.821920045606868}, {3: 0.544974750228521}),
    (
        {2: 0.517231671970585, 3: 0.096059710526147, 4: 0.386708617503269},
        {3: 0.063692468666290, 4: 0.226007483236906},
    ),
)
# M. Carpenter and C. Kennedy, NASA TM 109112, 1994.
_LOW_A = (
    0.0,
    -567301805773 / 1357537059087,
    -2404267990393 / 2016746695238,
    -3550918686646 / 2091501179385,
    -1275806237668 / 842570457699,
)
_LOW_B = (
    1432997174477 / 9575080441755,
    5161836677717 / 13612068292357,
    1720146321549 / 2090206949498,
    3134564353537 / 4481467310338,
    2277821191437 / 14882151754819,
)


def Euler(right: Operator, dt: Any) -> Operator:
    """`u + dt L(u)`."""
    return _stepped(right, dt, (({0: 1.0}, {0: 1.0}),), "Euler")


def RK4(right: Operator, dt: Any) -> Operator:
    """The classical Runge-Kutta step of order 4."""
    return _stepped(right, dt, _RK4, "RK4")


def SSPRK54(right: Operator, dt: Any) -> Operator:
    """The strong-stability-preserving step of five stages and order 4 (Spiteri and Ruuth)."""
    return _stepped(right, dt, _SSPRK54, "SSPRK(5,4)")


def LSRK4(right: Operator, dt: Any) -> Operator:
    """The step of order 4 in two registers (Carpenter and Kennedy)."""
    return _stepped(right, dt, None, "LSRK4")


def advective_step(speeds: Any, spacing: Any, courant: float = 0.5) -> float:
    """`C / sum_d (max |speed_d| / h_d)`: the time step that keeps within the CFL number C."""
    steps = np.broadcast_to(np.asarray(spacing, float), (len(speeds),))
    largest = [float(abs(arrays.to_numpy(np.asarray(s))).max()) for s in speeds]
    return courant / float(sum(s / h for s, h in zip(largest, steps.tolist(), strict=True)))


def diffusive_step(nu: Any, spacing: Any, courant: float = 1.0) -> float:
    """`C / (2 sum_d (max nu / h_d^2))`: at C = 1 the stability limit of explicit Euler."""
    steps = np.atleast_1d(np.asarray(spacing, float))
    largest = float(np.max(arrays.to_numpy(np.asarray(nu))))
    return courant / (2.0 * largest * float((1.0 / steps**2).sum()))


def _stepped(right: Operator, dt: Any, stages: Any, name: str) -> Operator:
    if not isinstance(right, Operator):
        raise TypeError(f"{name} steps an Operator, got {type(right).__name__}")
    if right.domain.shape != right.codomain.shape or right.domain.dtype != right.codomain.dtype:
        raise ShapeError(
            f"{name}: the right-hand side maps a space to itself, {right.name} maps "
            f"{right.domain} to {right.codomain}"
        )
    if isinstance(right, LinearOperator):
        polynomial: Operator = _polynomial(right, dt, _coefficients(stages))
        return polynomial
    return TimeStep(right, dt, stages, name)


class TimeStep(Operator):
    """One explicit step of `u' = L(u)`; made by `Euler`, `RK4`, `SSPRK54` and `LSRK4`."""

    batched = True
    _exact: ClassVar[bool] = True

    def __init__(self, right: Operator, dt: Any, stages: Any, name: str) -> None:
        Operator.__init__(self, right.domain, right.domain, name=name)
        self.right = right
        self.dt = dt if arrays.is_array(dt) else float(dt)
        self._stages = None if stages is None else _frozen(stages)

    def _apply(self, x: Any) -> Any:
        return self._run(x, lambda _, u: self.right._forward(u))[-1]

    def _jacobian(self, x: Any) -> LinearOperator:
        slopes: list[LinearOperator] = []

        def right(stage: int, u: Any) -> Any:
            slopes.append(self.right._jacobian(u))
            return self.right._forward(u)

        self._run(x, right)
        return StepJacobian(tuple(slopes), self.dt, self._stages, self.name)

    def _run(self, x: Any, right: Any) -> list[Any]:
        if self._stages is None:
            return _low_storage(x, self.dt, right)
        return _staged(x, self.dt, self._stages, right)

    def _derive_rule(self) -> Rule | None:
        return _powered(self.right.rule, 5 if self._stages is None else len(self._stages))

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> Operator | None:
        return None

    def _cost(self) -> Cost:
        return _costs(
            [self.right.cost()] * (5 if self._stages is None else len(self._stages)), self
        )


class StepJacobian(LinearOperator):
    """The derivative of a step: the step of the derivatives of its stages."""

    batched = True
    _exact: ClassVar[bool] = True

    def __init__(self, slopes: tuple[LinearOperator, ...], dt: Any, stages: Any, name: str) -> None:
        space = slopes[0].domain
        super().__init__(space, space, name=f"{name} derivative")
        self.slopes, self.dt, self._stages = slopes, dt, stages

    def _apply(self, x: Any) -> Any:
        def right(stage: int, u: Any) -> Any:
            return self.slopes[stage]._forward(u)

        if self._stages is None:
            return _low_storage(x, self.dt, right)[-1]
        return _staged(x, self.dt, self._stages, right)[-1]

    def _apply_adjoint(self, y: Any) -> Any:
        dt = self.dt
        if self._stages is None:
            # d <- A_s d + dt L u; u <- u + B_s d, backwards.
            u, d = y, None
            for stage in reversed(range(5)):
                d = _scaled(u, _LOW_B[stage]) if d is None else _sum(d, _scaled(u, _LOW_B[stage]))
                u = _sum(u, _scaled(self.slopes[stage]._backward(d), dt))
                d = _scaled(d, _LOW_A[stage])
            return u
        count = len(self._stages)
        totals: list[Any] = [None] * count + [y]

        def put(number: int, value: Any) -> None:
            totals[number] = value if totals[number] is None else _sum(totals[number], value)

        # The cotangent of L(state) gathers from all stages that read it, before it goes on.
        rates: list[Any] = [None] * count
        for stage in reversed(range(count)):
            state = totals[stage + 1]
            if state is not None:
                for number, weight in self._stages[stage][0]:
                    put(number, _scaled(state, weight))
                for number, weight in self._stages[stage][1]:
                    part = _scaled(_scaled(state, dt), weight)
                    rates[number] = part if rates[number] is None else _sum(rates[number], part)
            if rates[stage] is not None:
                put(stage, self.slopes[stage]._backward(rates[stage]))
        return totals[0]

    def _derive_rule(self) -> Rule | None:
        return _powered(self.slopes[0].rule, len(self.slopes))

    def _cost(self) -> Cost:
        return _costs([slope.cost() for slope in self.slopes], self)


def _polynomial(right: LinearOperator, dt: Any, coefficients: list[float]) -> Any:
    """`sum_k c_k (dt A)^k` by Horner's scheme, of parts that a planner can take apart."""
    result: Any = Identity(right.domain)
    for k in range(len(coefficients) - 1, 0, -1):
        factor = coefficients[k] / coefficients[k - 1]
        result = Identity(right.domain) + (factor * dt) * (right @ result)
    return result


def _coefficients(stages: Any) -> list[float]:
    """The polynomial that a method is for a linear right-hand side, from the constant on."""
    if stages is None:
        one, delta = np.array([1.0]), np.array([0.0])
        for a, b in zip(_LOW_A, _LOW_B, strict=True):
            delta = np.polynomial.polynomial.polyadd(a * delta, np.append(0.0, one))
            one = np.polynomial.polynomial.polyadd(one, b * delta)
        return [float(c) for c in one]
    states = [np.array([1.0])]
    for own, slopes in stages:
        total = np.array([0.0])
        for number, weight in own.items():
            total = np.polynomial.polynomial.polyadd(total, weight * states[number])
        for number, weight in slopes.items():
            rate = np.append(0.0, states[number])
            total = np.polynomial.polynomial.polyadd(total, weight * rate)
        states.append(total)
    return [float(c) for c in states[-1]]


def _staged(x: Any, dt: Any, stages: Any, right: Any) -> list[Any]:
    states, rates = [x], []
    for stage, (own, slopes) in enumerate(stages):
        rates.append(right(stage, states[stage]))
        total: Any = None
        for number, weight in own:
            part = states[number] if weight == 1.0 else _scaled(states[number], weight)
            total = part if total is None else _sum(total, part)
        for number, weight in slopes:
            total = _sum(total, _scaled(_scaled(rates[number], dt), weight))
        states.append(total)
    return states


def _low_storage(x: Any, dt: Any, right: Any) -> list[Any]:
    d: Any = None
    for stage in range(5):
        rate = _scaled(right(stage, x), dt)
        d = rate if d is None else _sum(_scaled(d, _LOW_A[stage]), rate)
        x = _sum(x, _scaled(d, _LOW_B[stage]))
    return [x]


def _scaled(x: Any, factor: Any) -> Any:
    if isinstance(x, tuple):
        return tuple(_scaled(part, factor) for part in x)
    if arrays.is_array(factor):
        factor = arrays.cast(arrays.convert(factor, x), _real(x))
    return x * factor


def _real(x: Any) -> np.dtype:
    kinds = {"complex64": "float32", "complex128": "float64"}
    dtype = arrays.dtype_of(x)
    return np.dtype(kinds.get(dtype.name, dtype.name))


def _sum(a: Any, b: Any) -> Any:
    if isinstance(a, tuple):
        return tuple(_sum(p, q) for p, q in zip(a, b, strict=True))
    return a + b


def _frozen(stages: Any) -> Any:
    """Stages as tuples, which can be hashed."""
    return tuple(
        tuple(tuple(part.items()) if isinstance(part, dict) else part for part in stage)
        for stage in stages
    )


def _powered(rule: Rule, count: int) -> Rule | None:
    """The rule of so many applications one after the other; None where no axis stays aligned."""
    from linops.relations import product_rule

    return product_rule([rule] * count)


def _costs(costs: list[Cost], operator: Operator) -> Cost:
    total = sum(costs[1:], costs[0])
    states = len(costs) + 2
    held = states * bytes_of(operator.domain) * 2
    return Cost(total.flops, total.read, total.written, total.workspace + held)
