"""Blocks of operators whose functions serve any extent of an aligned axis.

The function runs on the planes of the block and the halo beside them, and what it makes of the
halo is cut off. Where the array ends the planes end too, so that the function's own boundary is
met there and nowhere else. Blocks of other operators are in `linops/algebra/blocks.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from linops import arrays
from linops.algebra.composition import flat_product
from linops.arrays import Array
from linops.elementary.axes import resized
from linops.elementary.crop_pad import Crop
from linops.elementary.plane_windows import EdgeWindow, PlaneMask, PlaneWindow
from linops.operator import Operator
from linops.relations import positions
from linops.rule import Relation, Rule
from linops.space import AnySpace

__all__ = ["block_by_rule", "block_of_any_extent"]

Make = Callable[[AnySpace, AnySpace], Operator]


def block_by_rule(
    operator: Operator, axis: str, start: int, stop: int, padded: bool
) -> Operator | None:
    """The block that rule and fields give, of an operator that is `blockwise`.

    Without halo its functions see their own planes of spaces and arrays alone; padded blocks are
    masked where they make planes, or else where they read them. None along an axis with a halo
    where arrays of its own are cut along it, or where it changes its extent.
    """
    rule = operator.rule
    ins, outs = positions(rule.domain, axis), positions(rule.codomain, axis)
    held = operator._data_and_static()[0] if rule.arrays else {}
    cut = dict(_cut_arrays(held, rule, axis))
    if rule.halo(axis):
        if cut:
            return None

        def make(domain: AnySpace, codomain: AnySpace) -> Operator:
            return operator._with(domain=domain, codomain=codomain)

        return block_of_any_extent(operator, make, axis, start, stop, padded)
    inner = operator._with(
        domain=resized(operator.domain, ins, stop - start),
        codomain=resized(operator.codomain, outs, stop - start),
        **{name: cut_planes(held[name], number, start, stop) for name, number in cut.items()},
    )
    if not padded:
        return inner
    members, spaces = (rule.codomain, inner.codomain) if outs else (rule.domain, inner.domain)
    m, p = (outs or ins)[0]
    n = (operator.codomain if outs else operator.domain).members[m].shape[p]
    mask = PlaneMask(spaces, outs or ins, -start, n - start, members)
    return flat_product([mask, inner] if outs else [inner, mask])


def cut_planes(table: Array, axis: int, start: int, stop: int) -> Array:
    """Planes `start` to `stop` of an array along a negative axis, zeros outside of it."""
    n = table.shape[axis]
    lo = min(max(start, 0), n)
    hi = max(min(stop, n), lo)
    before = min(max(lo - start, 0), stop - start)
    part = arrays.narrow(table, axis, lo, hi)
    return arrays.widen(part, axis, before, stop - start - before - (hi - lo))


def _cut_arrays(held: Mapping[str, Any], rule: Rule, axis: str) -> Iterator[tuple[str, int]]:
    """The arrays, of those that an operator holds, that have the axis, each with its (negative)
    number there."""
    own = [name for name, value in held.items() if arrays.is_array(value)]
    for name, member in zip(own, rule.arrays, strict=False):
        for number, one in enumerate(member):
            if one.name == axis:
                yield name, number - len(member)


def block_of_any_extent(
    operator: Operator, make: Make, axis: str, start: int, stop: int, padded: bool
) -> Operator | None:
    """The block of an aligned axis; None where the axis is another, or changes its extent.

    Parameters
    ----------
    operator
        What is cut.
    make
        The same functions between spaces of another extent.
    axis, start, stop, padded
        As for `Operator.block`, the axis by its name in the rule.
    """
    rule = operator.rule
    if rule.relation(axis) is not Relation.ALIGNED:
        return None
    ins, outs = positions(rule.domain, axis), positions(rule.codomain, axis)
    extents = {operator.domain.members[m].shape[p] for m, p in ins}
    extents |= {operator.codomain.members[m].shape[p] for m, p in outs}
    if len(extents) > 1:
        return None
    (n,) = extents
    halo, wraps, count = rule.halo(axis), rule.periodic(axis), stop - start

    def of(extent: int) -> Operator:
        return make(resized(operator.domain, ins, extent), resized(operator.codomain, outs, extent))

    lo, hi = start - halo, stop + halo
    if not padded:
        if not wraps:
            lo, hi = max(lo, 0), min(hi, n)
        inner = of(hi - lo)
        if (lo, hi) == (start, stop):
            return inner
        crop = Crop.along(inner.codomain, outs, start - lo, stop - lo, rule.codomain)
        return flat_product([crop, inner])
    if wraps or not halo:
        # The ring closes in the halo, which is cut off.
        inner = of(hi - lo)
        begin, end = max(start, 0) - start, min(stop, n) - start + 2 * halo
        crop = Crop.along(inner.codomain, outs, halo, halo + count, rule.codomain)
        mask = PlaneMask(crop.codomain, outs, -start, n - start, rule.codomain)
        if not halo:
            return flat_product([mask, inner])
        if operator.linear:
            real: Operator = PlaneMask(inner.domain, ins, begin, end, rule.domain)
        else:
            spaces = inner.domain, inner.domain
            real = EdgeWindow(*spaces, ins, 0, begin, end, members=rule.domain)
        return flat_product([mask, crop, inner, real])
    # As many planes as the array has at most, moved to where they end as the array does.
    inner = of(min(hi - lo, n))
    small = resized(operator.domain, ins, hi - lo)
    first = min(max(lo, 0), max(n - (hi - lo), 0))
    if operator.linear:
        into: Operator = PlaneWindow(small, inner.domain, ins, first - lo, members=rule.domain)
    else:
        begin, end = max(lo, 0) - lo, min(hi, n) - lo
        spaces = small, inner.domain
        into = EdgeWindow(*spaces, ins, lo - first, begin, end, members=rule.domain)
    target = resized(operator.codomain, outs, count)
    out = PlaneWindow(inner.codomain, target, outs, start - first, members=rule.codomain)
    return flat_product([out, inner, into])
