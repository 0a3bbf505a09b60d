"""The dot test: whether an operator and its adjoint are one pair, with one tolerance.

    r = |<Ax, y> - <x, A.H y>| / (|Ax| |y| + |x| |A.H y|)  <=  16 eps

Two independent Gaussians are not enough: `<Ax, y>` is then smaller than `|Ax| |y|` by about
sqrt(n), and an error of the adjoint shrinks with it. So pairs in which nothing cancels, and basis
vectors, are tested as well. The formula has no absolute term, and nobody widens the tolerance for
one operator: long sums get better sums.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from linops import arrays
from linops.arguments import wrong
from linops.linear_operator import LinearOperator
from linops.precision import Precision
from linops.space import AnySpace, ProductSpace, Space

__all__ = ["LIMIT", "LIMIT_FAST_BASIS", "adjoint_error", "dot_test", "epsilon", "unit"]

LIMIT = 16.0
"""Units of eps that a pair of vectors may reach."""

LIMIT_FAST_BASIS = 64.0
"""The same for basis vectors and precision `"fast"`, whose two ways may use two formulas."""

_ALL_BASIS_VECTORS = 64
_RANDOM_BASIS_VECTORS = 8


def dot_test(A: Any, x: Any = None, y: Any = None, *, seed: int = 0) -> float:
    """The worst `r` over all pairs of vectors, in units of eps of the coarser space or part.

    Parameters
    ----------
    A
        A `LinearOperator`, or a foreign operator with `shape`, `dtype`, `matvec` and `rmatvec`.
    x, y
        Elements of domain and codomain that take the place of the Gaussians; their namespace and
        device are used for all vectors. NumPy Gaussians by default.
    seed
        Of the random vectors: equal seeds give equal results.

    Returns
    -------
    float
        0 where both products are exactly zero.

    Raises
    ------
    AssertionError
        Where r exceeds 16 eps (64 eps on basis vectors for precision `"fast"`) or a product is
        not finite; it names the operator, the pair, both products, r and the limit.

    Notes
    -----
    The pairs: Gaussian x and y; the same x with y = Ax, the same y with x = A.H y; basis vectors
    e_i with A e_i and e_j with A.H e_j (all of them up to 64 entries, else corners, edges and
    random ones); a positive pair; and a batch, which must agree with its members. Exactly one
    complex space: the real parts of the products are compared.
    """
    pair = _AdjointPair(A)
    generator = np.random.default_rng(seed)
    like = x if x is not None else y
    if isinstance(like, tuple):
        like = like[0]
    x = pair.domain.random(generator, like) if x is None else x
    y = pair.codomain.random(generator, like) if y is None else y
    worst = 0.0
    for label, u, v, limit in _pairs(pair, x, y, generator, like):
        worst = max(worst, pair.residual(label, u, v, limit))
    if pair.batches:
        worst = max(worst, _batch(pair, x, y, generator, like))
    return worst


def adjoint_error(A: LinearOperator) -> str:
    """In one line, where the adjoint differs from the forward map; empty where it does not.

    Both matrices are formed, so it is for small operators.
    """
    rows, columns = A.shape
    forward, backward = A.to_dense(), A.H.to_dense()
    if A.domain.is_complex != A.codomain.is_complex:
        forward, backward = forward.real, backward.real
    difference = np.abs(forward - backward.conj().T)
    if not difference.size or not difference.max() > 0:
        return ""
    i, j = np.unravel_index(int(np.nanargmax(difference)), difference.shape)
    return (
        f"adjoint differs from the forward by {difference[i, j]:.3g} at entry ({i}, {j}) of "
        f"{rows} x {columns}: {forward[i, j]:.6g} forward, {backward[j, i]:.6g} in the adjoint"
    )


def epsilon(space: AnySpace) -> float:
    """Machine epsilon of the coarsest member."""
    return float(max(np.finfo(member.dtype).eps for member in space.members))


def unit(space: AnySpace, index: int, like: Any = None, value: complex = 1.0) -> Any:
    """The basis vector of a flat index (member after member, C order), times `value`."""
    flat = np.zeros(space.size, np.result_type(*(member.dtype for member in space.members)))
    flat[index] = value if flat.dtype.kind == "c" else value.real
    parts, start = [], 0
    for member in space.members:
        part = flat[start : start + member.size].reshape(member.shape)
        if not member.is_complex:
            part = part.real
        part = np.array(part, member.dtype, order="C")
        parts.append(part if like is None else arrays.convert(part, arrays.exemplar(like)))
        start += member.size
    return tuple(parts) if isinstance(space, ProductSpace) else parts[0]


class _AdjointPair:
    """Forward and adjoint as two functions, with spaces, eps and limits."""

    def __init__(self, A: Any) -> None:
        self.forward: Callable[[Any], Any]
        self.backward: Callable[[Any], Any]
        self.domain: AnySpace
        self.codomain: AnySpace
        if isinstance(A, LinearOperator):
            self.name = repr(A)
            self.domain, self.codomain = A.domain, A.codomain
            self.forward, self.backward = A, A.H
            fast = A.precision is Precision.FAST
            self.batches = True
            mixed = A.domain.is_complex != A.codomain.is_complex
            self.real_part = mixed or "real_linear" in A.tags
        else:
            if not all(hasattr(A, name) for name in ("shape", "dtype", "matvec", "rmatvec")):
                raise wrong("dot_test", "A", A, "a linear operator, ours or SciPy's or PyLops'")
            rows, columns = A.shape
            dtype = np.dtype("float64" if A.dtype is None else A.dtype)
            if dtype.kind not in "fc":
                dtype = np.dtype("float64")
            self.name = repr(A)
            self.domain, self.codomain = Space(columns, dtype), Space(rows, dtype)
            self.forward, self.backward = A.matvec, A.rmatvec
            fast = self.batches = self.real_part = False
        self.basis_limit = LIMIT_FAST_BASIS if fast else LIMIT
        self.eps = max(epsilon(self.domain), epsilon(self.codomain))
        if isinstance(A, LinearOperator):
            # Between double spaces there may be a part in single precision.
            self.eps = max(self.eps, float(np.finfo(A.precision.dtype).eps))

    def residual(self, label: str, x: Any, y: Any, limit: float) -> float:
        """r of one pair in units of eps; raises above the limit."""
        return self.compare(label, x, y, self.forward(x), self.backward(y), limit)

    def compare(self, label: str, x: Any, y: Any, Ax: Any, Ay: Any, limit: float) -> float:
        """r of one pair whose images are known."""
        x, Ay = _fit(x, self.domain), _fit(Ay, self.domain)
        y, Ax = _fit(y, self.codomain), _fit(Ax, self.codomain)
        left = complex(self.codomain.inner(Ax, y))
        right = complex(self.domain.inner(x, Ay))
        if self.real_part:
            left, right = complex(left.real), complex(right.real)
        scale = float(self.codomain.norm(Ax)) * float(self.codomain.norm(y)) + float(
            self.domain.norm(x)
        ) * float(self.domain.norm(Ay))
        if left == right == 0 and math.isfinite(scale):
            return 0.0
        finite = math.isfinite(abs(left)) and math.isfinite(abs(right)) and math.isfinite(scale)
        r = abs(left - right) / scale / self.eps if finite else math.nan
        if not r <= limit:
            why = f"r = {r:.4g} eps, the limit is {limit:g} eps" if finite else "not finite"
            raise AssertionError(
                f"{self.name} fails the dot test on {label}: <Ax, y> = {_format(left)}, "
                f"<x, A.H y> = {_format(right)}, {why} (eps = {self.eps:.3g})"
            )
        return r


def _pairs(
    pair: _AdjointPair, x: Any, y: Any, generator: np.random.Generator, like: Any
) -> Iterator[tuple[str, Any, Any, float]]:
    domain, codomain = pair.domain, pair.codomain
    yield "Gaussian x, Gaussian y", x, y, LIMIT
    yield "Gaussian x, y = Ax", x, pair.forward(x), LIMIT
    yield "Gaussian y, x = A.H y", pair.backward(y), y, LIMIT
    positive = _positive(domain, generator, like), _positive(codomain, generator, like)
    yield "positive x, positive y", *positive, LIMIT
    for i in _basis(domain, generator):
        for value, name in _phases(pair, domain):
            e = unit(domain, i, like, value)
            label = f"x = {name}e_{i} {_position(domain, i)}, y = Ax"
            yield label, e, pair.forward(e), pair.basis_limit
    for j in _basis(codomain, generator):
        for value, name in _phases(pair, codomain):
            e = unit(codomain, j, like, value)
            label = f"y = {name}e_{j} {_position(codomain, j)}, x = A.H y"
            yield label, pair.backward(e), e, pair.basis_limit


def _batch(pair: _AdjointPair, x: Any, y: Any, generator: np.random.Generator, like: Any) -> float:
    """A batch of two: its members must be what the operator gives for them alone."""
    xs = [x, pair.domain.random(generator, like)]
    ys = [y, pair.codomain.random(generator, like)]
    stacked = pair.forward(_stack(xs)), pair.backward(_stack(ys))
    worst = 0.0
    for i in range(2):
        Ax, Ay = _member(stacked[0], i), _member(stacked[1], i)
        label = f"member {i} of a batch of Gaussians"
        worst = max(worst, pair.compare(f"{label}, x in the batch", xs[i], ys[i], Ax,
                                        pair.backward(ys[i]), LIMIT))  # fmt: skip
        worst = max(worst, pair.compare(f"{label}, y in the batch", xs[i], ys[i],
                                        pair.forward(xs[i]), Ay, LIMIT))  # fmt: skip
    return worst


def _basis(space: AnySpace, generator: np.random.Generator) -> list[int]:
    """Flat indices: all where they are few, else corners, edges and random ones."""
    if space.size <= _ALL_BASIS_VECTORS:
        return list(range(space.size))
    found: set[int] = {0, space.size - 1}
    start = 0
    for member in space.members:
        if member.size:
            shape = member.shape
            for corner in itertools.product(*((0, n - 1) for n in shape)):
                found.add(start + int(np.ravel_multi_index(corner, shape)) if shape else start)
            for axis, n in enumerate(shape):
                for end in (0, n - 1):
                    edge = [int(generator.integers(m)) for m in shape]
                    edge[axis] = end
                    found.add(start + int(np.ravel_multi_index(edge, shape)))
        start += member.size
    found.update(int(i) for i in generator.integers(space.size, size=_RANDOM_BASIS_VECTORS))
    return sorted(found)


def _phases(pair: _AdjointPair, space: AnySpace) -> list[tuple[complex, str]]:
    # Over the reals 1j * e_i is a direction of its own.
    if pair.real_part and space.is_complex:
        return [(1.0, ""), (1j, "1j * ")]
    return [(1.0, "")]


def _position(space: AnySpace, index: int) -> str:
    """Where a flat index stands: `at (z=0, y=3)`, with the member of a product."""
    for number, member in enumerate(space.members):
        if index < member.size:
            place = np.unravel_index(index, member.shape) if member.shape else ()
            names = member.axes or [None] * member.ndim
            text = ", ".join(
                f"{name}={int(i)}" if name else str(int(i))
                for name, i in zip(names, place, strict=True)
            )
            where = f"at ({text})"
            return f"{where} of member {number}" if isinstance(space, ProductSpace) else where
        index -= member.size
    return ""


def _positive(space: AnySpace, generator: np.random.Generator, like: Any) -> Any:
    parts = []
    for member in space.members:
        host = np.asarray(generator.uniform(0.5, 1.5, member.shape), member.dtype)
        parts.append(host if like is None else arrays.convert(host, arrays.exemplar(like)))
    return tuple(parts) if isinstance(space, ProductSpace) else parts[0]


def _stack(elements: list[Any]) -> Any:
    if isinstance(elements[0], tuple):
        return tuple(_stack([e[k] for e in elements]) for k in range(len(elements[0])))
    return arrays.namespace(elements[0]).stack(elements)


def _member(batch: Any, i: int) -> Any:
    return tuple(part[i, ...] for part in batch) if isinstance(batch, tuple) else batch[i, ...]


def _fit(x: Any, space: AnySpace) -> Any:
    """`x` in the space's dtype: foreign operators return what they like."""
    if isinstance(space, ProductSpace):
        return tuple(_fit(part, member) for part, member in zip(x, space.spaces, strict=True))
    x = x if arrays.is_array(x) else np.asarray(x)
    return arrays.cast(x, space.dtype) if arrays.dtype_of(x) != space.dtype else x


def _format(value: complex) -> str:
    return f"{value.real:.9g}" if value.imag == 0 else f"{value:.9g}"
