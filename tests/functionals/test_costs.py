"""What functionals, their gradients, surrogates and second derivatives state, against what an
apply takes: memory as the interpreter counts it, work from the formula."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import linops as lo
from linops.cost import Cost, bytes_of
from sharding import plan

SHAPE = (64, 64, 96)


def functionals(dtype: str) -> dict[str, lo.functionals.Functional]:
    space = lo.Space(SHAPE, dtype, axes=("z", "y", "x"))
    b = space.random(1)
    w = np.random.default_rng(2).random(SHAPE).astype(b.real.dtype)
    found: dict[str, Any] = {
        "least squares": lo.LeastSquares(space),
        "of data": lo.LeastSquares(space, b),
        "weighted": lo.LeastSquares(space, b, w),
        "l1": lo.L1(space),
        "l1 weighted": lo.L1(space, w),
        "l2": lo.L2(space),
        "huber": lo.Huber(space, 0.1),
        "groups": lo.GroupL1(space, "z"),
        "translate": lo.Huber(space, 0.1).translate(b),
    }
    if not space.is_complex:
        gradient = lo.Gradient(space)
        found |= {
            "quadratic": lo.Quadratic(space, 0.1),
            "centered": lo.Quadratic(space, 0.1, b),
            "box": lo.Box(space, -9, 9),
            "scaled": 2.5 * lo.LeastSquares(space, b),
            "sum": lo.LeastSquares(space, b) + 0.5 * lo.L1(space),
            "anisotropic": lo.Huber(gradient.codomain, 0.1) @ gradient,
            "isotropic": lo.GroupL1(gradient.codomain) @ gradient,
            "total variation": lo.TotalVariation(space, eps=1e-3),
            "qggmrf": lo.QGGMRF(space, sigma_x=0.1),
        }
    return found


def peak(function: Callable[[], Any]) -> int:
    """Bytes that a second call allocates at most, its result included."""
    function()
    tracemalloc.start()
    kept = function()
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    del kept
    return held


def holds(what: str, cost: Cost, domain: Any, made: float, measured: float) -> None:
    """Within a fifth, and never below by more than a twentieth; argument and result included."""
    stated = cost.workspace + bytes_of(domain) + made
    measured += bytes_of(domain)
    assert 0.95 * measured <= stated <= 1.2 * measured, (what, stated / measured)
    assert cost.flops >= domain.size, what
    assert cost.read >= bytes_of(domain), what


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
def test_values_and_derivatives_state_what_they_take(dtype: str) -> None:
    for name, f in functionals(dtype).items():
        x, size = f.domain.random(0), bytes_of(f.domain)
        holds(name, f.cost(), f.domain, 0.0, peak(lambda f=f, x=x: f._value(x)))
        if name == "box":
            continue
        g = f.gradient
        # A gradient that is its argument makes nothing.
        taken = max(size, peak(lambda g=g, x=x: g._forward(x)))
        holds(f"{name}.gradient", g.cost(), f.domain, size, taken)
        if name in ("total variation", "qggmrf", "huber", "least squares", "l1"):
            for what, S in (("surrogate", f.surrogate(x)), ("hessian", g.jacobian(x))):
                if S.cost().flops and not isinstance(S, lo.Zero):
                    taken = max(size, peak(lambda S=S, x=x: S._forward(x)))
                    holds(f"{name} {what}", S.cost(), f.domain, size, taken)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["l1", "huber", "anisotropic", "isotropic", "weighted", "qggmrf"])
def test_a_plan_of_a_prior_needs_what_it_says(name: str) -> None:
    f = functionals("float32")[name]
    for operator in (f, f.gradient):
        p = plan(operator, devices=1, executor="serial")
        B, x = p.lower(), f.domain.random(0)
        measured = x.nbytes + peak(lambda B=B, x=x: B(x))
        stated = max(p.footprint.peak, p.footprint.resident - p.footprint.operators)
        assert 0.95 * measured <= stated <= 1.2 * measured, (operator.name, stated / measured)
