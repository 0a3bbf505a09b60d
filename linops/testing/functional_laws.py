"""What is true of every functional: its derivatives, its proximal map, its surrogate, its blocks.

gradient     f(x + h d) = f(x) + h Re <gradient, d> + O(h^2)
prox         p = prox(x, t) minimizes  |u - x|^2 / 2 + t f(u)
firm         |p - q|^2 <= Re <p - q, x - y>                      (convex functionals)
conjugate    z = (x - prox(x / t, 1 / t) t) is conjugate_prox(x, t), a subgradient at the prox
surrogate    f(x + d) <= f(x) + Re <gradient, d> + <d, S d> / 2
blocks       sum_i f.block(a, i)(x[i with halo]) = f(x), aligned axes of the gradient likewise
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from linops.relations import positions
from linops.rule import Relation
from linops.structure import structure
from linops.testing.block_law import block_input, cut, part_of, ragged_ranges, split_axes
from linops.testing.functional_subject import SIZES, STEPS, FunctionalSubject, inner, norm, plus
from linops.testing.subject import Failure, NotApplicable, each, elements, host
from linops.testing.taylor import taylor_test

__all__ = [
    "check_blocks",
    "check_conjugate",
    "check_firm",
    "check_gradient",
    "check_hessian",
    "check_padded_blocks",
    "check_prox",
    "check_surrogate",
]

TRIES = 4
"""Points of each size for a derivative: one of them lies off every kink."""


def check_gradient(s: FunctionalSubject) -> None:
    """The value changes as the gradient says, and the Jacobian is the gradient as a row."""
    _ = s.gradient
    f = s.functional
    for number, size in enumerate(SIZES):
        points = (s.point(10 * number + salt + 2, size) for salt in range(TRIES))
        _taylor(s, f, points, "the gradient is not that of the value")
    one = np.asarray(1, f.codomain.dtype)
    row = host(f.jacobian(s.x).H(one))
    s.close(s.space, row, s.gradient, norm(s.x), "jacobian(x).H(1) is not the gradient")


def check_hessian(s: FunctionalSubject) -> None:
    """The gradient changes as its Jacobian says, and that is symmetric."""
    H = s.hessian(s.x)
    g = s.functional.gradient
    for number, size in enumerate(SIZES):
        points = (s.point(10 * number + salt + 2, size) for salt in range(TRIES))
        _taylor(s, g, points, "the Hessian is not the derivative of the gradient")
    u, v = s.space.random(s.generator(50)), s.space.random(s.generator(51))
    Hu, Hv = host(H(u)), host(H(v))
    left, right = inner(Hu, v), inner(u, Hv)
    if not abs(left - right) <= 64 * s.eps * (norm(Hu) * norm(v) + norm(u) * norm(Hv)):
        raise Failure(
            f"the Hessian is not symmetric: <H u, v> = {left:.7g}, <u, H v> = {right:.7g}"
        )


def check_prox(s: FunctionalSubject) -> None:
    """No point does better than the proximal one: neither near, in every entry, nor far."""
    s.needs_prox()
    f = s.functional
    for number, (step, size) in enumerate((t, r) for t in STEPS for r in (1.0, 8.0)):
        x = s.point(60 + number, size)
        p = host(f.prox(x, step))

        def objective(u: Any, x: Any = x, step: float = step) -> float:
            return 0.5 * norm(plus(u, -1.0, x)) ** 2 + step * float(f(u))

        least = objective(p)
        if not np.isfinite(least):
            raise Failure(f"at prox(x, {step}) the functional is {f(p)}")
        slack = 64 * s.eps * (abs(least) + step * abs(float(f(p))) + norm(x) ** 2 / 2)
        for u, where in _rivals(s, x, p):
            other = objective(u)
            if other < least - slack:
                raise Failure(
                    f"prox(x, {step}) is no minimizer: |u - x|^2 / 2 + {step} f(u) is "
                    f"{least:.9g} there and {other:.9g} {where}"
                )


def check_firm(s: FunctionalSubject) -> None:
    """The proximal map of a convex functional is firmly nonexpansive."""
    s.needs_prox()
    f = s.functional
    for number, step in enumerate(STEPS):
        x, y = s.point(70 + number), s.point(80 + number, 4.0)
        p, q = host(f.prox(x, step)), host(f.prox(y, step))
        moved, given = plus(p, -1.0, q), plus(x, -1.0, y)
        left, right = norm(moved) ** 2, inner(moved, given)
        if left > right + 64 * s.eps * (norm(x) + norm(y)) ** 2:
            raise Failure(
                f"prox(., {step}) is not firmly nonexpansive: |p - q|^2 = {left:.7g} exceeds "
                f"<p - q, x - y> = {right:.7g}"
            )


def check_conjugate(s: FunctionalSubject) -> None:
    """Moreau's identity, and that the dual point is a subgradient at the primal one."""
    s.needs_prox()
    f = s.functional
    for number, t in enumerate(STEPS):
        x = s.point(90 + number, 2.0)
        z = host(f.conjugate_prox(x, t))
        p = host(f.prox(each(lambda part, t=t: np.asarray(part / t, part.dtype), x), 1 / t))
        s.close(
            s.space, plus(z, t, p), x, norm(x),
            f"conjugate_prox(x, {t}) + {t} prox(x / {t}, {1 / t:.3g}) is not x",
        )  # fmt: skip
        at = float(f(p))
        for u, where in _rivals(s, x, p):
            d = plus(u, -1.0, p)
            found, bound = float(f(u)), at + inner(z, d)
            # z is a difference: its rounding is that of x.
            sizes = (norm(z) + norm(x)) * (norm(p) + norm(d))
            if found < bound - 128 * s.eps * (abs(at) + abs(bound) + sizes):
                raise Failure(
                    f"conjugate_prox(x, {t}) is no subgradient at prox(x / {t}, {1 / t:.3g}): f is "
                    f"{found:.9g}, its bound {bound:.9g} {where}"
                )


def check_surrogate(s: FunctionalSubject) -> None:
    """The quadratic of the surrogate lies above the functional; it is symmetric and positive."""
    f = s.functional
    S = s.surrogate(s.x)
    if not {"self_adjoint", "psd"} <= S.tags:
        raise Failure(f"the surrogate has the tags {sorted(S.tags)}, not self_adjoint and psd")
    u, v = s.space.random(s.generator(100)), s.space.random(s.generator(101))
    Su, Sv = host(S(u)), host(S(v))
    left, right = inner(Su, v), inner(u, Sv)
    scale = norm(Su) * norm(v) + norm(u) * norm(Sv)
    if not abs(left - right) <= 64 * s.eps * scale:
        raise Failure(f"the surrogate is not symmetric: {left:.7g} against {right:.7g}")
    if inner(Su, u) < -64 * s.eps * scale:
        raise Failure("the surrogate is not positive")
    for number, size in enumerate(SIZES):
        x = s.point(110 + number, size)
        S, at, slope = s.surrogate(x), float(f(x)), host(f.gradient(x))
        directions = [s.space.random(s.generator(120 + k)) for k in range(3)]
        directions += [each(np.array, slope), plus(each(np.zeros_like, x), -1.0, x)]
        for d in directions:
            for move in (1e-2, 1.0, 2.0, 1e3):
                if s.given is not None and move > 1:
                    continue
                far = plus(each(np.zeros_like, x), move, d)
                value = float(f(plus(x, 1.0, far)))
                curve = inner(far, S(far)) / 2
                bound = at + inner(slope, far) + curve
                slack = 128 * s.eps * (abs(at) + abs(inner(slope, far)) + curve + norm(x) ** 2)
                if value > bound + slack:
                    raise Failure(
                        f"the surrogate does not majorize: f is {value:.7g} and its bound "
                        f"{bound:.7g} after a step of length {norm(far):.3g}"
                    )


def check_blocks(s: FunctionalSubject) -> None:
    """The blocks of a ragged split add up; those of the gradient are its planes."""
    _needs_axes(s)
    for axis, n in split_axes(s.functional):
        _adds_up(s, axis, ragged_ranges(n)[:-2], padded=False)
        if _stands(s, axis):
            _side_by_side(s, axis, ragged_ranges(n), padded=False)


def check_padded_blocks(s: FunctionalSubject) -> None:
    """The same of equal shares past the end, where NaN lies; their structure is equal."""
    _needs_axes(s)
    f = s.functional
    for axis, n in split_axes(f):
        share = max(1, (n + 1) // 2)
        _adds_up(s, axis, [(i, i + share) for i in range(0, n, share)], padded=True)
        starts = (0, n - share) if f.rule.periodic(axis) else (-1, 0, n - share, n - share + 1, n)
        tested: list[Any] = [f]
        if _stands(s, axis):
            tested.append(f.gradient)
            _side_by_side(s, axis, [(i, i + share) for i in starts], padded=True)
        for B in tested:
            if len({structure(B.block(axis, i, i + share, padded=True)) for i in starts}) > 1:
                raise Failure(
                    f"{B.name}: padded blocks of {share} planes of {axis!r} differ in structure"
                )


def _taylor(s: FunctionalSubject, f: Any, points: Iterator[Any], what: str) -> None:
    failures = []
    for number, x in enumerate(points):
        try:
            taylor_test(f, x, s.space.random(s.generator(40 + number)))
        except AssertionError as error:
            failures.append(str(error))
        else:
            return
    raise Failure(f"{what}: {failures[0]}")


def _rivals(s: FunctionalSubject, x: Any, p: Any) -> Iterator[tuple[Any, str]]:
    """Points around p and farther away, with where they lie."""
    origin = each(np.zeros_like, p)
    yield origin, "at 0"
    yield x, "at x"
    for number in range(3):
        yield s.point(130 + number, 2.0), "at another point"
        d = s.space.random(s.generator(140 + number))
        for h in (1e-6, 1e-4, 1e-2, 1e-1):
            for sign in (h, -h):
                yield plus(p, sign, d), f"{h} away in a random direction"
    factors = (1.0, 1j) if s.space.is_complex else (1.0,)
    for m, part in enumerate(elements(p)):
        places = list(np.ndindex(*part.shape))
        chosen = s.generator(150).permutation(len(places))[:16]
        for place in (places[i] for i in chosen):
            for factor in factors if part.dtype.kind == "c" else (1.0,):
                for h in (1e-3, -1e-3, 0.05, -0.05):
                    parts = [np.array(q) for q in elements(p)]
                    parts[m][place] += factor * h
                    there: Any = tuple(parts) if isinstance(p, tuple) else parts[0]
                    yield there, f"{abs(h)} away in entry {tuple(map(int, place))}"


def _needs_axes(s: FunctionalSubject) -> None:
    if not split_axes(s.functional):
        raise NotApplicable(
            f"no axis of its rule '{s.functional.rule}' may be split, or all are empty"
        )


def _adds_up(s: FunctionalSubject, axis: str, ranges: Any, padded: bool) -> None:
    f = s.functional
    points = [s.x] if np.isfinite(s.value) else [s.x, _inside(s)]
    for x in points:
        total = 0.0
        for start, stop in ranges:
            block = f.block(axis, start, stop, padded)
            part = block_input(f, x, axis, start, stop, padded)
            label = f"block({axis!r}, {start}, {stop}, padded={padded})"
            _fits(block, part, label)
            value = block(part)
            if not isinstance(value, float):
                raise Failure(f"{label} gives a {type(value).__name__}, not a float")
            if np.isnan(value):
                raise Failure(f"{label} reads planes outside the array")
            total += value
        form = "padded blocks" if padded else "blocks"
        s.close_values(total, f(x), x, f"its {form} along {axis!r} do not add up to its value")


def _inside(s: FunctionalSubject) -> Any:
    """A point where a constraint holds, where it can be projected to."""
    return host(s.functional.prox(s.x, 1.0)) if "prox" in s.maps else s.x


def _stands(s: FunctionalSubject, axis: str) -> bool:
    """Whether the gradient is aligned along an axis."""
    if "gradient" not in s.maps:
        return False
    rule = s.functional.gradient.rule
    return axis in rule.names and rule.relation(axis) is Relation.ALIGNED


def _side_by_side(s: FunctionalSubject, axis: str, ranges: Any, padded: bool) -> None:
    g = s.functional.gradient
    cuts = positions(g.rule.codomain, axis)
    m, p = cuts[0]
    n = s.space.members[m].shape[p]
    for start, stop in ranges:
        block = g.block(axis, start, stop, padded)
        part = block_input(g, s.x, axis, start, stop, padded)
        label = f"gradient.block({axis!r}, {start}, {stop}, padded={padded})"
        _fits(block, part, label)
        found = host(block(part))
        for number, member in enumerate(elements(found)):
            if np.isnan(member).any():
                raise Failure(f"{label} reads planes outside the array (member {number})")
        first, last = max(start, 0), max(min(stop, n), max(start, 0))
        wanted = cut(s.gradient, cuts, first, last, s.space)
        if padded:
            for q, position in cuts:
                planes = np.moveaxis(elements(found)[q], position, 0)
                outside = [i for i in range(stop - start) if not 0 <= start + i < n]
                if np.any(planes[outside] != 0):
                    raise Failure(f"{label} writes other numbers than 0 outside the array")
            found = cut(found, cuts, first - start, last - start, s.space)
        s.close(part_of(s.space, wanted), found, wanted, norm(s.x), f"{label} is not that part")


def _fits(block: Any, part: Any, label: str) -> None:
    shapes = [p.shape for p in elements(part)]
    wanted = [m.shape for m in block.domain.members]
    if shapes != wanted:
        raise Failure(f"{label} takes {wanted}, its rule and halo give {shapes}")
