"""`A.H @ W @ A`: one node that shares A, is self-adjoint, and knows its diagonal."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from linops import arrays
from linops.algebra.composition import Product
from linops.algebra.norm import known_norm
from linops.arrays import Array
from linops.cost import Cost
from linops.elementary.diagonal import Diagonal
from linops.elementary.identity import Identity, Zero
from linops.errors import ShapeError
from linops.linear_operator import LinearOperator
from linops.precision import Precision
from linops.rule import Rule
from linops.space import Space

__all__ = ["Gram", "gram"]


class Gram(LinearOperator):
    """`base.H @ weights @ base`, without weights `base.H @ base`."""

    batched = True
    _exact: ClassVar[bool] = True

    def __init__(self, base: LinearOperator, weights: LinearOperator | None = None) -> None:
        super().__init__(base.domain, base.domain, name="Gram")
        self.base = base
        self.weights = weights

    @cached_property
    def _aliases(self) -> bool:  # type: ignore[override]
        return self.product._aliases

    @cached_property
    def product(self) -> Product:
        """The same as a product of its factors."""
        middle = [] if self.weights is None else [self.weights]
        return Product([self.base.H, *middle, self.base])

    def _apply(self, x: Any) -> Any:
        return self.product._forward(x)

    def _apply_adjoint(self, y: Any) -> Any:
        if "self_adjoint" in self.tags:
            return self._apply(y)
        return self.product._apply_adjoint(y)

    def _make_adjoint(self) -> LinearOperator:
        if "self_adjoint" in self.tags:
            return self
        assert self.weights is not None
        return Gram(self.base, self.weights.H)

    def _make_conjugate(self) -> LinearOperator:
        return Gram(self.base.conj(), None if self.weights is None else self.weights.conj())

    def _complexified(self) -> LinearOperator | None:
        from linops.algebra.complexify import complexify

        if "real_linear" in self.base.tags:
            return None
        weights = None if self.weights is None else complexify(self.weights)
        return Gram(complexify(self.base), weights)

    def _derive_rule(self) -> Rule:
        return self.product.rule

    def _derive_tags(self) -> frozenset[str]:
        tags = {"self_adjoint", "psd"}
        if self.weights is not None:
            tags &= self.weights.tags
        spread = {"nonnegative", "diagonal"} & self.base.tags
        tags |= spread if self.weights is None else spread & self.weights.tags
        if "approximate_adjoint" in self.base.tags:
            tags = {"approximate_adjoint"}
        if self.domain.is_complex and "real_linear" in self.base.tags:
            tags.add("real_linear")
        return frozenset(tags)

    def _derive_precision(self) -> Precision:
        return self.base.precision

    def _diagonal(self) -> Array | None:
        if isinstance(self.base.codomain, Space) and isinstance(self.base.domain, Space):
            weights = None
            if self.weights is not None:
                if "diagonal" not in self.weights.tags:
                    return None
                weights = self.weights._diagonal()
                if weights is None:
                    return None
            return self.base._gram_diagonal(weights)
        return None

    def _known_norm(self) -> float | None:
        found = known_norm(self.base) if self.weights is None else None
        return None if found is None else found**2

    def _input_range(self, axis: str, start: int, stop: int) -> tuple[int, int]:
        return self.product._input_range(axis, start, stop)

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator | None:
        block: LinearOperator | None = self.product._block(axis, start, stop, padded)
        return block

    def _columns(self, index: Array, axes: tuple[int, ...]) -> LinearOperator:
        return self.product._columns(index, axes)

    def _cost(self) -> Cost:
        return self.product.cost()


def gram(operator: LinearOperator, weights: Any = None) -> LinearOperator:
    """`operator.gram(weights)`."""
    if isinstance(operator, Zero):
        return Zero(operator.domain)
    if weights is None:
        return Identity(operator.domain) if "unitary" in operator.tags else Gram(operator)
    if isinstance(weights, LinearOperator):
        if (
            weights.domain.shape != operator.codomain.shape
            or weights.codomain.shape != operator.codomain.shape
        ):
            raise ShapeError(
                f"weights of {operator.name} map its codomain {operator.codomain} to itself, got "
                f"{weights.domain} -> {weights.codomain}"
            )
        return Gram(operator, weights)
    if isinstance(weights, tuple):
        raise ShapeError("weights of a product space are an operator: block_diagonal([...])")
    if not isinstance(operator.codomain, Space):
        raise ShapeError(
            f"weights of {operator.name} are an operator on {operator.codomain}: "
            "block_diagonal([Diagonal(w) ...])"
        )
    if not arrays.is_array(weights):
        whole = arrays.asarray(weights, "gram", "weights")
        weights = np.broadcast_to(whole, operator.codomain.shape)
    return Gram(operator, Diagonal(weights, operator.codomain))
