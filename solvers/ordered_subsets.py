"""Subsets of measurements, and the simultaneous algebraic technique on them (OS-SART)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.errors import ShapeError
from linops.linear_operator import LinearOperator
from linops.space import Space
from solvers.controls import bounds_pair, positive, positive_count
from solvers.decorator import Controls, solver
from solvers.elements import choose, clip, products, subtract
from solvers.loop import Solve
from solvers.measurement_weights import GRAZING, reciprocal
from solvers.result import SolverResult

__all__ = ["DataSubset", "art", "cut_subsets", "os_sart"]


class DataSubset(NamedTuple):
    """Some planes of the measurements and the operator that gives them."""

    A: LinearOperator
    planes: np.ndarray
    axis: int

    def take(self, y: Array) -> Array:
        """Its part of measurements, batch axes in front."""
        axis = y.ndim + self.axis
        return arrays.namespace(y).take(y, arrays.convert(self.planes, y), axis=axis)


def cut_subsets(
    A: LinearOperator, subsets: int | Sequence[Sequence[int]], axis: str | int = 0
) -> list[DataSubset]:
    """The operator in subsets of the planes of one axis of its codomain.

    Parameters
    ----------
    A
        A linear operator whose codomain is one array.
    subsets
        How many: subset s has the planes s, s + n, s + 2 n ...; they come in an order in which
        neighbors are far apart (bit reversal; Hudson, Larkin 1994). Or the planes of each.
    axis
        Of the codomain: views, as a rule the first.
    """
    if not isinstance(A.codomain, Space) or not A.codomain.ndim:
        raise ShapeError(f"subsets are planes of one array; {A.name} maps to {A.codomain}")
    names = [a.name for a in A.rule.codomain[0]]
    number = names.index(axis) if isinstance(axis, str) and axis in names else axis
    if not isinstance(number, int) or not -len(names) <= number < len(names):
        raise ShapeError(f"axis is {axis!r}; the codomain of {A.name} has {', '.join(names)}")
    number %= len(names)
    extent = A.codomain.shape[number]
    if isinstance(subsets, (int, np.integer)):
        count = positive_count("subsets", subsets)
        if count > extent:
            raise ShapeError(f"subsets is {count}; axis {names[number]!r} has {extent} planes")
        planes = [np.arange(s, extent, count) for s in _far_apart(count)]
    else:
        planes = [np.asarray(one, int) for one in subsets]
    if len(planes) == 1 and np.array_equal(planes[0], np.arange(extent)):
        return [DataSubset(A, planes[0], number - len(names))]
    return [DataSubset(A.rows(p, names[number]), p, number - len(names)) for p in planes]


@solver("A")
def os_sart(
    A: LinearOperator,
    y: Any,
    *,
    iterations: int,
    x0: Any = None,
    subsets: int | Sequence[Sequence[int]] = 10,
    axis: str | int = 0,
    relaxation: float = 1.0,
    decay: float = 1.0,
    bounds: tuple[float | None, float | None] | None = (0, None),
    **controls: Unpack[Controls],
) -> SolverResult:
    """SIRT's step for one subset of the measurements after the other (Wang, Jiang 2004).

        x <- clip(x + lambda C_s A_s.H R_s (y_s - A_s x)),   R_s = 1 / A_s 1, C_s = 1 / A_s.H 1

    One view a subset is SART (Andersen, Kak 1984), one subset SIRT.

    Parameters
    ----------
    A
        A linear operator with entries >= 0, its spaces single arrays.
    y
        Measurements; leading batch axes are solved side by side.
    iterations
        Passes over all subsets.
    x0, bounds
        As for `sirt`.
    subsets, axis
        As for `cut_subsets`: how many, or their planes, of which axis of the codomain.
    relaxation, decay
        lambda in (0, 2), multiplied by `decay` in (0, 1] after each pass.
    **controls
        The residual is `|y - A x|` after each pass.

    Returns
    -------
    SolverResult
    """
    relaxation, decay = _paces(relaxation, decay)
    low, high = bounds_pair(bounds)
    parts = cut_subsets(A, subsets, axis)
    return _passes("os-sart", A, y, iterations, x0, parts, _weights,
                   (relaxation, decay, low, high), controls)  # fmt: skip


@solver("A")
def art(
    A: LinearOperator,
    y: Any,
    *,
    iterations: int,
    x0: Any = None,
    axis: str | int = 0,
    relaxation: float = 1.0,
    decay: float = 1.0,
    bounds: tuple[float | None, float | None] | None = None,
    **controls: Unpack[Controls],
) -> SolverResult:
    """Kaczmarz's method, plane after plane of the measurements (Gordon, Bender, Herman 1970).

        x <- clip(x + lambda A_s.H R_s (y_s - A_s x) / |R_s^(1/2) A_s|^2),   R_s = 1 / |rows|^2

    A plane with one measurement is a row of A: x is projected onto what it says (Kaczmarz 1937).
    In a plane with several, a view, they move x at once, no further than is stable.

    Parameters
    ----------
    A
        A linear operator, of any sign, its spaces single arrays.
    y
        Measurements; leading batch axes are solved side by side.
    iterations
        Passes over all planes.
    x0
        Start, zero by default: without bounds the limit for consistent data is then the solution
        of least norm.
    axis
        Of the codomain, whose planes are taken one by one, in an order in which neighbors are
        far apart.
    relaxation, decay, bounds
        As for `os_sart`; by default nothing is bounded.
    **controls
        The residual is `|y - A x|` after each pass.

    Returns
    -------
    SolverResult
    """
    relaxation, decay = _paces(relaxation, decay)
    low, high = bounds_pair(bounds)
    parts = cut_subsets(A, _planes(A, axis), axis)
    return _passes("art", A, y, iterations, x0, parts, _row_weights,
                   (relaxation, decay, low, high), controls)  # fmt: skip


def _paces(relaxation: float, decay: float) -> tuple[float, float]:
    relaxation, decay = positive("relaxation", relaxation), positive("decay", decay)
    if relaxation >= 2 or decay > 1:
        raise ValueError(
            f"relaxation is {relaxation}, decay {decay}; they are in (0, 2) and in (0, 1]"
        )
    return relaxation, decay


def _passes(
    name: str,
    A: LinearOperator,
    y: Any,
    iterations: int,
    x0: Any,
    parts: list[DataSubset],
    weigh: Callable[[LinearOperator, Array], tuple[Array, Any]],
    options: tuple[float, float, float | None, float | None],
    controls: Controls,
) -> SolverResult:
    """Passes over subsets, each with weights R of its rows and C of the columns."""
    relaxation, decay, low, high = options
    run = Solve(
        name, A, y, iterations=iterations, x0=x0,
        settings={
            "subsets": [part.planes for part in parts], "axis": parts[0].axis,
            "options": list(options),
        },
        **controls,
    )  # fmt: skip
    run.keep_state(x=A.domain)
    x = run.x
    run.begin_at(run.first_residual())
    ones = arrays.namespace(x).ones_like(x[(0,) * len(run.batch)])
    weights = [weigh(part.A, ones) for part in parts] if run.going else []
    while run.going:
        pace = relaxation * decay**run.iteration
        moved = x
        for part, (R, C) in zip(parts, weights, strict=True):
            update = part.A.H @ (R * (part.take(run.y) - part.A @ moved))
            moved = clip(moved + arrays.cast(pace * (C * update), A.domain.dtype), low, high)
        x = choose(run.active, moved, x)
        r = subtract(run.y, A @ x)
        (rr,) = products((A.codomain, r, r))
        run.record(np.sqrt(rr), x, lambda x=x: {"x": x})  # type: ignore[misc]
    return run.result()


def _planes(A: LinearOperator, axis: str | int) -> int:
    """How many planes the axis has; a wrong axis is told by `cut_subsets`."""
    if not isinstance(A.codomain, Space) or not A.codomain.ndim:
        return 1
    names = [a.name for a in A.rule.codomain[0]]
    number = names.index(axis) if isinstance(axis, str) and axis in names else axis
    valid = isinstance(number, int) and -len(names) <= number < len(names)
    return max(A.codomain.shape[number], 1) if valid else 1  # type: ignore[index]


def _weights(A: LinearOperator, ones: Array) -> tuple[Array, Array]:
    rows = A @ ones
    columns = A.H @ arrays.namespace(rows).ones_like(rows)
    R, C = (reciprocal(s, 1.0, GRAZING * arrays.largest(s)) for s in (rows, columns))
    return R, C


def _row_weights(A: LinearOperator, ones: Array) -> tuple[Array, float]:
    squares = arrays.convert(A.H.gram().diagonal(limit=None), ones)
    R = reciprocal(squares)
    size = float(A.gram(R).norm()) if A.codomain.size > 1 else 1.0
    return R, 1.0 / size if size else 0.0


def _far_apart(count: int) -> list[int]:
    """The numbers below `count` in the order of their reversed bits."""
    bits = max(count - 1, 1).bit_length()
    return sorted(range(count), key=lambda k: int(f"{k:0{bits}b}"[::-1], 2))
