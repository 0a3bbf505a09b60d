"""How the rules of parts become the rule of a composition.

Names belong to one rule; two operators match their axes by position. Along a product an axis
stays aligned only where it is aligned through every factor, and halos add. In a sum or stack each
pair of axes takes the weakest relation of the terms, which is always legal: an aligned axis can be
read as produced (restrict the input) or as contracted (extend the output).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from linops.rule import Axis, Member, Relation, Rule
from linops.space import AnySpace

__all__ = [
    "Link",
    "Position",
    "extent_of",
    "fresh_name",
    "link_named",
    "name_like",
    "only_local",
    "positions",
    "product_links",
    "product_rule",
    "stack_rule",
    "sum_rule",
]

Position = tuple[int, int]
"""Member of a space, and axis within it."""


@dataclass(frozen=True)
class Link:
    """One axis followed through the factors of a product, outermost first.

    `names` holds what each factor calls it, None where the factor does not see it; `first` and
    `last` are the outermost and the innermost factor that do. `factors` says whether a block may
    cut them one by one.
    """

    names: tuple[str | None, ...]
    relation: Relation
    halo: int
    periodic: bool
    first: int
    last: int
    factors: bool = True


def positions(members: tuple[Member, ...], name: str) -> tuple[Position, ...]:
    """Where the axis of that name stands on one side of a rule."""
    return tuple(
        (m, p)
        for m, member in enumerate(members)
        for p, axis in enumerate(member)
        if axis.name == name
    )


def extent_of(space: AnySpace, members: tuple[Member, ...], name: str) -> int:
    """The extent of a named axis of a space."""
    m, p = positions(members, name)[0]
    return space.members[m].shape[p]


def name_like(whole: Rule, part: Rule) -> Rule:
    """The rule of a block, with the names and relations of the rule it is a block of.

    An axis that the whole may split stays so where the part has one axis at the same positions,
    read by the same relation or by a weaker one.
    """
    found: dict[str, Axis] = {}
    for name in whole.names:
        relation = whole.relation(name)
        found[name] = Axis(name, splits=False)
        own = {side: positions(getattr(whole, side), name) for side in _SIDES[relation]}
        theirs = {getattr(part, side)[m][p] for side, places in own.items() for m, p in places}
        names = {axis.name for axis in theirs}
        if len(names) != 1 or not all(axis.splits for axis in theirs):
            continue
        (inner,) = names
        if any(positions(getattr(part, side), inner) != places for side, places in own.items()):
            continue
        model = part if part.relation(inner) is relation else whole
        called = inner if model is part else name
        found[name] = Axis(name, model.halo(called), model.periodic(called))
    left = tuple(tuple(found[axis.name] for axis in row) for row in whole.domain)
    right = tuple(
        tuple(Axis(axis.name, splits=found[axis.name].splits) for axis in row)
        for row in whole.codomain
    )
    return Rule(left, right)


def product_links(rules: Sequence[Rule]) -> list[Link]:
    """The axes of a product of operators with these rules, outermost first."""
    parent: dict[tuple[int, str], tuple[int, str]] = {
        (k, name): (k, name) for k, rule in enumerate(rules) for name in rule.names
    }

    def root(node: tuple[int, str]) -> tuple[int, str]:
        while parent[node] != node:
            node = parent[node]
        return node

    for k in range(len(rules) - 1):
        for outer, inner in zip(rules[k].domain, rules[k + 1].codomain, strict=True):
            for a, b in zip(outer, inner, strict=True):
                parent[root((k, a.name))] = root((k + 1, b.name))
    groups: dict[tuple[int, str], list[tuple[int, str]]] = {}
    for node in parent:
        groups.setdefault(root(node), []).append(node)
    return [_link(rules, group) for group in groups.values()]


def link_named(rule: Rule, rules: Sequence[Rule], axis: str) -> Link | None:
    """The axis that a product with this rule calls so, followed through its factors."""
    for link in product_links(rules):
        if link.relation is rule.relation(axis) and _overall_name(rule, rules, link) == axis:
            return link
    return None


def _overall_name(rule: Rule, rules: Sequence[Rule], link: Link) -> str | None:
    """What the product calls the axis that a link follows."""
    side, inner = (
        (rule.codomain, rules[0].codomain)
        if link.relation is Relation.PRODUCED
        else (rule.domain, rules[-1].domain)
    )
    name = link.names[0] if link.relation is Relation.PRODUCED else link.names[-1]
    for own, theirs in zip(side, inner, strict=True):
        for a, b in zip(own, theirs, strict=True):
            if b.name == name:
                return a.name
    return None


def product_rule(rules: Sequence[Rule]) -> Rule:
    """The rule of a product, outermost factor first."""
    links = product_links(rules)
    last = len(rules) - 1
    found = {
        (k, name): link
        for link in links
        for k, name in enumerate(link.names)
        if name is not None and link.relation is not Relation.WHOLE
    }
    taken = {axis.name for member in rules[last].domain for axis in member}
    # An axis that is followed through, but must not split, is one axis with one name too.
    whole = {
        link.names[0]: str(link.names[last])
        for link in links
        if link.relation is Relation.WHOLE and link.names[last] in taken
    }
    reserved = {axis.name for member in rules[0].codomain for axis in member}
    renamed: dict[str, str] = {}

    def left(axis: Axis) -> Axis:
        link = found.get((last, axis.name))
        if link is None:
            return Axis(axis.name, splits=False)
        return Axis(axis.name, link.halo, link.periodic)

    def right(axis: Axis) -> Axis:
        link = found.get((0, axis.name))
        if link is not None and link.relation is Relation.ALIGNED:
            return Axis(str(link.names[last]))
        if link is None and axis.name in whole:
            return Axis(whole[axis.name], splits=False)
        if axis.name not in renamed:
            renamed[axis.name] = fresh_name(axis.name, taken, reserved)
        return Axis(renamed[axis.name], splits=link is not None)

    return Rule(
        tuple(tuple(map(left, member)) for member in rules[last].domain),
        tuple(tuple(map(right, member)) for member in rules[0].codomain),
    )


def sum_rule(rules: Sequence[Rule]) -> Rule:
    """The rule of a sum of operators between the same spaces."""
    first = rules[0]
    taken: set[str] = set()
    names: dict[tuple[tuple[str, ...], bool], str] = {}

    def key(side: str, m: int, p: int) -> tuple[str, ...]:
        return tuple(getattr(rule, side)[m][p].name for rule in rules)

    left = {key("domain", m, p) for m, row in enumerate(first.domain) for p in range(len(row))}
    right = {key("codomain", m, p) for m, row in enumerate(first.codomain) for p in range(len(row))}

    def axis(side: str, m: int, p: int) -> Axis:
        group = key(side, m, p)
        aligned = group in left and group in right
        relations = {rule.relation(name) for rule, name in zip(rules, group, strict=True)}
        legal = {Relation.ALIGNED} if aligned else {Relation.ALIGNED, _ONE_SIDED[side]}
        halos = [rule.halo(name) for rule, name in zip(rules, group, strict=True)]
        wraps = [
            rule.periodic(name) for rule, name, h in zip(rules, group, halos, strict=True) if h
        ]
        splits = relations <= legal and len(set(wraps)) <= 1
        slot = (group, aligned or side == "codomain")
        if slot not in names:
            names[slot] = fresh_name(group[0], taken)
        if side == "codomain" or not splits or (any(wraps) and not aligned):
            # A ring read as contracted takes whole outputs of its own planes: no halo.
            return Axis(names[slot], splits=splits)
        return Axis(names[slot], max(halos), any(wraps))

    domain = tuple(
        tuple(axis("domain", m, p) for p in range(len(row))) for m, row in enumerate(first.domain)
    )
    codomain = tuple(
        tuple(axis("codomain", m, p) for p in range(len(row)))
        for m, row in enumerate(first.codomain)
    )
    return Rule(domain, codomain)


def stack_rule(rules: Sequence[Rule], codomains: Sequence[AnySpace]) -> Rule:
    """The rule of operators with one domain whose outputs stand side by side."""
    first = rules[0]
    taken: set[str] = set()
    domain: list[Member] = []
    joined: dict[tuple[int, str], str] = {}

    def extents_of(name_in: Sequence[str]) -> set[int]:
        return {
            space.members[m].shape[p]
            for rule, space, name in zip(rules, codomains, name_in, strict=True)
            for m, p in positions(rule.codomain, name)
        }

    for m, row in enumerate(first.domain):
        member = []
        for p in range(len(row)):
            group = [rule.domain[m][p].name for rule in rules]
            relations = {rule.relation(name) for rule, name in zip(rules, group, strict=True)}
            halos = [rule.halo(name) for rule, name in zip(rules, group, strict=True)]
            wraps = {r.periodic(n) for r, n, h in zip(rules, group, halos, strict=True) if h}
            splits = relations <= {Relation.ALIGNED, Relation.CONTRACTED} and len(wraps) <= 1
            known = [joined[k, n] for k, n in enumerate(group) if (k, n) in joined]
            name = known[0] if known else fresh_name(group[0], taken)
            # One axis has one extent: outputs that are cropped apart are not aligned.
            aligned = relations == {Relation.ALIGNED} and len(extents_of(group)) == 1
            if aligned and splits:
                joined.update(dict.fromkeys(enumerate(group), name))
            if not splits or (any(wraps) and not aligned):
                # A ring read as contracted takes whole outputs of its own planes: no halo.
                member.append(Axis(name, splits=splits))
            else:
                member.append(Axis(name, max(halos), any(wraps)))
        domain.append(tuple(member))
    reserved = {axis.name for rule in rules for member in rule.codomain for axis in member}
    codomain: list[Member] = []
    extents: dict[str, int] = {}
    produced: dict[tuple[int, str], str] = {}
    for k, (rule, space) in enumerate(zip(rules, codomains, strict=True)):
        for row, target in zip(rule.codomain, space.members, strict=True):
            member = []
            for axis, extent in zip(row, target.shape, strict=True):
                if (k, axis.name) in joined:
                    member.append(Axis(joined[k, axis.name]))
                    continue
                if (k, axis.name) not in produced:
                    shared = extents.get(axis.name) == extent and axis.splits
                    name = axis.name if shared else fresh_name(axis.name, taken, reserved)
                    produced[k, axis.name] = name
                    if name == axis.name:
                        extents.setdefault(name, extent)
                legal = (Relation.PRODUCED, Relation.ALIGNED)
                member.append(
                    Axis(produced[k, axis.name], splits=rule.relation(axis.name) in legal)
                )
            codomain.append(tuple(member))
    return Rule(tuple(domain), tuple(codomain))


def only_local(rule: Rule) -> Rule:
    """Partial sums do not pass a nonlinear map: what would be contracted must stay whole."""

    def axes(members: Any) -> Any:
        return tuple(
            tuple(
                replace(a, splits=False, halo=0, periodic=False)
                if rule.relation(a.name) is Relation.CONTRACTED
                else a
                for a in member
            )
            for member in members
        )

    return Rule(axes(rule.domain), axes(rule.codomain))


def fresh_name(name: str, taken: set[str], reserved: Collection[str] = ()) -> str:
    """`name`, with the smallest number from 2 behind it that makes it new; it is then taken.

    A number does not make it one of the `reserved` names, which other axes still wait for.
    """
    stem, number, candidate = name.rstrip("0123456789") or name, 2, name
    while candidate in taken or (candidate != name and candidate in reserved):
        candidate = f"{stem}{number}"
        number += 1
    taken.add(candidate)
    return candidate


_ONE_SIDED = {"domain": Relation.CONTRACTED, "codomain": Relation.PRODUCED}
_SIDES: dict[Relation, tuple[str, ...]] = {
    Relation.ALIGNED: ("domain", "codomain"),
    Relation.CONTRACTED: ("domain",),
    Relation.PRODUCED: ("codomain",),
    Relation.WHOLE: (),
}
"""Where an axis of a relation is cut."""


def _link(rules: Sequence[Rule], group: list[tuple[int, str]]) -> Link:
    terms = sorted({k for k, _ in group})
    first, last = terms[0], terms[-1]
    names: list[str | None] = [None] * len(rules)
    for k, name in group:
        names[k] = name
    relations = [rules[k].relation(name) for k, name in group]
    halos = [(rules[k].halo(n), rules[k].periodic(n)) for k, n in group if rules[k].halo(n)]
    wraps = {periodic for _, periodic in halos}
    if len(terms) < len(group) or Relation.WHOLE in relations or len(wraps) > 1:
        return Link(tuple(names), Relation.WHOLE, 0, False, first, last)
    right = first == 0 and bool(positions(rules[0].codomain, str(names[0])))
    left = last == len(rules) - 1 and bool(positions(rules[last].domain, str(names[last])))
    if right and left:
        relation = Relation.ALIGNED
    elif right:
        relation = Relation.PRODUCED
    else:
        relation = Relation.CONTRACTED
    ring = True in wraps
    if ring and relation is not Relation.ALIGNED:
        # Cutting the factors would cut the ring: such blocks extend or crop the whole.
        return Link(tuple(names), relation, 0, False, first, last, factors=False)
    halo = sum(h for h, _ in halos) if left else 0
    return Link(tuple(names), relation, halo, left and ring, first, last, factors=not ring)
