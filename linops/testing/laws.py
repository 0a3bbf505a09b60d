"""Checks of algebra: linearity, adjoints, transposes, diagonals, columns, tags."""

from __future__ import annotations

from typing import Any

import numpy as np

from linops.elementary.select import Scatter
from linops.space import Space
from linops.testing.dot import adjoint_error, dot_test, unit
from linops.testing.subject import Failure, NotApplicable, Subject, each, elements, host, plain

__all__ = [
    "check_additivity",
    "check_columns",
    "check_diagonal",
    "check_dot",
    "check_gram",
    "check_homogeneity",
    "check_involution",
    "check_tags",
    "check_transpose",
    "check_zero",
]


def check_dot(s: Subject) -> None:
    """The dot test; where it fails and a matrix can be formed, the entry at fault."""
    A = s.operator
    try:
        dot_test(A, seed=s.seed)
    except AssertionError as error:
        if "approximate_adjoint" in A.tags:
            raise NotApplicable(f"its adjoint is declared approximate: {error}") from None
        detail = ""
        if s.small:
            detail = adjoint_error(A)
        raise Failure(f"{detail}; {error}" if detail else str(error)) from None


def check_additivity(s: Subject) -> None:
    """`A @ (x + z) == A @ x + A @ z`."""
    A = s.operator
    z = plain(A.domain).random(s.generator(3))
    both = A(_add(s.x, z))
    size = float(A.domain.norm(s.x)) + float(A.domain.norm(z))
    s.close(A.codomain, both, _add(s.Ax, A(z)), size, "A(x + z) is not A x + A z")


def check_homogeneity(s: Subject) -> None:
    """`A @ (c x) == c (A @ x)`, complex c where A is linear over complex numbers."""
    A = s.operator
    factors: list[Any] = [-2.5, 1e3]
    if A.domain.is_complex and A.codomain.is_complex and "real_linear" not in A.tags:
        if all(m.is_complex for m in (*A.domain.members, *A.codomain.members)):
            factors.append(0.6 - 0.8j)
    for c in factors:
        scaled = A(each(lambda part, c=c: part * c, s.x))
        wanted = each(lambda part, c=c: part * c, s.Ax)
        size = abs(c) * float(A.domain.norm(s.x))
        s.close(A.codomain, scaled, wanted, size, f"A(c x) is not c A x for c = {c}")


def check_zero(s: Subject) -> None:
    """Zero goes to exact zero, forward and adjoint."""
    for B, name in ((s.operator, "A"), (s.operator.H, "A.H")):
        for part in elements(host(B(plain(B.domain).zeros()))):
            if np.any(part != 0):
                raise Failure(f"{name} @ zeros has the entry {part[part != 0].flat[0]}")


def check_involution(s: Subject) -> None:
    """`.H`, `.T` and `.conj()` undo themselves by identity."""
    A = s.operator
    claims = {
        "A.H.H is A": A.H.H is A,
        "A.T.T is A": A.T.T is A,
        "A.H is A.H": A.H is A.H,
        "A.conj().conj() is A": A.conj().conj() is A,
    }
    if "self_adjoint" in A.tags:
        claims["A.H is A (tag self_adjoint)"] = A.H is A
    for claim, holds in claims.items():
        if not holds:
            raise Failure(f"not true: {claim}")
    if A.H.domain.shape != A.codomain.shape or A.H.codomain.shape != A.domain.shape:
        raise Failure(f"A maps {A.domain} to {A.codomain}, A.H {A.H.domain} to {A.H.codomain}")
    if A.H.precision != A.precision:
        raise Failure(f"precision {A.precision}, under .H {A.H.precision}")


def check_transpose(s: Subject) -> None:
    """`.T` is conj . H . conj and `.conj()` conjugates the entries."""
    A = s.operator
    size = float(A.codomain.norm(s.y))
    wanted = each(np.conj, host(A.H(each(np.conj, s.y))))
    s.close(A.domain, A.T(s.y), wanted, size, "A.T y is not conj(A.H conj(y))")
    wanted = each(np.conj, host(A(each(np.conj, s.x))))
    size = float(A.domain.norm(s.x))
    s.close(A.codomain, A.conj()(s.x), wanted, size, "A.conj() x is not conj(A conj(x))")
    s.close(A.codomain, A.T.H(s.x), wanted, size, "A.T.H x is not A.conj() x")


def check_columns(s: Subject) -> None:
    """`A.columns(index) @ v == A @ Scatter(index) @ v`, inert and repeated positions too."""
    checked = False
    for B, name in ((s.operator, "A"), (s.operator.H, "A.H")):
        space = B.domain
        if not isinstance(space, Space) or space.ndim == 0 or space.size == 0:
            continue
        choices: list[tuple[Any, ...] | None] = [None]
        choices += [(axis,) for axis in range(space.ndim)] if space.ndim > 1 else []
        if space.ndim > 2:
            choices.append((0, space.ndim - 1))
        for axes in choices:
            numbers = range(max(space.ndim - 2, 0), space.ndim) if axes is None else axes
            n = int(np.prod([space.shape[i] for i in numbers]))
            index = np.array([n - 1, -1, 0, n // 2, n // 2], np.int64)
            scatter = Scatter(space, index, axes)
            part = B.columns(index, axes)
            label = f"{name}.columns({index.tolist()}, axes={axes})"
            if part.domain.shape != scatter.domain.shape:
                raise Failure(
                    f"{label} has the domain {part.domain}, {name} @ Scatter has {scatter.domain}"
                )
            v = plain(scatter.domain).random(s.generator(4))
            size = float(scatter.domain.norm(v))
            what = f"{label} is not {name} @ Scatter(index)"
            s.close(B.codomain, part(v), B(scatter(v)), size, what)
            w = plain(B.codomain).random(s.generator(5))
            size = float(B.codomain.norm(w))
            back = scatter.H(B.H(w))
            s.close(scatter.domain, part.H(w), back, size, f"{what}, under .H")
            checked = True
    if not checked:
        raise NotApplicable("columns are of plain, non-empty domains")


def check_diagonal(s: Subject) -> None:
    """`A.diagonal()` is the diagonal of the matrix."""
    A = s.operator
    if A.domain.shape != A.codomain.shape:
        raise NotApplicable("not square")
    if A.domain.is_complex and not A.codomain.is_complex:
        raise NotApplicable("complex to real: it has no matrix")
    wanted = A.codomain.unravel(np.ascontiguousarray(np.diagonal(s.dense)))
    found = host(A.codomain.home.gather(A.diagonal(limit=None)))
    s.close(A.codomain, found, wanted, 1.0, "A.diagonal() is not that of its matrix")


def check_gram(s: Subject) -> None:
    """`A.gram()` is `A.H @ A`, self-adjoint, with the diagonal `sum_i |A_ij|^2`."""
    A = s.operator
    G = A.gram()
    size = float(A.domain.norm(s.x)) * max(s.gain, 1.0)
    s.close(A.domain, G(s.x), A.H(s.Ax), size, "A.gram() x is not A.H A x")
    if "approximate_adjoint" not in A.tags and not {"self_adjoint", "psd"} <= G.tags:
        raise Failure(f"A.gram() has the tags {sorted(G.tags)}, not self_adjoint and psd")
    weights = None
    if isinstance(A.codomain, Space):
        weights = s.generator(6).uniform(0.5, 2.0, A.codomain.shape).astype(A.codomain.dtype)
        weighted = A.gram(weights.real if weights.dtype.kind == "c" else weights)
        s.close(
            A.domain,
            weighted(s.x),
            A.H(s.Ax * weights),
            size,
            "A.gram(w) x is not A.H (w A x)",
        )
    if A.domain.is_complex and ("real_linear" in A.tags or not A.codomain.is_complex):
        return
    if not s.small or "approximate_adjoint" in A.tags:
        return
    square = np.abs(s.dense.astype(np.complex128)) ** 2
    wanted = A.domain.unravel(square.sum(axis=0))
    top = float(square.sum()) if square.size else 0.0
    found = host(A.domain.home.gather(G.diagonal(limit=None)))
    _near(found, wanted, 64 * s.eps * top, "A.gram().diagonal()")
    if weights is not None:
        wanted = A.domain.unravel(weights.reshape(-1).real @ square)
        found = host(A.domain.home.gather(A.gram(weights.real).diagonal(limit=None)))
        _near(found, wanted, 128 * s.eps * top, "A.gram(weights).diagonal()")


def check_tags(s: Subject) -> None:
    """Every declared tag is true of the operator."""
    A = s.operator
    tags = A.tags
    size = float(A.domain.norm(s.x))
    if (A.domain.is_complex != A.codomain.is_complex) != ("real_linear" in tags):
        both = A.domain.is_complex and A.codomain.is_complex
        if not both:
            raise Failure(
                f"tags {sorted(tags)} on {A.domain} -> {A.codomain}: real_linear is wrong"
            )
    if "self_adjoint" in tags:
        again = A.H(s.x) if A.H is not A else A._backward(s.x)
        s.close(A.codomain, again, s.Ax, size, "tagged self_adjoint, but A.H x is not A x")
    if "psd" in tags:
        for salt in range(3):
            z = plain(A.domain).random(s.generator(10 + salt))
            value = complex(A.domain.inner(z, A(z)))
            bound = 32 * s.eps * s.gain * float(A.domain.norm(z)) ** 2
            if value.real < -bound or ("real_linear" not in tags and abs(value.imag) > bound):
                raise Failure(f"tagged psd, but <x, A x> = {value:.6g}")
    if "unitary" in tags:
        s.close(A.domain, A.H(s.Ax), s.x, size, "tagged unitary, but A.H A x is not x")
        size = float(A.codomain.norm(s.y))
        s.close(A.codomain, A(s.Hy), s.y, size, "tagged unitary, but A A.H y is not y")
    if "diagonal" in tags or "nonnegative" in tags:
        _check_entries(s)


def _check_entries(s: Subject) -> None:
    A = s.operator
    count = A.domain.size
    few = range(count) if count <= 64 else s.generator(7).integers(count, size=16).tolist()
    for i in few:
        column = [part.ravel() for part in elements(host(A(unit(A.domain, int(i)))))]
        values = np.concatenate(column) if column else np.zeros(0)
        if "nonnegative" in A.tags and (
            np.any(values.real < 0) or (values.dtype.kind == "c" and np.any(values.imag != 0))
        ):
            raise Failure(
                f"tagged nonnegative, but A e_{i} has the entry "
                f"{values[np.argmin(values.real)]:.6g}"
            )
        if "diagonal" in A.tags:
            rest = np.delete(values, i)
            if np.any(rest != 0):
                raise Failure(f"tagged diagonal, but A e_{i} has other entries than number {i}")


def _near(found: Any, wanted: Any, bound: float, what: str) -> None:
    for a, b in zip(elements(found), elements(wanted), strict=True):
        difference = np.abs(a - b)
        if difference.size and not difference.max() <= bound:
            place = np.unravel_index(int(np.argmax(difference)), difference.shape)
            raise Failure(
                f"{what} has {a[place]:.7g} at {tuple(int(i) for i in place)}, its matrix gives "
                f"{b[place]:.7g}"
            )


def _add(a: Any, b: Any) -> Any:
    if isinstance(a, tuple):
        return tuple(p + q for p, q in zip(a, b, strict=True))
    return a + b
