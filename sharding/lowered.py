"""Lowered operators: of the same kind as what was planned, on the devices of the plan.

They map placed elements to placed elements. A plain array of the real shape is put on entry, and
then the result is gathered on exit. How a program runs is an engine's business
(`sharding/executors/`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from types import NoneType
from typing import Any, ClassVar

from linops import arrays
from linops.algebra.gram import Gram
from linops.elementary.diagonal import Diagonal
from linops.functionals.functional import Functional
from linops.functionals.restricted import Restricted
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.rule import Member
from linops.structure import flatten, rebuilt
from sharding.devices import family
from sharding.entry import (
    gather,
    is_placed,
    is_traced,
    map_over,
    pairs,
    run_program,
    states_of_all,
)
from sharding.executors import Engine, engine_of
from sharding.plan_home import placed_space
from sharding.plans import Plan
from sharding.program import Program
from sharding.states import REPLICATED, Sharded, State, States
from sharding.summary import summarize
from sharding.writer import reverse

__all__ = [
    "Lowered",
    "LoweredFunctional",
    "LoweredOperator",
    "is_lowered",
    "lower",
    "lowered_beside",
]


def lower(plan: Plan) -> Lowered | LoweredOperator | LoweredFunctional:
    """The operator of a plan, lowered."""
    if isinstance(plan.operator, Functional):
        return LoweredFunctional(plan)
    if isinstance(plan.operator, LinearOperator):
        return Lowered(plan)
    return LoweredOperator(plan)


def is_lowered(operator: Operator) -> bool:
    """Whether an operator runs by a plan already."""
    return operator._lowered


class Lowered(LinearOperator):
    """A linear operator on the devices of a plan."""

    plan: Plan
    batched = True
    _exact: ClassVar[bool] = True
    _lowered: ClassVar[bool] = True

    def __init__(
        self, plan: Plan, engine: Engine | None = None, adjoint: Program | None = None
    ) -> None:
        _set_up(self, plan)
        self._engine_given = engine
        self._adjoint_program = plan.adjoint if adjoint is None else adjoint

    def __repr__(self) -> str:
        return _summary(self)

    def describe(self) -> str:
        """Executor, devices and placements in three lines, and the tree of what was planned."""
        return f"{_summary(self)}\n{self.plan.operator.describe()}"

    @cached_property
    def _engine(self) -> Engine:
        return self._engine_given or engine_of(self.plan)

    @property
    def _binds_itself(self) -> bool:  # type: ignore[override]
        return family(self.plan.devices[0]) == "jax" or is_traced(self.plan)

    @property
    def _aliases(self) -> bool:  # type: ignore[override]
        return family(self.plan.devices[0]) == "threads" and self.plan.operator._aliases

    @property
    def local(self) -> Any:
        """The same operator on this rank's parts, for `torch.func`."""
        return self._engine.local(self)

    def _identity(self) -> Operator:
        return self.plan.operator

    def _data_and_static(self) -> Any:
        assert self._adjoint_program is not None
        return _taken_apart(self, (self.plan.forward, self._adjoint_program))

    @classmethod
    def _of_data(cls, static: Any, data: Any, name: str) -> Any:
        return _put_together(cls, static, data, name)

    @property
    def _runs(self) -> Operator:
        """Whose arrays it uses: a derivative may be recorded through them."""
        return self.plan.operator

    def gram(self, weights: Any = None) -> LinearOperator:
        """`A.H @ W @ A`, lowered with the same placements; weights plain or placed."""
        if weights is not None and not isinstance(weights, Operator):
            weights = gather(weights, self.codomain)
        entries = states_of_all(self.plan.domain_placements)
        base = self.plan.operator
        assert isinstance(base, LinearOperator)
        return lower(self.plan.again(base.gram(weights), entries=entries, exits=entries))  # type: ignore[return-value]

    def _apply(self, x: Any) -> Any:
        if is_traced(self.plan):
            return self.plan.operator(x)
        return map_over(x, self.domain, self.codomain, self.plan.forward, self._engine)

    def _apply_adjoint(self, y: Any) -> Any:
        assert self._adjoint_program is not None
        if is_traced(self.plan):
            base = self.plan.operator
            assert isinstance(base, LinearOperator)
            return base.H(y)
        return map_over(y, self.codomain, self.domain, self._adjoint_program, self._engine)

    def _make_conjugate(self) -> LinearOperator:
        base = self.plan.operator
        assert isinstance(base, LinearOperator)
        again = self.plan.again(
            base.conj(),
            entries=states_of_all(self.plan.domain_placements),
            exits=states_of_all(self.plan.codomain_placements),
        )
        return lower(again)  # type: ignore[return-value]

    def _columns(self, index: Any, axes: tuple[int, ...]) -> LinearOperator | None:
        base, ndim = self.plan.operator, getattr(self.domain, "ndim", 0)
        assert isinstance(base, LinearOperator)
        (states,) = states_of_all(self.plan.domain_placements)
        again = self.plan.again(
            base.columns(index, axes),
            entries=[picked(states, ndim, axes)],
            exits=states_of_all(self.plan.codomain_placements),
            key=("columns", index.shape[0], axes),
        )
        return lower(again)  # type: ignore[return-value]

    def _diagonal(self) -> Any:
        base = self.plan.operator
        assert isinstance(base, LinearOperator)
        if isinstance(base, Gram) and isinstance(base.weights, (Diagonal, NoneType)):
            from sharding.squares import diagonal_on_ranks

            weights = None if base.weights is None else base.weights._diagonal()
            own = diagonal_on_ranks(self.plan, base.base, weights)
            if own is not None:
                return own
        found = base._diagonal()
        return None if found is None else self.domain.home.adopt(found)

    def _gram_diagonal(self, weights: Any) -> Any:
        from sharding.squares import diagonal_on_ranks

        base = self.plan.operator
        assert isinstance(base, LinearOperator)
        own = diagonal_on_ranks(self.plan, base, weights)
        if own is not None:
            return own
        plain = None if weights is None else gather(weights, self.codomain)
        found = base._gram_diagonal(plain)
        return None if found is None else self.domain.home.adopt(found)

    def _cost(self) -> Any:
        return self.plan.operator.cost()


class LoweredOperator(Operator):
    """A nonlinear operator on the devices of a plan."""

    plan: Plan
    batched = True
    _exact: ClassVar[bool] = True
    _lowered: ClassVar[bool] = True

    def __init__(self, plan: Plan, engine: Engine | None = None) -> None:
        _set_up(self, plan)
        self._engine_given = engine

    def __repr__(self) -> str:
        return _summary(self)

    def describe(self) -> str:
        """Executor, devices and placements in three lines, and the tree of what was planned."""
        return f"{_summary(self)}\n{self.plan.operator.describe()}"

    @cached_property
    def _engine(self) -> Engine:
        return self._engine_given or engine_of(self.plan)

    @property
    def _aliases(self) -> bool:  # type: ignore[override]
        return family(self.plan.devices[0]) == "threads" and self.plan.operator._aliases

    @property
    def local(self) -> Any:
        """The same operator on this rank's parts, for `torch.func`."""
        return self._engine.local(self)

    def _identity(self) -> Operator:
        return self.plan.operator

    def _data_and_static(self) -> Any:
        return _taken_apart(self, (self.plan.forward,))

    @classmethod
    def _of_data(cls, static: Any, data: Any, name: str) -> Any:
        return _put_together(cls, static, data, name)

    def _apply(self, x: Any) -> Any:
        if is_traced(self.plan):
            return self.plan.operator(x)
        return map_over(x, self.domain, self.codomain, self.plan.forward, self._engine)

    def _jacobian(self, x: Any) -> LinearOperator:
        if is_traced(self.plan):
            return self.plan.operator._jacobian(x)
        parts = [space.home.put(part) for space, part in pairs(x, self.domain)]
        engine = self._engine.linearised(self.plan.forward, parts)
        return Lowered(self.plan, engine, reverse(self.plan.forward))

    def _cost(self) -> Any:
        return self.plan.operator.cost()


class LoweredFunctional(Functional):
    """A functional on the devices of a plan: its value is global."""

    batched = True
    _lowered: ClassVar[bool] = True

    def __init__(self, plan: Plan) -> None:
        domain = placed_space(plan.operator.domain, plan.domain_placements, plan)
        super().__init__(domain, name=plan.operator.name)
        self.plan = plan

    def __repr__(self) -> str:
        return _summary(self)

    def describe(self) -> str:
        """Executor, devices and placements in three lines, and the tree of what was planned."""
        return f"{_summary(self)}\n{self.plan.operator.describe()}"

    @cached_property
    def _engine(self) -> Engine:
        return engine_of(self.plan)

    @property
    def local(self) -> Any:
        """The global value from this rank's parts, for `torch.func`."""
        return self._engine.local(self)

    @property
    def base(self) -> Functional:
        """What was planned."""
        assert isinstance(self.plan.operator, Functional)
        return self.plan.operator

    def _identity(self) -> Operator:
        return self.plan.operator

    def restrict(self, index: Any) -> Restricted:
        """The functional seen from a subset of positions, by each device from its own planes."""
        if family(self.plan.devices[0]) == "threads":
            return self.base.restrict(index)
        from sharding.restricted_functional import LoweredRestricted

        return LoweredRestricted(self, index)

    def surrogate(self, x: Any) -> LinearOperator:
        """The surrogate at x, lowered with the same placement."""
        made = self.base.surrogate(gather(x, self.domain))
        entries = states_of_all(self.plan.domain_placements)
        return lower(self.plan.again(made, entries=entries, exits=entries))  # type: ignore[return-value]

    def _value(self, x: Any) -> Any:
        if is_traced(self.plan):
            return self.base._value(x)
        parts = [space.home.adopt(part) for space, part in pairs(x, self.domain)]
        value = run_program(self._engine, self.plan.forward, parts)[0]
        if arrays.is_distributed(value) and not is_placed(x, self.domain):
            return self.plan.codomain_placements[0].gather(value)
        return value

    def _make_gradient(self) -> Operator:
        entries = states_of_all(self.plan.domain_placements)
        return lower(self.plan.again(self.base.gradient, entries=entries, exits=entries))

    def _gradient(self, x: Any) -> Any:
        return self.gradient(x)

    def _prox(self, x: Any, step: Any) -> Any:
        placed = is_placed(x, self.domain)
        found = self.base._prox(gather(x, self.domain), step)
        return self.domain.home.adopt(found) if placed else found


def picked(states: States, ndim: int, axes: Sequence[int]) -> States:
    """The states of what is picked along `axes`: the other axes stay cut as they are."""
    others = [a for a in range(ndim) if a not in {axis % ndim for axis in axes}]
    return tuple(
        Sharded(others.index(s.axis)) if isinstance(s, Sharded) and s.axis in others else REPLICATED
        for s in states
    )


def lowered_beside(plan: Plan, states: States, operator: Operator, key: Any = None) -> Any:
    """An operator lowered where the first member of its domain has these states; the others, and
    what it makes, are cut along the axes to which its rule gives the same names."""
    rule = operator.rule
    names = [a.name for a in rule.domain[0]]
    cuts = [names[s.axis] if isinstance(s, Sharded) else None for s in states]

    def cut(member: Member) -> States:
        own = [a.name for a in member]
        found: list[State] = [
            Sharded(own.index(name)) if name in own else REPLICATED for name in cuts
        ]
        return tuple(found)

    again = plan.again(operator, list(map(cut, rule.domain)), list(map(cut, rule.codomain)), key)
    return lower(again)


def _summary(operator: Any) -> str:
    try:
        return summarize(operator.plan, "lowered", operator.tags)
    except Exception:  # a debugger looks on while it is made, or a pytree holds no arrays
        return f"<{type(operator).__name__}, not set up>"


def _set_up(operator: Any, plan: Plan) -> None:
    base = plan.operator
    domain = placed_space(base.domain, plan.domain_placements, plan)
    codomain = placed_space(base.codomain, plan.codomain_placements, plan)
    tags = base.tags
    if domain != codomain:  # its adjoint leads back to other devices
        tags = tags - {"self_adjoint", "psd", "diagonal"}
    Operator.__init__(
        operator, domain, codomain, precision=base.precision, name=base.name, tags=tags
    )
    operator.plan = plan


def _taken_apart(operator: Any, programs: tuple[Program, ...]) -> Any:
    """What JAX sees of a lowered operator: of one that is compiled the arrays of its blocks."""
    if operator.plan.executor != "shard_map":
        return flatten(operator)
    from sharding.detached import taken_apart

    leaves, static = taken_apart(operator.plan, operator._engine, programs)
    return {"leaves": leaves}, (("static", static),)


def _put_together(cls: Any, static: Any, data: Any, name: str) -> Any:
    if "leaves" not in data:
        return rebuilt(cls, static, data, name)
    from sharding.detached import put_together

    plan, engine, adjoint = put_together(dict(static)["static"], data["leaves"])
    return cls(plan, engine) if adjoint is None else cls(plan, engine, adjoint)
