"""What solvers over functionals share: their controls, their start, and the step that fits.

These solvers have no measurements of their own; a functional holds them. The residual in their
history is the length of the gradient mapping, which is zero at a minimiser.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from linops import arrays
from linops.operator import Operator
from linops.space import AnySpace, ProductSpace
from linops.structure import leaves
from solvers.decorator import Controls
from solvers.loop import Solve

__all__ = ["begin_minimization", "find_curvature", "proximal"]


class _FunctionalProblem(NamedTuple):
    """What a run sees in the place of an operator."""

    domain: AnySpace
    codomain: AnySpace
    name: str
    precision: Any
    tags: frozenset[str] = frozenset()


def begin_minimization(
    name: str,
    space: AnySpace,
    parts: Mapping[str, Any],
    x0: Any,
    iterations: int,
    settings: Mapping[str, Any],
    controls: Controls,
) -> Solve:
    """A run in `space`, from `x0` or from zero.

    Parameters
    ----------
    name
        Of the algorithm.
    space
        Where the solution lives.
    parts
        The functionals and operators that the problem is made of, by name: they identify it, and
        their arrays say in which library it is solved where there is no start.
    x0, iterations, controls
        As the solvers document them.
    settings
        Numbers that identify the solve too.
    """
    operators = [part for part in parts.values() if isinstance(part, Operator)]
    start = x0
    if x0 is None:
        held = [array for operator in operators for array in leaves(operator)]
        like = next((array for array in held if not arrays.is_numpy(array)), None)
        start = space.zeros() if like is None else space.zeros(like)
    elif isinstance(space, ProductSpace):
        start = tuple(x0)
    problem: Any = _FunctionalProblem(space, space, operators[0].name, operators[0].precision)
    run = Solve(
        name, problem, start, iterations=iterations, settings={**parts, **settings}, **controls
    )
    run.x = run.y
    return run


def find_curvature(f: Any, x: Any) -> float | None:
    """The largest curvature of a functional at x: its step is the inverse. None where the gradient
    declares no derivative."""
    gradient: Any = f.gradient
    try:
        hessian = gradient.jacobian(x)
    except TypeError:
        return None
    value = float(hessian.norm())
    return value if math.isfinite(value) else None


def proximal(prior: Any, x: Any, step: Any) -> Any:
    """The proximal map of a functional; `x` itself of None, which stands for 0."""
    return x if prior is None else prior.prox(x, step)
