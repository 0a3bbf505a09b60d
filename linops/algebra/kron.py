"""Kronecker products: operators on different axes of one array."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

from linops import arrays
from linops.algebra.complexify import complexify
from linops.algebra.members import in_one_dtype
from linops.algebra.norm import known_norm
from linops.arguments import checked
from linops.arrays import Array
from linops.cost import Cost
from linops.errors import ShapeError
from linops.linear_operator import AsOperator, LinearOperator
from linops.precision import Precision
from linops.rule import Axis, Rule
from linops.space import Space

__all__ = ["Kronecker", "kron"]


@checked
def kron(a: AsOperator, b: AsOperator) -> LinearOperator:
    """`a` on the leading axes and `b` on the trailing axes of one array.

    The matrix is the Kronecker product of the matrices of a and b, entries in C order. Spaces have
    the axes of both: `(*a.domain.shape, *b.domain.shape)`.
    """
    from linops.algebra.arithmetic import as_operator

    left, right = as_operator(a), as_operator(b)
    for term in (left, right):
        if not (isinstance(term.domain, Space) and isinstance(term.codomain, Space)):
            raise ShapeError(f"kron takes operators between plain spaces, got {term!r}")
        if "real_linear" in term.tags:
            raise ShapeError(f"kron takes operators linear over their spaces, got {term!r}")
    if left.domain.is_complex != right.domain.is_complex:
        left, right = complexify(left), complexify(right)
    for side in ("domain", "codomain"):
        left, right = in_one_dtype([left, right], side)
    return Kronecker(left, right)


class Kronecker(LinearOperator):
    """`(left kron right) @ x`: right along the trailing axes, left along the leading ones."""

    batched = True
    _exact: ClassVar[bool] = True

    def __init__(self, left: LinearOperator, right: LinearOperator) -> None:
        super().__init__(
            _joined(left.domain, right.domain), _joined(left.codomain, right.codomain), name="kron"
        )
        self.left, self.right = left, right

    @cached_property
    def _aliases(self) -> bool:  # type: ignore[override]
        return self.left._aliases and self.right._aliases

    def _apply(self, x: Array) -> Array:
        return _apply(self.left._forward, self.right._forward, self.left, self.right, x)

    def _apply_adjoint(self, y: Array) -> Array:
        left, right = self.left.H, self.right.H
        return _apply(left._forward, right._forward, left, right, y)

    def _make_adjoint(self) -> LinearOperator:
        return self if "self_adjoint" in self.tags else Kronecker(self.left.H, self.right.H)

    def _make_conjugate(self) -> LinearOperator:
        return Kronecker(self.left.conj(), self.right.conj())

    def _complexified(self) -> LinearOperator:
        return Kronecker(complexify(self.left), complexify(self.right))

    def _derive_rule(self) -> Rule:
        a, b = self.left.rule, self.right.rule
        names = self._right_names

        def renamed(axis: Axis) -> Axis:
            return Axis(names[axis.name], axis.halo, axis.periodic, axis.splits)

        return Rule(
            ((*a.domain[0], *map(renamed, b.domain[0])),),
            ((*a.codomain[0], *map(renamed, b.codomain[0])),),
        )

    @cached_property
    def _right_names(self) -> dict[str, str]:
        """What the axes of the right operator are called here."""
        taken, found = set(self.left.rule.names) | set(self.right.rule.names), {}
        for name in self.right.rule.names:
            found[name] = name
            if name in self.left.rule.names:
                while found[name] in taken:
                    found[name] += "_right"
                taken.add(found[name])
        return found

    def _input_range(self, axis: str, start: int, stop: int) -> tuple[int, int]:
        own, of_left = self._side(axis)
        return (self.left if of_left else self.right)._input_range(own, start, stop)

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator:
        own, of_left = self._side(axis)
        block = (self.left if of_left else self.right).block(own, start, stop, padded)
        assert isinstance(block, LinearOperator)
        return Kronecker(block, self.right) if of_left else Kronecker(self.left, block)

    def _side(self, axis: str) -> tuple[str, bool]:
        """The name of an axis in the factor that has it, and whether that is the left one."""
        for own, name in self._right_names.items():
            if name == axis:
                return own, False
        return axis, True

    def _derive_tags(self) -> frozenset[str]:
        spreading = {"self_adjoint", "psd", "unitary", "diagonal", "nonnegative"}
        tags = self.left.tags & self.right.tags & spreading
        return tags | ((self.left.tags | self.right.tags) & {"approximate_adjoint"})

    def _derive_precision(self) -> Precision:
        return Precision.coarsest((self.left.precision, self.right.precision))

    def _diagonal(self) -> Array | None:
        a, b = self.left._diagonal(), self.right._diagonal()
        if a is None or b is None:
            return None
        xp = arrays.namespace(a, b)
        return xp.reshape(a, (*a.shape, *(1,) * b.ndim)) * b

    def _known_norm(self) -> float | None:
        left, right = known_norm(self.left), known_norm(self.right)
        return None if left is None or right is None else left * right

    def _gram_diagonal(self, weights: Array | None) -> Array | None:
        if weights is not None:
            return None
        a, b = self.left._gram_diagonal(None), self.right._gram_diagonal(None)
        if a is None or b is None:
            return None
        return arrays.namespace(a, b).reshape(a, (*a.shape, *(1,) * b.ndim)) * b

    def _cost(self) -> Cost:
        # Right runs for every entry of left's input, left for every entry of right's output.
        right = self.right.cost().times(self.left.domain.size)
        return Cost.chained([self.left.cost().times(self.right.codomain.size), right])


def _joined(a: Any, b: Any) -> Space:
    axes = None
    if a.axes and b.axes:
        axes = (*a.axes, *(n if n not in a.axes else f"{n}_right" for n in b.axes))
    spacing = (*a.spacing, *b.spacing) if a.spacing and b.spacing else None
    return Space(
        (*a.shape, *b.shape),
        a.dtype if a.dtype.itemsize >= b.dtype.itemsize else b.dtype,
        axes,
        spacing,
    )


def _apply(forward_left: Any, forward_right: Any, left: Any, right: Any, x: Array) -> Array:
    # Leading axes are batch axes for `right`; then they are moved behind for `left`.
    y = arrays.cast(forward_right(arrays.cast(x, right.domain.dtype)), left.domain.dtype)
    xp = arrays.namespace(y)
    batch = y.ndim - left.domain.ndim - right.codomain.ndim
    front = list(range(batch))
    middle = list(range(batch, batch + left.domain.ndim))
    tail = list(range(batch + left.domain.ndim, y.ndim))
    z = forward_left(xp.permute_dims(y, (*front, *tail, *middle)))
    n = right.codomain.ndim
    back = [*front, *range(batch + n, z.ndim), *range(batch, batch + n)]
    return xp.permute_dims(z, tuple(back))
