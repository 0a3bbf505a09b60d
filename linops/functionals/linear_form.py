"""Derivatives of functionals as operators: the gradient as a map, the Jacobian as a row."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.cost import Cost, bytes_of
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.precision import real_of
from linops.reductions import summing
from linops.rule import Member, Rule
from linops.space import AnySpace, ProductSpace, Space

if TYPE_CHECKING:
    from linops.functionals.functional import Functional

__all__ = ["GradientMap", "LinearForm", "bare"]


class GradientMap(Operator):
    """`x -> gradient of f at x`, in the rule's terms `"z~1 -> z"` where f is `"z~1 ->"`."""

    def __init__(self, functional: Functional) -> None:
        super().__init__(functional.domain, functional.domain, name=f"{functional.name}.gradient")
        self.functional = functional
        self.batched = functional.batched

    def _apply(self, x: Any) -> Any:
        return self.functional._gradient(x)

    def _jacobian(self, x: Any) -> LinearOperator:
        return self.functional._hessian(x)

    def _derive_rule(self) -> Rule:
        return self.functional._gradient_rule()

    def _cost(self) -> Cost:
        return self.functional._gradient_cost()

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> Operator | None:
        return self.functional._gradient_block(axis, start, stop, padded)


class LinearForm(LinearOperator):
    """`x -> Re <vector, x>`, the derivative of a functional; its adjoint gives `s * vector`.

    Parameters
    ----------
    domain
        Where x and the vector are from; a product space too.
    vector
        An element of the domain, without batch axes.
    rule
        That of the functional: its axes are contracted.
    """

    batched = True

    def __init__(self, domain: AnySpace, vector: Any, rule: Rule) -> None:
        super().__init__(
            domain,
            Space((), real_of(domain.dtype)),
            Rule(rule.domain, ((),), bare(rule.domain)),
            tags=("real_linear",) if domain.is_complex else (),
        )
        self.vector = (
            tuple(map(arrays.snapshot, vector))
            if isinstance(vector, tuple)
            else arrays.snapshot(vector)
        )

    def _apply(self, x: Any) -> Array:
        total: Any = None
        for part, number, member in self._parts(x):
            vector = self._near(number, part)
            if part.ndim > member.ndim:
                vector = arrays.namespace(part).broadcast_to(vector, part.shape)
            value = member.inner(vector, part)
            total = value if total is None else total + value
        like = x[0] if isinstance(x, tuple) else x
        if not arrays.is_array(total):
            return arrays.convert(np.asarray(total.real, self.codomain.dtype), like)
        if arrays.dtype_of(total).kind == "c":
            total = arrays.namespace(total).real(total)
        return arrays.cast(total, self.codomain.dtype)

    def _apply_adjoint(self, y: Array) -> Any:
        xp = arrays.namespace(y)
        parts = []
        for number, member in enumerate(self.domain.members):
            scale = xp.reshape(y, (*y.shape, *(1,) * member.ndim))
            parts.append(arrays.cast(scale * self._near(number, y), member.dtype))
        return tuple(parts) if isinstance(self.domain, ProductSpace) else parts[0]

    def _cost(self) -> Cost:
        held = bytes_of(self.domain)
        return Cost(2.0 * self.domain.size, 2 * held, bytes_of(self.codomain), summing(self.domain))

    @cached_property
    def _vectors(self) -> tuple[Array, ...]:
        return self.vector if isinstance(self.vector, tuple) else (self.vector,)

    def _parts(self, x: Any) -> Any:
        parts = x if isinstance(x, tuple) else (x,)
        return zip(parts, range(len(parts)), self.domain.members, strict=True)

    def _near(self, number: int, like: Array) -> Array:
        cache = self.__dict__.setdefault("_cache_resident", {})
        return arrays.resident(cache, f"vector{number}", self._vectors[number], like)


def bare(members: tuple[Member, ...]) -> tuple[Member, ...]:
    """The axes without their halos, as they stand on the right of a rule."""
    return tuple(
        tuple(replace(axis, halo=0, periodic=False) for axis in member) for member in members
    )
