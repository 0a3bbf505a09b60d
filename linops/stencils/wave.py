"""Acoustic waves: one step, of second order in time or of first order on the staggered grid.

A step is a composition of leaves, so powers, adjoints, blocks and plans are those of every
operator: on several devices the pressure is exchanged and the field before it is not. Many steps
with sources and receivers are in `linops/stencils/propagation.py`.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from linops import apply, arrays
from linops.algebra.scaled import Scaled
from linops.algebra.stacks import HorizontalStack, HStack, VerticalStack, VStack, hstack, vstack
from linops.elementary.diagonal import Diagonal
from linops.elementary.identity import Identity, Zero
from linops.errors import ShapeError
from linops.linear_operator import LinearOperator
from linops.space import Space
from linops.stencils.derivatives import StaggeredGradient
from linops.stencils.diffusion import on_faces
from linops.stencils.faces import from_faces, named_sides
from linops.stencils.laplacian import Laplacian
from linops.stencils.weights import checked_order, staggered, symbol

__all__ = ["AcousticWave", "FirstOrderWave", "stable_step", "wave_energy"]


def stable_step(space: Space, velocity: Any, order: int = 2, form: str = "second") -> float:
    """The largest stable time step: `max(c) dt sqrt(sum_d 1/h_d^2) <= C`.

    C is `2 / sqrt(|s(pi)|)` with the symbol of the second difference (1, .8660, .8135, .7844 for
    orders 2, 4, 6, 8), and `1 / sum |s_m|` for the staggered form.
    """
    steps = np.asarray(space.spacing or (1.0,) * space.ndim, float)
    if form == "second":
        limit = 2.0 / math.sqrt(abs(float(symbol(order, math.pi))))
    else:
        limit = 2.0 / sum(map(abs, staggered(order).values()))
    fastest = float(np.max(arrays.to_numpy(np.asarray(velocity))))
    return limit / (fastest * math.sqrt(float((1.0 / steps**2).sum())))


class AcousticWave(VerticalStack):
    """One time step of `p_tt = c^2 Laplacian p`: `(p, p-) -> (p+, p)`.

    Parameters
    ----------
    space
        The grid; domain and codomain are two fields on it.
    velocity
        c, a number or an array of the space's shape.
    dt
        The time step. One that is not stable warns, and the warning gives the limit.
    order
        Order of accuracy in space: 2, 4, 6 or 8.
    boundary
        As for `Stencil`, without constants; `"odd"` is a pressure-free surface, `"even"` a wall.
    damping
        A sponge: an array of factors up to 1 by which both fields are multiplied after the step.
    form
        `"second"`, or `"first"`: pressure and particle velocities on faces, `(p, v) -> (p, v)`,
        see `FirstOrderWave`.
    density
        Of the first-order form, a number or an array; 1 by default.

    Notes
    -----
    `p+ = 2 p - p- + dt^2 c^2 Laplacian p`. `step ** n` is n steps, and its adjoint runs the adjoint
    steps and stores nothing. Where nothing damps a step can be undone: `(p+, p)` exchanged is
    stepped backwards.

    >>> import numpy as np
    >>> step = AcousticWave(Space(4), 1.0, 0.5, boundary="periodic")
    >>> p = np.array([0, 1, 0, 0], "float32")
    >>> (step @ (p, p))[0]
    array([0.25, 0.5 , 0.25, 0.  ], dtype=float32)
    """

    _exact: ClassVar[bool] = True

    def __new__(cls, *args: Any, form: str = "second", **options: Any) -> Any:
        if form not in ("second", "first"):
            raise ValueError(f"AcousticWave: the form is 'second' or 'first', got {form!r}")
        if form == "first":
            return FirstOrderWave(*args, **options)
        if options.get("density") is not None:
            raise ValueError(
                "AcousticWave: a density belongs to form='first'; this form knows c alone"
            )
        return object.__new__(cls)

    def __init__(
        self,
        space: Space,
        velocity: Any,
        dt: Any,
        order: int = 2,
        boundary: Any = "zero",
        damping: Any = None,
        form: str = "second",
        density: Any = None,
    ) -> None:
        order = checked_order(order, "AcousticWave")
        pairs = named_sides(boundary, space, "AcousticWave")
        velocity = _field(velocity, space, "velocity")
        _warn_if_unstable(space, velocity, dt, order, "second")
        laplacian = Laplacian(space, order, pairs)
        square = (velocity * dt) ** 2
        moved = square * laplacian if not _is_field(square) else Diagonal(square, space) @ laplacian
        one = Identity(space)
        rows: list[LinearOperator] = [
            HStack([2.0 * one + moved, -1.0 * one]),
            HStack([one, Zero(space, space)]),
        ]
        if damping is not None:
            sponge = Diagonal(_field(damping, space, "damping"), space)
            rows = [sponge @ row for row in rows]
        super().__init__(rows)
        self.__dict__["name"] = "AcousticWave"

    def _apply(self, x: Any) -> Any:
        found = self._pass(x)
        if found is None:
            return super()._apply(x)
        (p, before), laplacian, factor = x, *found
        return laplacian._passes_by_row(False).apply(p, False, (p, before, -1, factor)), p

    def _apply_adjoint(self, y: Any) -> Any:
        found = self._pass(y)
        if found is None:
            return super()._apply_adjoint(y)
        (a, b), laplacian, factor = y, *found
        moved = a
        if factor.size > 1:
            moved, factor = factor.reshape(a.shape) * a, np.ones(1, a.dtype)
        passes = laplacian._passes_by_row("self_adjoint" not in laplacian.tags)
        return passes.apply(moved, False, (a, b, 1, factor)), -a

    def _make_adjoint(self) -> LinearOperator:
        return _AdjointStep([term.H for term in self.terms])

    def _pass(self, members: Any) -> tuple[Any, np.ndarray] | None:
        """The Laplacian and `dt^2 c^2`, where one compiled pass makes a step of these members."""
        row = self.terms[0]
        if not isinstance(row, HStack):
            return None
        moved: Any = row.terms[0].terms[1]
        scaled = isinstance(moved, Scaled)
        laplacian = moved.base if scaled else moved.terms[1]
        factor = moved.scalar if scaled else moved.terms[0].array
        space = laplacian.domain
        hosted = all(type(x) is np.ndarray and x.shape == space.shape for x in members)
        hosted = hosted and not space.is_complex
        if (
            not hosted
            or laplacian._compiled is not None
            or not (scaled or type(factor) is np.ndarray)
        ):
            return None
        return laplacian, np.asarray(factor, space.dtype).reshape(-1)


class _AdjointStep(HorizontalStack):
    """The adjoint of a step, in the passes of the step."""

    def _make_adjoint(self) -> LinearOperator:
        return VStack([term.H for term in self.terms])

    def _apply(self, x: Any) -> Any:
        return self.H._apply_adjoint(x)

    def _apply_adjoint(self, y: Any) -> Any:
        return self.H._apply(y)


def wave_energy(
    space: Space, state: Any, velocity: Any, dt: float, order: int = 2, boundary: Any = "zero"
) -> float:
    """The energy that steps of `AcousticWave` conserve, of a state `(p+, p)`.

    `1/2 ||(p+ - p) / dt||^2 / c^2 - 1/2 <p+, Laplacian p>`
    """
    after, before = state
    L = Laplacian(space, order, boundary)
    rate = (after - before) / (dt * velocity)
    return float(0.5 * space.inner(rate, rate) - 0.5 * space.inner(after, L @ before))


def FirstOrderWave(
    space: Space,
    velocity: Any,
    dt: Any,
    order: int = 2,
    boundary: Any = "zero",
    damping: Any = None,
    density: Any = None,
) -> LinearOperator:
    """One leapfrog step of `v_t = -grad p / rho`, `p_t = -kappa div v`, with `kappa = rho c^2`.

    Fields are the pressure in cells and one particle velocity on the faces of each axis; v stands
    half a step before p. `v+ = v - dt (1/rho)_f G p`, `p+ = p - dt kappa D v+`, with
    `D = -(G.H @ W)`. `||p||^2 / kappa + <v, v+>` in the weight rho W is conserved.
    """
    order = checked_order(order, "AcousticWave")
    pairs = named_sides(boundary, space, "AcousticWave")
    velocity = _field(velocity, space, "velocity")
    density = _field(1.0 if density is None else density, space, "density")
    _warn_if_unstable(space, velocity, dt, order, "first")
    gradient = StaggeredGradient(space, order, pairs)
    kappa = density * velocity**2
    one = Identity(space)
    drifts: list[LinearOperator] = [one]
    kicks: list[LinearOperator] = [
        hstack([one, *(Zero(term.codomain, space) for term in gradient.terms)])
    ]
    faces = [term.codomain for term in gradient.terms]
    lightness = on_faces(gradient, space, 1.0 / density, pairs, "arithmetic", weighted=False)
    for axis, term in enumerate(gradient.terms):
        push = -dt * (lightness[axis] @ term)
        row: list[LinearOperator] = [push]
        row += [
            Identity(face) if other == axis else Zero(face, faces[axis])
            for other, face in enumerate(faces)
        ]
        kicks.append(hstack(row))
        back = from_faces(term, axis)
        scaled = Diagonal(kappa, space) @ back if _is_field(kappa) else kappa * back
        drifts.append(-dt * scaled)
    rows: list[LinearOperator] = [hstack(drifts)]
    for axis, face in enumerate(faces):
        rows.append(
            hstack(
                [
                    Zero(space, face),
                    *(
                        Identity(face) if other == axis else Zero(source, face)
                        for other, source in enumerate(faces)
                    ),
                ]
            )
        )
    step: LinearOperator = vstack(rows) @ vstack(kicks)
    if damping is not None:
        sponge = Diagonal(_field(damping, space, "damping"), space)
        keep = hstack([sponge, *(Zero(face, space) for face in faces)])
        step = vstack([keep, *rows[1:]]) @ step
    return step


def _field(value: Any, space: Space, what: str) -> Any:
    if not arrays.is_array(value):
        value = np.asarray(value)
    if value.ndim and tuple(value.shape) != space.shape:
        raise ShapeError(
            f"AcousticWave: the {what} is a number or an array of the shape {space.shape}, got "
            f"{tuple(value.shape)}"
        )
    if not value.ndim and arrays.is_numpy(value):
        return float(value)
    return value


def _is_field(value: Any) -> bool:
    return arrays.is_array(value) and bool(value.ndim)


def _warn_if_unstable(space: Space, velocity: Any, dt: Any, order: int, form: str) -> None:
    if not (arrays.is_concrete(velocity) if arrays.is_array(velocity) else True):
        return
    if arrays.is_array(dt) and not arrays.is_concrete(dt):
        return
    host = arrays.to_numpy(velocity) if arrays.is_array(velocity) else velocity
    limit = stable_step(space, host, order, form)
    if float(dt) > limit * (1 + 1e-12):
        apply.warn(
            f"AcousticWave: dt = {float(dt):g} is not stable, waves will grow without bound; with "
            f"this velocity, spacing and order {order} the limit is dt = {limit:.6g}"
        )
