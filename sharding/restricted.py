"""A functional seen from a subset of positions, on ranks: what VCD asks of a prior."""

from __future__ import annotations

from typing import Any

from linops.functionals.functional import Functional
from linops.functionals.restricted import Restricted, RestrictedForm, RestrictedTerms
from linops.operator import LinearOperator
from sharding.lowered import lower, picked
from sharding.plans import Plan, states_of

__all__ = ["LoweredRestricted"]


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
        functional = plan.operator
        assert isinstance(functional, Functional)
        super().__init__(functional, index)
        whole = states_of(plan.domain_placements[0])
        ndim = len(functional.domain.shape)
        part = picked(whole, ndim, range(max(ndim - 2, 0), ndim))
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
