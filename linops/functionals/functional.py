"""`Functional`: a map to the real numbers, and what solvers ask about it.

A functional is an `Operator` whose codomain is the scalars. It has a value, where it is
differentiable a gradient (an operator too), where a closed form exists a proximal map, and a
surrogate: a symmetric positive operator whose quadratic majorizes it. Particular functionals and
their combinations live beside this file; nothing here knows a solver.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from linops import apply, arguments, arrays, guard, tracing
from linops.algebra.origins import check
from linops.arrays import Array
from linops.autocast import own_precision
from linops.cost import Cost
from linops.errors import DTypeError
from linops.functionals.linear_form import GradientMap, LinearForm, bare
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.precision import real_of
from linops.reductions import dot
from linops.rule import Rule
from linops.space import AnySpace, ProductSpace, Space

if TYPE_CHECKING:
    from linops.functionals.restricted import Restricted

__all__ = ["Functional", "is_recorded"]


class Functional(Operator):
    """A map from a space to the real numbers.

    Parameters
    ----------
    domain
        Space of its arguments.
    rule
        The sharding rule, such as `"z~1 y~1 x~1 ->"`: axes along which it is a sum of local
        terms are contracted.
    name
        For messages; the class name by default.

    Notes
    -----
    `f(x)` is a Python float, accumulated in float64; with leading batch axes an array with one
    value a member; under a trace, or where a gradient is required, a 0-d array.

    A functional overrides `_value`, and where they exist `_gradient`, `_hessian`, `_prox` and
    `surrogate`. On a complex space the gradient g is that of the real part: f changes by
    `Re <g, dx>`.

    `f + g`, `a * f` (a >= 0), `f.translate(b)` and `f @ A` are functionals again.
    """

    _accumulated: ClassVar[bool] = True
    _kind: ClassVar[str] = "functional"

    def __init__(
        self, domain: AnySpace, rule: str | Rule | None = None, name: str | None = None
    ) -> None:
        super().__init__(domain, Space((), real_of(domain.dtype)), rule, name=name)

    def __call__(self, x: Any) -> Any:
        if tracing.compiling():
            from linops.transforms import torch_compile

            return torch_compile.applied(self, x)
        return self._call(x)

    @own_precision
    def _call(self, x: Any) -> Any:
        x = self._admit(x)
        if self.batched or not guard.batch_shape(x, self.domain):
            return _number(self._value(x))
        return self._forward(x)

    @property
    def gradient(self) -> Operator:
        """The gradient: `f.gradient(x)`, of the shape of x; an operator with rule and Jacobian.

        Raises
        ------
        TypeError
            When it is applied, where the functional has none.
        """
        if tracing.compiling():
            _make_gradient(self)
        elif "_cache_gradient" not in self.__dict__:
            self.__dict__["_cache_gradient"] = self._make_gradient()
        made: Operator = self._cache_gradient  # type: ignore[attr-defined]
        return made

    @own_precision
    def prox(self, x: Any, step: Any) -> Any:
        """`argmin_u |u - x|^2 / 2 + step * f(u)`, where it has a closed form.

        Parameters
        ----------
        x
            An element of the domain, batch axes allowed.
        step
            A number > 0.

        Raises
        ------
        NotImplementedError
            Where there is no closed form.
        """
        return guard.as_arrays(self._prox(self._admit(x), _step(step)))

    @own_precision
    def conjugate_prox(self, x: Any, step: Any) -> Any:
        """The proximal map of the convex conjugate, `argmin_u |u - x|^2 / 2 + step * f*(u)`.

        By Moreau's identity `x - step * prox(x / step, 1 / step)`, for convex f.
        """
        step = _step(step)
        x = self._admit(x)
        inner = self._prox(_each(lambda part: part / step, x), 1.0 / step)
        if isinstance(x, tuple):
            found = tuple(part - step * other for part, other in zip(x, inner, strict=True))
            return guard.as_arrays(found)
        return guard.as_arrays(x - step * inner)

    @property
    def conjugate(self) -> Functional:
        """The convex conjugate `p -> max over x of Re <p, x> - f(x)`, for convex f.

        Its proximal map is `conjugate_prox`; its value raises `NotImplementedError` where it is in
        no closed form.
        """
        from linops.functionals.conjugate import ConvexConjugate

        return ConvexConjugate(self)

    def surrogate(self, x: Any) -> LinearOperator:
        """The operator S with `f(x + d) <= f(x) + <gradient(x), d> + <d, S d> / 2` for all d.

        Self-adjoint and positive semidefinite by tag; `x` has no batch axes.

        Raises
        ------
        TypeError
            Where no quadratic majorizes the functional.
        """
        raise TypeError(f"{self.name} has no majorizing quadratic; use its prox")

    def restrict(self, index: Any) -> Restricted:
        """The functional seen from a subset of positions.

        Parameters
        ----------
        index
            Flat positions along the last two axes of the domain (the only one in one
            dimension), as for `LinearOperator.columns`; -1 is inert.
        """
        from linops.elementary.select import Restriction
        from linops.functionals.restricted import Restricted

        picks = Restriction(plain(self.domain, f"{self.name}.restrict"), index)
        return Restricted(self, picks, *self._rows(picks.index))

    def translate(self, shift: Any) -> Functional:
        """`x -> f(x - shift)`, for an element of the domain."""
        from linops.functionals.combined import ShiftedFunctional

        return ShiftedFunctional(self, shift)

    # --- hooks -------------------------------------------------------------------------

    @abstractmethod
    def _value(self, x: Any) -> Any:
        """The value; `x` is validated and has the domain's dtype, batch axes if `batched`."""

    def _gradient(self, x: Any) -> Any:
        """The gradient at x, of its shape."""
        raise TypeError(f"{self.name} is not differentiable: it has no gradient; use its prox")

    def _hessian(self, x: Any) -> LinearOperator:
        """The derivative of the gradient at x."""
        raise TypeError(f"the gradient of {self.name} declares no derivative")

    def _prox(self, x: Any, step: Any) -> Any:
        raise NotImplementedError(
            f"{self.name} has no proximal map in closed form; use its gradient or surrogate"
        )

    def _conjugate_value(self, p: Any) -> Any:
        """The value of the convex conjugate at p."""
        raise NotImplementedError(
            f"the conjugate of {self.name} has no value in closed form; its prox may have one"
        )

    def _curvature(self) -> Any:
        """w, where the functional is `w |x - c|^2 / 2` up to a constant; else None."""
        return None

    def _make_gradient(self) -> Operator:
        return GradientMap(self)

    def _rows(self, index: Any) -> tuple[Operator, Operator]:
        """`terms` and `form` of `Restricted`."""
        from linops.functionals.restricted import RestrictedForm, RestrictedTerms

        return RestrictedTerms(self, index), RestrictedForm(self, index)

    def _cost(self) -> Cost:
        """Of the value: by default two operations an entry, read once."""
        return Cost.streaming(self.domain, self.codomain, 2.0 * self.domain.size)

    def _gradient_cost(self) -> Cost:
        """Of the gradient: by default two operations an entry."""
        return Cost.streaming(self.domain, self.domain, 2.0 * self.domain.size)

    def _gradient_rule(self) -> Rule:
        return Rule(self.rule.domain, bare(self.rule.domain), self.rule.arrays)

    def _gradient_block(self, axis: str, start: int, stop: int, padded: bool) -> Operator | None:
        """The block of the gradient, along an axis of the rule that splits."""
        return None

    def _apply(self, x: Any) -> Array:
        value = self._value(x)
        if not arrays.is_array(value):
            part = x[0] if isinstance(x, tuple) else x
            return arrays.convert(np.asarray(value, self.codomain.dtype), part)
        return arrays.cast(value, self.codomain.dtype)

    def _jacobian(self, x: Any) -> LinearOperator:
        return LinearForm(self.domain, self.gradient._forward(x), self.rule)

    def _admit(self, x: Any) -> Any:
        self.domain.check_shape(x, self.name)
        if "_cache_sources" in self.__dict__:
            check(self)
        parts = x if isinstance(x, (tuple, list)) else (x,)
        for part, space in zip(parts, self.domain.members, strict=True):
            if arrays.dtype_of(part).kind == "c" and not space.is_complex:
                raise DTypeError(
                    f"{self.name} takes real values, got {arrays.dtype_of(part)}; build it on a "
                    "complex space, or pass the real part"
                )
        return apply.admit_element(self, x)

    def _sum(self, terms: Array) -> Any:
        """The terms, of the domain's shape, added up in float64, for each member of a batch."""
        space = self.domain
        assert isinstance(space, Space)
        ones = arrays.namespace(terms).ones_like(terms)
        if arrays.dtype_of(terms) == space.dtype and tuple(terms.shape)[-space.ndim :] == (
            space.shape
        ):
            return space.inner(terms, ones)
        return dot(terms, ones, space.ndim)


arguments.declare("Functional", arguments.Kind("a functional", (Functional,)))


@tracing.as_constant
def _make_gradient(functional: Functional) -> bool:
    functional.__dict__.setdefault("_cache_gradient", functional._make_gradient())
    return True


def is_recorded(x: Any) -> bool:
    """Whether JAX traces x, or torch records or transforms it."""
    from linops.transforms.torch_function import recording

    return arrays.is_traced(x) or recording(x)


def positive_number(value: Any, what: str, zero: bool = False) -> Any:
    """`value` as a Python float > 0 (>= 0 with `zero`); arrays that are traced or recorded, and
    JAX arrays, as they are."""
    followed = arrays.is_jax(value) or arrays.trainable(value) or is_recorded(value)
    if arrays.is_array(value) and not value.ndim and followed:
        return value
    number = float(arguments.hold("float", value, "a functional", what))
    if not (math.isfinite(number) and (number >= 0 if zero else number > 0)):
        raise ValueError(f"{what} is {value}; it is a finite number {'>=' if zero else '>'} 0")
    return number


def named_axes(space: AnySpace) -> list[Sequence[str]]:
    """The names of the axes in a rule: those of the space, or `axis0 axis1`."""
    return [
        member.axes or tuple(f"axis{i}" for i in range(member.ndim)) for member in space.members
    ]


def plain(space: AnySpace, owner: str) -> Space:
    """`space`, which is no product."""
    if isinstance(space, ProductSpace) or not isinstance(space, Space):
        raise TypeError(
            f"{owner} takes a plain Space, got {space}; put one functional for each member "
            "together with separable([...])"
        )
    return space


def _step(step: Any) -> Any:
    return positive_number(step, "step")


def _each(function: Any, x: Any) -> Any:
    return tuple(map(function, x)) if isinstance(x, tuple) else function(x)


def _number(value: Any) -> Any:
    if arrays.is_array(value):
        return value if value.ndim or is_recorded(value) else float(value)
    return float(value)
