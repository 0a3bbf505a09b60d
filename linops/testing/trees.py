"""Trees for Hypothesis: elementary operators composed at random, their matrices by NumPy.

Every node is built twice, by the algebra and as a matrix product, sum or stack of its parts'
matrices, so that what the algebra simplifies, casts or extends to complex values is held to what
was written.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

import linops as lo
from linops.linear_operator import LinearOperator
from linops.precision import complex_of, real_of
from linops.space import AnySpace, ProductSpace, Space
from linops.testing.leaves import Drawn, leaf
from linops.testing.realified import (
    complex_matrix,
    dimension,
    extend,
    realify,
    signs,
)

__all__ = ["tree", "under_a_last_view"]

_LARGEST = 40
"""Entries above which a node grows no further."""


def tree(draw: st.DrawFn, domain: AnySpace, depth: int, *, real_linear: bool = False) -> Drawn:
    """A random tree of up to `depth` nodes on top of each other.

    Parameters
    ----------
    draw
        Of a composite strategy.
    domain
        Of the tree, up to its dtype: a complex scalar makes it complex.
    depth
        0 draws a leaf.
    real_linear
        Whether operators from real to complex values are among the leaves.

    Notes
    -----
    The nodes: `@`, `+`, `-`, scalars, `.conj()`, powers, grams with weights, `B.H @ A`, vstack,
    hstack, block_diagonal, concat, kron, and changes of precision between factors.
    """
    grower = _Grower(draw, real_linear)
    return grower.grow(domain, depth)


def under_a_last_view(draw: st.DrawFn, a: Drawn) -> Drawn:
    """The tree, its adjoint, transpose, conjugate, gram, or some of its columns."""
    A, matrix, size = a
    left, right = signs(A.codomain), signs(A.domain)
    view = draw(st.sampled_from(["", "H", "T", "conj", "gram", "columns"]))
    if view == "H":
        return Drawn(A.H, matrix.T, size.T)
    if view == "T":
        return Drawn(A.T, (left[:, None] * matrix * right).T, size.T)
    if view == "conj":
        return Drawn(A.conj(), left[:, None] * matrix * right, size)
    if view == "gram":
        return Drawn(A.gram(), matrix.T @ matrix, size.T @ size)
    if view == "columns" and isinstance(A.domain, Space) and A.domain.ndim and A.domain.size:
        places = int(np.prod(A.domain.shape[-2:]))
        index = np.array(draw(st.lists(st.integers(-1, places - 1), min_size=1, max_size=4)))
        eye = np.eye(A.domain.size).reshape(*A.domain.shape[:-2], places, A.domain.size)
        taken = [eye[..., i, :] if i >= 0 else 0 * eye[..., 0, :] for i in index]
        rows = np.stack(taken, axis=-2).reshape(-1, A.domain.size)
        chosen = realify(rows, A.domain, A.domain).T
        return Drawn(A.columns(index), matrix @ chosen, size @ chosen)
    return a


class _Grower:
    def __init__(self, draw: st.DrawFn, real_linear: bool) -> None:
        self.draw, self.real_linear = draw, real_linear

    def grow(self, domain: AnySpace, depth: int) -> Drawn:
        if isinstance(domain, ProductSpace):
            return self._on_product(domain, depth)
        if depth == 0 or self.draw(st.integers(0, 5)) == 0:
            return leaf(self.draw, domain, real_linear=self.real_linear)
        if domain.ndim > 1 and self.draw(st.integers(0, 7)) == 0:
            return self._kron(domain, depth)
        inner = self.grow(domain, depth - 1)
        node = self.draw(st.sampled_from(_NODES))
        return getattr(self, node)(inner, depth)  # type: ignore[no-any-return]

    def _seed(self) -> int:
        return self.draw(st.integers(0, 99))

    # --- nodes on one operator -----------------------------------------------------------

    def _scale(self, a: Drawn, depth: int) -> Drawn:
        factors: list[Any] = [2, -0.5, 0, np.float64(3.0)]
        mixed = a.operator.domain.is_complex != a.operator.codomain.is_complex
        if not mixed and "real_linear" not in a.operator.tags:
            factors += [0.25j, 1 - 2j]
        factor = self.draw(st.sampled_from(factors))
        scaled = self.draw(
            st.sampled_from([lambda A: factor * A, lambda A: A * factor, lambda A: -A])
        )
        operator = scaled(a.operator)
        number = scaled(1) if operator is not a.operator else 1
        a = _fit(a, operator.domain.is_complex)
        matrix = _turn(number, operator.codomain) @ a.matrix
        return Drawn(operator, matrix, np.abs(_turn(number, operator.codomain)) @ a.size)

    def _conjugate(self, a: Drawn, depth: int) -> Drawn:
        left, right = signs(a.operator.codomain), signs(a.operator.domain)
        matrix = left[:, None] * a.matrix * right
        return Drawn(a.operator.conj(), matrix, a.size)

    def _gram(self, a: Drawn, depth: int) -> Drawn:
        codomain = a.operator.codomain
        if isinstance(codomain, Space) and self.draw(st.booleans()):
            real = codomain.with_dtype(real_of(codomain.dtype))
            weights = np.abs(real.random(self._seed()))
            middle = realify(np.diag(weights.ravel()), codomain, codomain)
            return Drawn(
                a.operator.gram(weights),
                a.matrix.T @ middle @ a.matrix,
                a.size.T @ middle @ a.size,
            )
        operator = self.draw(st.sampled_from([lambda A: A.gram(), lambda A: A.H @ A]))(a.operator)
        return Drawn(operator, a.matrix.T @ a.matrix, a.size.T @ a.size)

    def _power(self, a: Drawn, depth: int) -> Drawn:
        A = a.operator
        same = [m.is_complex for m in A.domain.members] == [
            m.is_complex for m in A.codomain.members
        ]
        if A.domain.shape != A.codomain.shape or not same:
            return self._product(a, depth)
        n = self.draw(st.integers(0, 3))
        power = np.linalg.matrix_power
        return Drawn(A**n, power(a.matrix, n), power(a.size, n))

    # --- nodes on two -------------------------------------------------------------------

    def _product(self, a: Drawn, depth: int) -> Drawn:
        middle = self._in_other_precision(a.operator.codomain)
        return _compose(self.grow(middle, depth - 1), a)

    def _back(self, a: Drawn, depth: int) -> Drawn:
        """`B.H @ A`, with B from another space to where A goes."""
        codomain = a.operator.codomain
        if not isinstance(codomain, Space):
            return self._gram(a, depth)
        array = Space((codomain.size, self.draw(st.integers(1, 4))), codomain.dtype)
        b = _dense(array.random(self._seed()), Space(array.shape[1], codomain.dtype), codomain)
        return _compose(Drawn(b.operator.H, b.matrix.T, b.size.T), a)

    def _sum(self, a: Drawn, depth: int) -> Drawn:
        b = self._partner(a, depth)
        a, b = _alike(a, b)
        if self.draw(st.booleans()):
            return Drawn(a.operator + b.operator, a.matrix + b.matrix, a.size + b.size)
        return Drawn(a.operator - b.operator, a.matrix - b.matrix, a.size + b.size)

    def _concat(self, a: Drawn, depth: int) -> Drawn:
        codomain = a.operator.codomain
        if not isinstance(codomain, Space) or codomain.ndim == 0 or codomain.size > _LARGEST:
            return self._sum(a, depth)
        a, b = _alike(a, self._partner(a, depth))
        codomain = a.operator.codomain
        assert isinstance(codomain, Space)
        axis = self.draw(st.integers(0, codomain.ndim - 1))
        order = _concatenate(codomain, axis)

        def joined(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            return np.asarray(np.concatenate([x, y])[order])

        operator = lo.concat([a.operator, b.operator], axis=axis)
        return Drawn(operator, joined(a.matrix, b.matrix), joined(a.size, b.size))

    def _vstack(self, a: Drawn, depth: int) -> Drawn:
        if a.operator.codomain.size > _LARGEST:
            return self._conjugate(a, depth)
        b = self.grow(self._in_other_precision(a.operator.domain), depth - 1)
        if not _can_meet(a, b, "domain"):
            return a
        is_complex = a.operator.domain.is_complex or b.operator.domain.is_complex
        operator = lo.vstack([a.operator, b.operator])
        a, b = _fit(a, is_complex), _fit(b, is_complex)
        return Drawn(
            operator, np.concatenate([a.matrix, b.matrix]), np.concatenate([a.size, b.size])
        )

    def _partner(self, a: Drawn, depth: int) -> Drawn:
        """An operator between the spaces of `a`, up to their precision."""
        A = a.operator
        kind = self.draw(st.sampled_from(["dense", "multiple", "zero", "weighted"]))
        plain = isinstance(A.domain, Space) and isinstance(A.codomain, Space)
        if kind == "dense" and plain and A.domain.is_complex == A.codomain.is_complex:
            domain, codomain = A.domain, self._in_other_precision(A.codomain)
            assert isinstance(domain, Space) and isinstance(codomain, Space)
            array = Space((codomain.size, domain.size), codomain.dtype).random(self._seed())
            return _dense(array, domain.with_dtype(codomain.dtype), codomain)
        if kind == "zero":
            return Drawn(lo.Zero(A.domain, A.codomain), 0 * a.matrix, 0 * a.size)
        if kind == "weighted" and isinstance(A.codomain, Space):
            values = A.codomain.with_dtype(real_of(A.codomain.dtype)).random(self._seed())
            factor = realify(np.diag(values.ravel()), A.codomain, A.codomain)
            operator = lo.Diagonal(values, A.codomain) @ A
            return Drawn(operator, factor @ a.matrix, np.abs(factor) @ a.size)
        return Drawn(3 * A, 3 * a.matrix, 3 * a.size)

    # --- nodes on parts of a space --------------------------------------------------------

    def _kron(self, domain: Space, depth: int) -> Drawn:
        parts = []
        for shape in (domain.shape[:1], domain.shape[1:]):
            grower = _Grower(self.draw, False)
            part = grower.grow(Space(shape, domain.dtype), min(depth - 1, 1))
            if not isinstance(part.operator.codomain, Space) or part.operator.shape[0] > 8:
                part = leaf(self.draw, Space(shape, domain.dtype), real_linear=False)
            parts.append(part)
        a, b = parts
        is_complex = a.operator.domain.is_complex or b.operator.domain.is_complex
        operator = lo.kron(a.operator, b.operator)
        a, b = _fit(a, is_complex), _fit(b, is_complex)
        if not is_complex:
            return Drawn(operator, np.kron(a.matrix, b.matrix), np.kron(a.size, b.size))
        left, right = _complex(a), _complex(b)
        matrix = realify(np.kron(left, right), operator.domain, operator.codomain)
        return Drawn(operator, matrix, np.tile(np.kron(_modulus(a), _modulus(b)), (2, 2)))

    def _on_product(self, domain: ProductSpace, depth: int) -> Drawn:
        kinds = ["identity", "zero", "block_diagonal", "hstack"]
        if len({member.is_complex for member in domain.spaces}) > 1:
            kinds = ["identity", "zero"]
        kind, n = self.draw(st.sampled_from(kinds)), dimension(domain)
        if kind == "identity":
            return Drawn(lo.Identity(domain), np.eye(n), np.eye(n))
        if kind == "zero":
            target = Space(2, domain.dtype)
            zero = np.zeros((4 if domain.is_complex else 2, n))
            return Drawn(lo.Zero(domain, target), zero, zero)
        parts = [self.grow(member, max(depth - 1, 0)) for member in domain.spaces]
        if kind == "block_diagonal":
            return self._block_diagonal(parts)
        return self._rows(parts)

    def _block_diagonal(self, parts: list[Drawn]) -> Drawn:
        if len({p.operator.domain.is_complex for p in parts}) > 1 or not all(
            isinstance(p.operator.codomain, Space) for p in parts
        ):
            return self._rows(parts)
        operator = lo.block_diagonal([p.operator for p in parts])
        return Drawn(operator, _blocks([p.matrix for p in parts]), _blocks([p.size for p in parts]))

    def _rows(self, parts: list[Drawn]) -> Drawn:
        """Every part followed by a matrix to one space, side by side."""
        rows, found = self.draw(st.integers(1, 3)), []
        for part in parts:
            if "real_linear" in part.operator.tags:
                space = Space(part.operator.domain.members[0].shape, part.operator.domain.dtype)
                part = leaf(self.draw, space, real_linear=False)
            if not isinstance(part.operator.codomain, Space):
                part = self._gram(part, 0)
            codomain = part.operator.codomain
            assert isinstance(codomain, Space)
            array = Space((rows, codomain.size), codomain.dtype).random(self._seed())
            part = _compose(_dense(array, codomain, Space(rows, codomain.dtype)), part)
            found.append(part)
        is_complex = any(p.operator.domain.is_complex for p in found)
        operator = lo.hstack([p.operator for p in found])
        found = [_fit(p, is_complex) for p in found]
        return Drawn(
            operator,
            np.concatenate([p.matrix for p in found], axis=1),
            np.concatenate([p.size for p in found], axis=1),
        )

    def _in_other_precision(self, space: AnySpace) -> AnySpace:
        if self.draw(st.integers(0, 4)) or len({m.is_complex for m in space.members}) > 1:
            return space
        real = np.dtype(self.draw(st.sampled_from(["float32", "float64"])))
        return space.with_dtype(complex_of(real) if space.is_complex else real)


_NODES = (
    "_back",
    "_concat",
    "_conjugate",
    "_gram",
    "_power",
    "_product",
    "_product",
    "_scale",
    "_sum",
    "_vstack",
)


def _dense(array: np.ndarray, domain: Space, codomain: Space) -> Drawn:
    wide = np.asarray(array, np.complex128 if array.dtype.kind == "c" else np.float64)
    matrix = realify(wide, domain, codomain)
    return Drawn(lo.Matrix(array, domain, codomain), matrix, np.abs(matrix))


def _compose(b: Drawn, a: Drawn) -> Drawn:
    """`B @ A`; A alone where the two are of no one field."""
    outer, inner = b.operator, a.operator
    if outer.domain.is_complex != inner.codomain.is_complex:
        real = inner if outer.domain.is_complex else outer
        if "real_linear" in real.tags:
            return a
        a, b = _fit(a, True), _fit(b, True)
    return Drawn(outer @ inner, b.matrix @ a.matrix, b.size @ a.size)


def _fit(a: Drawn, is_complex: bool) -> Drawn:
    """The matrices as they are on complex spaces; the operator stays what it was."""
    A = a.operator
    if not is_complex or A.domain.is_complex or A.codomain.is_complex:
        return a
    spaces = A.domain, A.codomain
    return Drawn(A, extend(a.matrix, *spaces), extend(a.size, *spaces))


def _alike(a: Drawn, b: Drawn) -> tuple[Drawn, Drawn]:
    is_complex = a.operator.domain.is_complex or b.operator.domain.is_complex
    return _fit(a, is_complex), _fit(b, is_complex)


def _can_meet(a: Drawn, b: Drawn, side: str) -> bool:
    left, right = getattr(a.operator, side), getattr(b.operator, side)
    if left.is_complex == right.is_complex:
        return True
    real: LinearOperator = b.operator if left.is_complex else a.operator
    return "real_linear" not in real.tags


def _turn(number: Any, space: AnySpace) -> np.ndarray:
    """A scalar as a matrix on the numbers of an element."""
    blocks = []
    for member in space.members:
        one = Space(member.size, member.dtype)
        blocks.append(realify(complex(number) * np.eye(member.size), one, one))
    return _blocks(blocks)


def _blocks(parts: list[np.ndarray]) -> np.ndarray:
    out = np.zeros((sum(p.shape[0] for p in parts), sum(p.shape[1] for p in parts)))
    i = j = 0
    for part in parts:
        out[i : i + part.shape[0], j : j + part.shape[1]] = part
        i, j = i + part.shape[0], j + part.shape[1]
    return out


def _concatenate(space: Space, axis: int) -> np.ndarray:
    """Where the numbers of two stacked elements stand once they are joined along an axis."""
    n = space.size
    count = 2 * n if space.is_complex else n
    first = np.arange(n).reshape(space.shape)
    real = np.concatenate([first, first + count], axis=axis).ravel()
    return np.concatenate([real, real + n]) if space.is_complex else real


def _complex(a: Drawn) -> np.ndarray:
    domain, codomain = a.operator.domain.complexify(), a.operator.codomain.complexify()
    return complex_matrix(a.matrix, domain, codomain)


def _modulus(a: Drawn) -> np.ndarray:
    rows, columns = a.size.shape[0] // 2, a.size.shape[1] // 2
    quarters = a.size.reshape(2, rows, 2, columns)
    return np.asarray(quarters.sum(axis=(0, 2)))
