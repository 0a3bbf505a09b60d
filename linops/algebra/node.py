"""What the n-ary nodes share: their terms, and all that follows from the terms alone.

Each family (`Sum`, `Composition`, the stacks) is written once, for any operators; final classes of
a few lines beside it say what linear terms, others and functionals add. `of` takes the one that
fits.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar

from linops.algebra.complexify import complexify
from linops.cost import Cost
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.precision import Precision
from linops.relations import only_local
from linops.rule import Rule

__all__ = ["LinearNode", "Node"]


class Node(Operator):
    """An operator made of `terms`."""

    terms: tuple[Any, ...]
    batched = True
    _exact: ClassVar[bool] = True
    _family: ClassVar[type[Any]]
    _kinds: ClassVar[dict[str, type[Any]]]
    # The classes of a family, by the kind of operator that they are.

    def __init_subclass__(cls, family: bool = False, final: bool = False, **options: Any) -> None:
        super().__init_subclass__(**options)
        if family:
            cls._kinds, cls._family = {}, cls
        cls._node = cls._family if final else None
        if final:
            cls._kinds[cls._kind] = cls

    @classmethod
    def of(cls, terms: Sequence[Any]) -> Any:
        """The node of these terms: linear, or a functional, where all of them are."""
        kind = terms[0]._kind
        for term in terms:
            if term._kind != kind:
                kind = Operator._kind
        return cls._kinds[kind](terms)

    @classmethod
    def terms_in(cls, operator: Any) -> tuple[Any, ...]:
        """The terms of a node of this family; of anything else, classes derived from such nodes
        among them, the operator itself."""
        return operator.terms if operator._node is cls else (operator,)

    @cached_property
    def _aliases(self) -> bool:  # type: ignore[override]
        # Of a chain, members of a product space may still be one array.
        return any(term._aliases for term in self.terms)

    @cached_property
    def _functions(self) -> tuple[Callable[[Any], Any], ...]:
        return tuple([term._forward for term in self.terms])

    @abstractmethod
    def _jacobian(self, x: Any) -> LinearOperator:
        """What the kinds differ in."""

    def _legal(self, rule: Rule) -> Rule:
        """A rule by which partial sums pass through this node; through nonlinear maps none do."""
        return only_local(rule) if self._kind is Operator._kind else rule

    def _cost(self) -> Cost:
        first, *others = [term.cost() for term in self.terms]
        total: Cost = sum(others, first)
        return total

    def _derive_precision(self) -> Precision:
        return Precision.coarsest(term.precision for term in self.terms)


class LinearNode(LinearOperator, Node):
    """A node of linear terms."""

    _spreading: ClassVar[frozenset[str]] = frozenset({"nonnegative"})
    # Tags that the node has where all terms have them.
    _aliases = Node._aliases  # before what `LinearOperator` says of leaves

    def _on(self, terms: Sequence[LinearOperator], rule: Any = None) -> LinearOperator:
        """The same node of other terms."""
        made: LinearOperator = self._kinds[self._kind](terms, *() if rule is None else (rule,))
        return made

    @cached_property
    def _adjoint_functions(self) -> tuple[Callable[[Any], Any], ...]:
        return tuple([term._backward for term in self.terms])

    def _make_adjoint(self) -> LinearOperator:
        if "self_adjoint" in self.tags:
            return self
        return self._on([term.H for term in self.terms])

    def _make_conjugate(self) -> LinearOperator:
        return self._on([term.conj() for term in self.terms])

    def _complexified(self) -> LinearOperator | None:
        if any("real_linear" in term.tags for term in self.terms):
            return None
        return self._on([complexify(term) for term in self.terms])

    def _derive_tags(self) -> frozenset[str]:
        tags = [term.tags for term in self.terms]
        every, some = frozenset.intersection(*tags), frozenset.union(*tags)
        spreading = every.intersection(self._spreading)
        return spreading | (some & {"real_linear", "approximate_adjoint"})
