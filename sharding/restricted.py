"""A functional seen from a subset of positions, on devices: what VCD asks of a prior."""

from __future__ import annotations

from typing import Any

from linops.elementary.identity import Identity
from linops.functionals.functional import Functional
from linops.functionals.restricted import Restricted, RestrictedForm, RestrictedTerms
from linops.operator import LinearOperator
from sharding.lowered import lower, picked
from sharding.plans import Plan, states_of
from sharding.states import REPLICATED, States

__all__ = ["GatheredRestricted", "LoweredRestricted"]


class LoweredRestricted(Restricted):
    """Rows of a functional at a subset; each rank makes those of its own planes.

    Parameters
    ----------
    plan
        That of the functional.
    index
        Flat positions along the last two axes, shape (s,), -1 inert.
    """

    def __init__(self, plan: Plan, index: Any) -> None:
        functional, whole, part = _cut(plan)
        super().__init__(functional, index)
        terms = RestrictedTerms(functional, index)
        form = RestrictedForm(functional, index)
        self._terms: Any = lower(plan.again(terms, entries=[whole], exits=[part, part]))
        self._form: Any = lower(plan.again(form, entries=[whole, part], exits=[part]))
        self.domain = self._form.codomain

    def terms(self, x: Any) -> tuple[Any, Any]:
        gradient, diagonal = self._terms(x)
        return gradient, diagonal

    def surrogate(self, x: Any) -> LinearOperator:
        made = super().surrogate(self._terms.domain.gather(x))
        return self.domain.lower(made)  # type: ignore[return-value]

    def form(self, x: Any, d: Any) -> Any:
        return self._form((x, d))

    def quadratic(self, x: Any, d: Any) -> Any:
        return self.domain.inner(d, self.form(x, d))


class GatheredRestricted(Restricted):
    """Rows of a functional at a subset; every JAX device has the whole volume meanwhile.

    A subset's rows are code of its index, which one program for all subsets cannot have; gathering
    is the same program for all.

    Parameters
    ----------
    plan
        That of the functional.
    index
        Flat positions along the last two axes, shape (s,), -1 inert.
    """

    def __init__(self, plan: Plan, index: Any) -> None:
        functional, whole, part = _cut(plan)
        super().__init__(functional, index)
        self._base = functional.restrict(index)
        copies = (REPLICATED,) * len(whole)
        self._volume: Any = _moving(plan, functional.domain, whole, copies)
        self._rows: Any = _moving(plan, self._base.domain, part, copies)
        self.domain = self._rows.domain

    def terms(self, x: Any) -> tuple[Any, Any]:
        gradient, diagonal = self._base.terms(self._volume @ x)
        return self._rows.H @ gradient, self._rows.H @ diagonal

    def form(self, x: Any, d: Any) -> Any:
        return self._rows.H @ self._base.form(self._volume @ x, self._rows @ d)

    def quadratic(self, x: Any, d: Any) -> Any:
        return self._base.quadratic(self._volume @ x, self._rows @ d)


def _cut(plan: Plan) -> tuple[Functional, States, States]:
    """A plan's functional, and the states of an element and of a subset's rows."""
    functional = plan.operator
    assert isinstance(functional, Functional)
    whole = states_of(plan.domain_placements[0])
    ndim = len(functional.domain.shape)
    return functional, whole, picked(whole, ndim, range(max(ndim - 2, 0), ndim))


def _moving(plan: Plan, space: Any, source: States, target: States) -> LinearOperator:
    """The identity from one state to another."""
    made: LinearOperator = lower(plan.again(Identity(space), entries=[source], exits=[target]))  # type: ignore[assignment]
    return made
