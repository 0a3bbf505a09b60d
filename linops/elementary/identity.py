"""The identity, the zero operator, and the change of precision."""

from __future__ import annotations

from typing import Any, ClassVar

from linops import arrays
from linops.arrays import Array
from linops.cost import Cost
from linops.elementary.axes import cuts_named, names_beside, resized, window_rule
from linops.errors import ShapeError
from linops.guard import batch_shape
from linops.linear_operator import LinearOperator
from linops.rule import Axis, Rule
from linops.space import AnySpace, ProductSpace, Space

__all__ = ["Cast", "Identity", "Zero"]


class Identity(LinearOperator):
    """`x` as it is.

    Parameters
    ----------
    space
        Domain and codomain.
    """

    batched = True
    blockwise = True
    _serves_complex: ClassVar[bool] = True
    _exact: ClassVar[bool] = True
    _aliases = True

    def __init__(self, space: AnySpace) -> None:
        super().__init__(
            space,
            space,
            window_rule(space, ()),
            tags=("self_adjoint", "psd", "unitary", "diagonal", "nonnegative"),
        )

    def _apply(self, x: Any) -> Any:
        return x

    def _apply_adjoint(self, y: Any) -> Any:
        return y

    def _diagonal(self) -> Array:
        return self.domain.ones()

    def _gram_diagonal(self, weights: Array | None) -> Array:
        return self.domain.ones() if weights is None else weights

    def _cost(self) -> Cost:
        return Cost()


class Zero(LinearOperator):
    """The zero operator; its result is zero by definition, for NaN too.

    Parameters
    ----------
    domain, codomain
        The codomain is the domain where it is not given.
    rule
        By default axes are aligned between equal shapes, else not.
    """

    batched = True
    _serves_complex: ClassVar[bool] = True
    _exact: ClassVar[bool] = True

    def __init__(
        self, domain: AnySpace, codomain: AnySpace | None = None, *, rule: Rule | None = None
    ) -> None:
        target = domain if codomain is None else codomain
        tags = {"nonnegative"}
        if domain == target:
            tags |= {"self_adjoint", "psd", "diagonal"}
        rule = _zero_rule(domain, target) if rule is None else rule
        super().__init__(domain, target, rule, tags=tags)

    def _apply(self, x: Any) -> Any:
        return _zeros(x, self.domain, self.codomain)

    def _apply_adjoint(self, y: Any) -> Any:
        return _zeros(y, self.codomain, self.domain)

    def _make_adjoint(self) -> LinearOperator:
        if "self_adjoint" in self.tags:
            return self
        return Zero(self.codomain, self.domain, rule=self.rule.adjoint())

    def _diagonal(self) -> Array | None:
        return self.domain.zeros() if self.domain.shape == self.codomain.shape else None

    def _gram_diagonal(self, weights: Array | None) -> Array:
        return self.domain.zeros(weights)

    def _known_norm(self) -> float:
        return 0.0

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator:
        left = cuts_named(self.rule, axis)
        right = tuple(
            (m, p)
            for m, member in enumerate(self.rule.codomain)
            for p, a in enumerate(member)
            if a.name == axis
        )
        domain = resized(self.domain, left, stop - start)
        codomain = resized(self.codomain, right, stop - start)
        return Zero(domain, codomain, rule=self.rule)

    def _cost(self) -> Cost:
        return Cost(0.0, 0.0, Cost.streaming(self.domain, self.codomain).written)


class Cast(LinearOperator):
    """A change of precision; real stays real and complex stays complex.

    Parameters
    ----------
    domain
        What comes in.
    codomain
        A space of the same shape in another precision, or the dtype alone.
    """

    batched = True
    blockwise = True
    _serves_complex: ClassVar[bool] = True
    _exact: ClassVar[bool] = True

    def __init__(self, domain: AnySpace, codomain: Any) -> None:
        if not isinstance(codomain, (Space, ProductSpace)):
            codomain = domain.with_dtype(codomain)
        if domain.shape != codomain.shape or [m.is_complex for m in domain.members] != [
            m.is_complex for m in codomain.members
        ]:
            raise ShapeError(
                f"Cast changes precision alone, not {domain} to {codomain}; real and complex meet "
                "by complex extension"
            )
        super().__init__(domain, codomain, window_rule(domain, ()))
        self._aliases = any(
            a.dtype == b.dtype for a, b in zip(domain.members, codomain.members, strict=True)
        )

    def _apply(self, x: Any) -> Any:
        return _cast(x, self.codomain)

    def _apply_adjoint(self, y: Any) -> Any:
        return _cast(y, self.domain)

    def _make_adjoint(self) -> LinearOperator:
        return Cast(self.codomain, self.domain)

    def _known_norm(self) -> float:
        return 1.0


def _zero_rule(domain: AnySpace, codomain: AnySpace) -> Rule:
    left = window_rule(domain, ()).domain
    if domain.shape == codomain.shape:
        return Rule(left, left)
    rows = window_rule(codomain, ()).domain
    own = [axis.name for member in rows for axis in member]
    names = iter(names_beside([axis.name for member in left for axis in member], own))
    return Rule(left, tuple(tuple(Axis(next(names)) for _ in member) for member in rows))


def _zeros(x: Any, source: AnySpace, target: AnySpace) -> Any:
    batch = batch_shape(x, source)
    like = x[0] if isinstance(source, ProductSpace) else x
    parts = tuple(
        arrays.zeros((*batch, *member.shape), member.dtype, like) for member in target.members
    )
    return parts if isinstance(target, ProductSpace) else parts[0]


def _cast(x: Any, target: AnySpace) -> Any:
    if isinstance(target, ProductSpace):
        return tuple(
            arrays.cast(part, member.dtype) for part, member in zip(x, target.spaces, strict=True)
        )
    return arrays.cast(x, target.dtype)
