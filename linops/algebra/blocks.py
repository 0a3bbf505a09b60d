"""Blocks: an operator on a range of one axis, and the default that serves every operator.

The default extends the input range, by zeros where the operator is linear, applies the whole
operator and crops: right for every rule, and priced as such. Leaves that can do better override
`_block`; nodes cut their parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from linops.algebra.composition import Composition, Product, flat_product
from linops.algebra.origins import check_tree, watch
from linops.elementary.axes import Cut, resized
from linops.elementary.crop_pad import Crop, Pad
from linops.elementary.plane_windows import EdgeWindow, PlaneMask, PlaneWindow
from linops.errors import ShapeError
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.relations import extent_of, name_like, positions
from linops.rule import Member, Relation, Rule
from linops.space import AnySpace

__all__ = [
    "axis_name",
    "block",
    "crop_outputs",
    "extent",
    "has_block",
    "runs_whole",
    "weakened",
]


def block(operator: Operator, axis: str | int, start: int, stop: int, padded: bool) -> Operator:
    """`operator.block(axis, start, stop, padded)`."""
    name = axis_name(operator, axis)
    rule = operator.rule
    relation = rule.relation(name)
    if relation is Relation.WHOLE:
        raise ShapeError(f"{operator.name} must not be split along {name!r}: its rule is '{rule}'")
    n = extent(operator, name)
    start, stop = start.__index__(), stop.__index__()
    if stop < start or (not padded and not 0 <= start <= stop <= n):
        raise ShapeError(
            f"{operator.name}: planes {start} to {stop} are no range of the {n} planes of axis "
            f"{name!r}; only padded blocks may reach past the ends"
        )
    if not padded and start == 0 and stop == n and _takes_all(operator, name, relation):
        return operator
    check_tree(operator)
    own = operator._block(name, start, stop, padded)
    if own is None:
        if isinstance(operator, LinearOperator):
            own = _default(operator, name, start, stop, padded)
        elif relation is Relation.CONTRACTED:
            raise ShapeError(
                f"{operator.name} has no block along {name!r}, which its result does not have: of "
                "a map that is not linear no parts can be told that add up. Override "
                "_block(axis, start, stop, padded) of a functional that is a sum over the axis, "
                f"or write {name}! in the rule '{rule}'"
            )
        else:
            own = _default_of_map(operator, name, start, stop, padded)
    watch(own, [operator])
    return _in_names_of(rule, own) if isinstance(own, LinearOperator) else own


def has_block(operator: Operator, name: str, padded: bool) -> bool:
    """Whether a block along an axis that the rule splits can be made, by whatever way."""
    if operator.linear or operator.rule.relation(name) is not Relation.CONTRACTED:
        return True
    kept = operator.__dict__.setdefault("_cache_has_block", {})
    if (name, padded) not in kept:
        stop = min(1, extent(operator, name))
        kept[name, padded] = operator._block(name, 0, stop, padded) is not None
    return bool(kept[name, padded])


def runs_whole(operator: Operator, name: str) -> bool:
    """Whether blocks along an axis are the default, which runs all of the operator."""
    kept = operator.__dict__.setdefault("_cache_runs_whole", {})
    if name not in kept:
        kept[name] = operator._block(name, 0, min(1, extent(operator, name)), False) is None
    return bool(kept[name])


def axis_name(operator: Operator, axis: str | int) -> str:
    """The rule's name of an axis given by its name there, by its name in a space, or by number.

    Raises
    ------
    ShapeError
        Listing the axes that there are.
    """
    rule = operator.rule
    sides = ((rule.codomain, operator.codomain), (rule.domain, operator.domain))
    if isinstance(axis, str):
        if axis in rule.names:
            return axis
        for members, space in sides:
            for row, member in zip(members, space.members, strict=True):
                if member.axes and axis in member.axes:
                    return row[member.axes.index(axis)].name
        raise ShapeError(
            f"{operator.name} has no axis {axis!r}; its rule is '{rule}', with the axes "
            + ", ".join(rule.names)
        )
    for members, _ in sides:
        row = members[0]
        if len(members) == 1 and row:
            if -len(row) <= axis < len(row):
                return row[axis].name
            break
    raise ShapeError(
        f"{operator.name} has no axis number {axis}; name one of {', '.join(rule.names)}"
    )


def extent(operator: Operator, name: str) -> int:
    """Planes that a block of the axis counts: outputs, or inputs where it is contracted."""
    rule = operator.rule
    if rule.relation(name) is Relation.CONTRACTED:
        return extent_of(operator.domain, rule.domain, name)
    return extent_of(operator.codomain, rule.codomain, name)


def crop_outputs(
    operator: LinearOperator, rule: Rule, name: str, start: int, stop: int
) -> LinearOperator:
    """Planes `start` to `stop` of an operator's output, the axis named as in `rule`."""
    cuts = positions(rule.codomain, name)
    crop = Crop.along(operator.codomain, cuts, start, stop, rule.codomain)
    return flat_product([crop, operator])


def weakened(
    term: Operator,
    name: str,
    start: int,
    stop: int,
    padded: bool,
    relation: Relation,
    halo: int,
) -> Any:
    """A term's block read by a weaker relation of the sum or stack it stands in.

    Aligned may be read as produced (the input is restricted) or contracted (the output is
    extended); a smaller halo is cut out of a larger one.
    """
    own, rule = term.rule.relation(name), term.rule
    if own is Relation.ALIGNED and own is not relation and rule.periodic(name):
        return None
    plain = (start - rule.halo(name), stop + rule.halo(name))
    if own is Relation.ALIGNED and relation is not Relation.PRODUCED:
        if term._input_range(name, start, stop) != plain:
            return None
        if relation is Relation.CONTRACTED and extent_of(
            term.domain, rule.domain, name
        ) != extent_of(term.codomain, rule.codomain, name):
            return None
    inner = term.block(name, start, stop, padded)
    cuts = positions(rule.domain, name)
    parts: list[Operator] = [inner]
    if relation is Relation.CONTRACTED and own is Relation.ALIGNED:
        out = positions(rule.codomain, name)
        parts.insert(0, _extend(term.codomain, out, start, stop, padded, rule.codomain))
    if relation is Relation.PRODUCED:
        if own is Relation.ALIGNED:
            lo, hi = term._input_range(name, start, stop)
            parts.append(_restrict(term.domain, cuts, lo, hi, padded, rule.domain))
    else:
        lo, hi = plain
        wide = (start - halo, stop + halo)
        if not padded:
            n = extent_of(term.domain, rule.domain, name)
            lo, hi = _clip(lo, hi, n)
            wide = _clip(*wide, n)
        if (lo, hi) != wide:
            larger = resized(term.domain, cuts, wide[1] - wide[0])
            parts.append(Crop.along(larger, cuts, lo - wide[0], hi - wide[0], rule.domain))
    return flat_product(parts)


def _in_names_of(rule: Rule, part: LinearOperator) -> LinearOperator:
    """A block under the names that its whole gives to axes, so that blocks of other axes follow.

    Parts of parts call their axes as they like; positions say which is which.
    """
    own = part.rule
    if own.domain == rule.domain and own.codomain == rule.codomain:
        return part
    named = name_like(rule, own)
    if all(
        name in own.names and own.relation(name) is named.relation(name)
        for name in named.names
        if named.relation(name) is not Relation.WHOLE
    ):
        return part
    return Product(Composition.terms_in(part), part._declared_tags, named)


def _takes_all(operator: Operator, name: str, relation: Relation) -> bool:
    """Whether the whole output needs the whole input: not so for a crop, nor around a ring,
    where it comes with the planes beyond both ends."""
    if operator.rule.periodic(name):
        return False
    if relation is not Relation.ALIGNED:
        return True
    lo, hi = operator._input_range(name, 0, extent(operator, name))
    return lo <= 0 and hi >= extent_of(operator.domain, operator.rule.domain, name)


def _default(
    operator: LinearOperator, name: str, start: int, stop: int, padded: bool
) -> LinearOperator:
    rule = operator.rule
    relation = rule.relation(name)
    parts: list[LinearOperator] = [operator]
    if relation in (Relation.ALIGNED, Relation.PRODUCED):
        cuts = positions(rule.codomain, name)
        parts.insert(0, _restrict(operator.codomain, cuts, start, stop, padded, rule.codomain))
    if relation is Relation.ALIGNED:
        lo, hi = operator._input_range(name, start, stop)
    else:
        lo, hi = start - rule.halo(name), stop + rule.halo(name)
    if relation in (Relation.ALIGNED, Relation.CONTRACTED):
        cuts = positions(rule.domain, name)
        n = extent_of(operator.domain, rule.domain, name)
        if relation is Relation.CONTRACTED:
            # Every plane is counted by one block, its halo by others.
            parts.append(_extend(operator.domain, cuts, start, stop, padded, rule.domain))
            if not padded and not rule.periodic(name):
                lo, hi = _clip(lo, hi, n)
            if (lo, hi) != (start, stop):
                wide = resized(operator.domain, cuts, hi - lo)
                parts.append(Crop.along(wide, cuts, start - lo, stop - lo, rule.domain))
        elif rule.periodic(name):
            small = resized(operator.domain, cuts, hi - lo)
            parts.append(PlaneWindow(small, operator.domain, cuts, -lo, n, rule.domain))
            if padded:
                # Real planes and their neighbors; what stands behind them is not of the ring.
                begin, end = max(start, 0) - start, min(stop, n) - start
                end += hi - lo - (stop - start)
                parts.append(PlaneMask(small, cuts, begin, end, rule.domain))
        else:
            parts.append(_extend(operator.domain, cuts, lo, hi, padded, rule.domain))
    return flat_product(parts)


def _default_of_map(operator: Operator, name: str, start: int, stop: int, padded: bool) -> Operator:
    """The default of a map that is not linear: planes that are not there repeat their neighbor,
    since zero may be no argument of it. No output of the range reads them."""
    rule = operator.rule
    cuts = positions(rule.codomain, name)
    crop = _restrict(operator.codomain, cuts, start, stop, padded, rule.codomain)
    if rule.relation(name) is Relation.PRODUCED:
        return flat_product([crop, operator])
    cuts = positions(rule.domain, name)
    n, wraps = extent_of(operator.domain, rule.domain, name), rule.periodic(name)
    lo, hi = operator._input_range(name, start, stop)
    if not (padded or wraps):
        lo, hi = _clip(lo, hi, n)
    begin, end = max(lo, 0), min(hi, n)
    if wraps:
        halo = hi - lo - (stop - start)
        begin, end = (max(start, 0), min(stop, n) + halo) if padded else (lo, hi)
        if padded:
            begin, end = begin - start + lo, end - start + lo
    small = resized(operator.domain, cuts, hi - lo)
    wide = EdgeWindow(
        small, operator.domain, cuts, lo, begin - lo, end - lo, n if wraps else None, rule.domain
    )
    return flat_product([crop, operator, wide])


def _extend(
    space: AnySpace,
    cuts: Sequence[Cut],
    start: int,
    stop: int,
    padded: bool,
    members: tuple[Member, ...],
) -> LinearOperator:
    """From a range of planes into `space`."""
    if padded:
        small = resized(space, cuts, stop - start)
        return PlaneWindow(small, space, cuts, -start, members=members)
    n = space.members[cuts[0][0]].shape[cuts[0][1]]
    return Pad.along(space, cuts, *_clip(start, stop, n), members)


def _restrict(
    space: AnySpace,
    cuts: Sequence[Cut],
    start: int,
    stop: int,
    padded: bool,
    members: tuple[Member, ...],
) -> LinearOperator:
    """From `space` to a range of its planes."""
    if padded:
        small = resized(space, cuts, stop - start)
        return PlaneWindow(space, small, cuts, start, members=members)
    n = space.members[cuts[0][0]].shape[cuts[0][1]]
    return Crop.along(space, cuts, *_clip(start, stop, n), members)


def _clip(start: int, stop: int, n: int) -> tuple[int, int]:
    first = min(max(start, 0), n)
    return first, max(min(stop, n), first)
