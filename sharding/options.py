"""How one leaf may run along one mesh axis: which states it reads and makes.

Read off its rule: an aligned axis shards input and output alike, a produced one shards the output
of a whole input, a contracted one gives partial sums. A leaf may also run whole on every device,
or, if it is linear, on partial sums. Where it has no block along an axis, there is no such option.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from linops.algebra.blocks import has_block
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.relations import positions
from linops.rule import Relation
from linops.space import AnySpace
from sharding.states import (
    PARTIAL,
    REPLICATED,
    Sharded,
    State,
    Windowed,
    real_range,
    share_of,
)

__all__ = ["Option", "forbidden", "options"]


@dataclass(frozen=True)
class Option:
    """One way: the axis that is cut (None: none), states read and made, one a member."""

    cut: str | None
    reads: tuple[State, ...]
    makes: tuple[State, ...]

    @property
    def whole(self) -> bool:
        """Whether each device does all of it on a whole input."""
        return self.cut is None and all(state == REPLICATED for state in self.reads)


def options(operator: Operator, devices: int, padded: bool = False) -> tuple[Option, ...]:
    """All ways in which a leaf runs on `devices` devices, `padded` where its blocks must be."""
    ins, outs = len(operator.domain.members), len(operator.codomain.members)
    found = [Option(None, (REPLICATED,) * ins, (REPLICATED,) * outs)]
    if isinstance(operator, LinearOperator):
        found.append(Option(None, (PARTIAL,) * ins, (PARTIAL,) * outs))
    for name in operator.rule.names:
        option = _cut(operator, name, devices, padded)
        if option is not None:
            found.append(option)
    return tuple(found)


def forbidden(operator: Operator) -> tuple[str, ...]:
    """The axes of a leaf that must not be split."""
    rule = operator.rule
    return tuple(name for name in rule.names if rule.relation(name) is Relation.WHOLE)


def _cut(operator: Operator, name: str, devices: int, padded: bool) -> Option | None:
    rule = operator.rule
    relation = rule.relation(name)
    left = dict(positions(rule.domain, name))
    right = dict(positions(rule.codomain, name))
    ins, outs = len(operator.domain.members), len(operator.codomain.members)
    if relation is Relation.WHOLE or not has_block(operator, name, padded):
        return None
    if relation is Relation.PRODUCED:
        if len(right) < outs or _extents(operator.codomain, right) is None:
            return None
        makes = tuple(Sharded(right[m]) for m in range(outs))
        return Option(name, (REPLICATED,) * ins, makes)
    n = _extents(operator.domain, left)
    if n is None:
        return None
    if relation is Relation.CONTRACTED:
        if len(left) < ins:
            return None
        halo = rule.halo(name)
        window = _window(n, n, devices, lambda lo, hi: (lo - halo, hi + halo), rule.periodic(name))
        reads_of_all = tuple(_read(left, member, window) for member in range(ins))
        return Option(name, reads_of_all, (PARTIAL,) * outs)
    total = _extents(operator.codomain, right)
    if total is None or len(right) < outs:
        return None

    reads: list[State] = []
    for member in range(ins):
        wanted = partial(operator._member_range, member, name)
        window = _window(n, total, devices, wanted, rule.periodic(name))
        if window is not None and len({hi - lo for lo, hi in window[1]}) > 1:
            return None
        reads.append(_read(left, member, window))
    return Option(name, tuple(reads), tuple(Sharded(right[m]) for m in range(outs)))


_Ranges = tuple[tuple[int, int], ...]


def _window(
    n: int, total: int, devices: int, wanted: object, periodic: bool
) -> tuple[_Ranges, _Ranges, bool] | None:
    """Planes of the `n` of the input that each share of the `total` needs; None: its own share."""
    assert callable(wanted)
    share = share_of(total, devices)
    real, padded = [], []
    for i in range(devices):
        lo, hi = real_range(total, devices, i)
        real.append(wanted(lo, hi) if lo < hi else (lo, lo))
        padded.append(wanted(i * share, (i + 1) * share))
    own = [(i * share_of(n, devices), (i + 1) * share_of(n, devices)) for i in range(devices)]
    if padded == own and n == total:
        return None
    return tuple(real), tuple(padded), periodic


def _read(left: dict[int, int], member: int, window: tuple[_Ranges, _Ranges, bool] | None) -> State:
    if member not in left:
        return REPLICATED
    return Sharded(left[member]) if window is None else Windowed(left[member], *window)


def _extents(space: AnySpace, where: dict[int, int]) -> int | None:
    found = {space.members[m].shape[p] for m, p in where.items()}
    return found.pop() if len(found) == 1 else None
