"""Functionals made from another one by minimizing: the convex conjugate, Moreau's envelope, and
the infimal convolution with a quadratic. All are exact and need the proximal map only; values of
conjugates are closed forms that the functional itself declares (`_conjugate_value`)."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from linops import arrays
from linops.elementary.identity import Identity
from linops.functionals.entries import Entries, name_axes
from linops.functionals.functional import Functional, plain, positive_number
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.rule import Rule
from linops.space import ProductSpace

__all__ = ["ConvexConjugate", "MoreauEnvelope", "infimal_convolution", "moreau_envelope"]


class _Transformed(Functional):
    """A functional made of another, cut along the axes along which that one is separable."""

    base: Functional

    def __init__(self, base: Functional) -> None:
        super().__init__(base.domain, name=f"{type(self).__name__}({base.name})")
        self.base = base
        self.batched = base.batched

    @abstractmethod
    def _again(self, base: Functional) -> Functional:
        """The same made of another functional."""

    def _derive_rule(self) -> Rule:
        if isinstance(self.base, Entries):
            return Rule(self.base.rule.domain, ((),))
        spaces = self.domain.members
        return Rule(tuple(name_axes(one, range(one.ndim)) for one in spaces), ((),))

    def _cut(self, axis: str, start: int, stop: int, padded: bool) -> tuple[Any, Any]:
        assert isinstance(self.base, Entries)
        block, mask = self.base._cut(axis, start, stop, padded)
        return self._again(block), mask

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> Operator:
        block, mask = self._cut(axis, start, stop, padded)
        return block @ mask if padded else block  # type: ignore[no-any-return]

    def _gradient_block(self, axis: str, start: int, stop: int, padded: bool) -> Operator:
        block, mask = self._cut(axis, start, stop, padded)
        return mask @ block.gradient if padded else block.gradient  # type: ignore[no-any-return]


class ConvexConjugate(_Transformed):
    """`f*(p) = max over x of Re <p, x> - f(x)`, for convex f; what `f.conjugate` gives.

    Its value is known where f declares it, its proximal map wherever that of f is.
    """

    @property
    def conjugate(self) -> Functional:
        """f itself: it is convex and closed."""
        return self.base

    def _again(self, base: Functional) -> Functional:
        return ConvexConjugate(base)

    def _value(self, x: Any) -> Any:
        return self.base._conjugate_value(x)

    def _prox(self, x: Any, step: Any) -> Any:
        return self.base.conjugate_prox(x, step)


class MoreauEnvelope(_Transformed):
    """`min over u of f(u) + |u - x|^2 / (2 scale)`; see `moreau_envelope`."""

    def __init__(self, base: Functional, scale: Any) -> None:
        plain(base.domain, "moreau_envelope")
        super().__init__(base)
        self.scale = positive_number(scale, "scale")

    def surrogate(self, x: Any) -> LinearOperator:
        """`I / scale`: of a convex f, and of any other too, for the envelope is a minimum."""
        multiple: LinearOperator = (1.0 / self.scale) * Identity(self.domain)
        return multiple

    def _again(self, base: Functional) -> Functional:
        return MoreauEnvelope(base, self.scale)

    def _value(self, x: Any) -> Any:
        u = self.base._prox(x, self.scale)
        d = u - x
        square = arrays.real(arrays.conj(d) * d)
        return self.base._value(u) + self.base._sum(square) / (2.0 * self.scale)

    def _gradient(self, x: Any) -> Any:
        """`(x - prox(x, scale)) / scale`."""
        return (x - self.base._prox(x, self.scale)) / self.scale

    def _prox(self, x: Any, step: Any) -> Any:
        """`x + step / (step + scale) (prox_f(x, step + scale) - x)`."""
        total = step + self.scale
        return x + (step / total) * (self.base._prox(x, total) - x)


def moreau_envelope(f: Functional, scale: Any = 1.0) -> Functional:
    """`x -> min over u of f(u) + |u - x|^2 / (2 scale)`: f made smooth.

    Parameters
    ----------
    f
        A convex functional with a proximal map, on a plain space.
    scale
        > 0; of `L1` the envelope is `Huber(space, scale) / scale`.
    """
    return MoreauEnvelope(f, scale)


def infimal_convolution(f: Functional, g: Functional) -> Functional:
    """`x -> min over u of f(u) + g(x - u)`, where f or g is a quadratic `w |x - c|^2 / 2`.

    Parameters
    ----------
    f, g
        Convex functionals on one space, one of them a `Quadratic` (or a multiple, or shifted).

    Raises
    ------
    NotImplementedError
        Where neither is; the sum over the pair (u, x - u) serves then.
    """
    if f._curvature() is None:
        f, g = g, f
    weight = f._curvature()
    if weight is None or isinstance(f.domain, ProductSpace) or not weight > 0:
        raise NotImplementedError(
            f"the infimal convolution of {f.name} and {g.name} has no closed form: neither is a "
            "quadratic; minimize separable([f, g]) with the data composed with "
            "hstack([Identity(space), Identity(space)])"
        )
    center = f.prox(f.domain.zeros(), 1.0) * ((1.0 + weight) / weight)
    envelope = MoreauEnvelope(g, 1.0 / weight)
    return envelope.translate(center) if arrays.to_numpy(center).any() else envelope
