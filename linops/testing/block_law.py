"""The block law, on every axis, in both forms; and that blocks of two axes nest and commute.

    aligned      concatenate_i  A.block(a, i) @ x[i with halo]  ==  A @ x
    produced     concatenate_i  A.block(a, i) @ x               ==  A @ x
    contracted   sum_i          A.block(a, i) @ x[i with halo]  ==  A @ x

Every block is compared with its own part of `A @ x`, or with A applied to its own planes of x,
which is sharper than the law. Planes outside the array hold NaN in padded inputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from linops.algebra.blocks import extent
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.relations import extent_of, positions
from linops.rule import Relation, Rule
from linops.space import ProductSpace
from linops.structure import structure
from linops.testing.subject import Failure, NotApplicable, Subject, each, elements, host, plain

__all__ = [
    "block_input",
    "check_block_adjoints",
    "check_blocks",
    "check_nested_blocks",
    "check_padded_blocks",
    "cut",
    "part_of",
    "ragged_ranges",
    "split_axes",
]

_RELATIONS = (Relation.ALIGNED, Relation.PRODUCED)
Cuts = tuple[tuple[int, int], ...]


def check_blocks(s: Subject) -> None:
    """The block law in the plain form, for the operator and its adjoint."""
    for B, x, image, name in _both(s):
        for axis, n in split_axes(B):
            if _shares_halo(B, axis):
                _partial_sums(s, B, x, image, name, axis, n, padded=False)
                continue
            for start, stop in ragged_ranges(n):
                _plain_block(s, B, x, image, name, axis, start, stop)


def check_padded_blocks(s: Subject) -> None:
    """The padded form: garbage outside stays outside, and equal lengths have equal structure."""
    for B, x, image, name in _both(s):
        for axis, n in split_axes(B):
            wraps = B.rule.periodic(axis)
            length = max(1, (n + 1) // 2)
            starts = [0, n - length] if wraps else [-1, 0, n - length, n - length + 1, n + 1]
            shapes = set()
            for start in starts:
                block = B.block(axis, start, start + length, padded=True)
                shapes.add(structure(block))
                if not _shares_halo(B, axis):
                    _padded_block(s, B, block, x, image, name, axis, start, start + length)
            if _shares_halo(B, axis):
                _partial_sums(s, B, x, image, name, axis, n, padded=True)
            elif not wraps:
                block = B.block(axis, -2, n + 2, padded=True)
                _padded_block(s, B, block, x, image, name, axis, -2, n + 2)
            if len(shapes) > 1:
                raise Failure(
                    f"{name}: padded blocks of {length} planes of {axis!r} differ in structure"
                )


def check_block_adjoints(s: Subject) -> None:
    """The adjoint of a block, in both forms, is its transpose."""
    for B, _, _, name in _both(s):
        for axis, n in split_axes(B):
            start, stop = n // 3, max(n // 3 + 1, (2 * n) // 3)
            for padded, first, last in ((False, start, stop), (True, start, n + 1)):
                if padded and B.rule.periodic(axis):
                    continue
                block = B.block(axis, first, last, padded)
                u = plain(block.domain).random(s.generator(40))
                v = plain(block.codomain).random(s.generator(41))
                assert isinstance(block, LinearOperator)
                Bu, Hv = block(u), block.H(v)
                left = complex(block.codomain.inner(Bu, v))
                right = complex(block.domain.inner(u, Hv))
                if "real_linear" in B.tags:
                    left, right = complex(left.real), complex(right.real)
                scale = block.codomain.norm(Bu) * block.codomain.norm(v)
                scale += block.domain.norm(u) * block.domain.norm(Hv)
                # Where a part is zero, what a transform rounds is all there is.
                scale += s.gain * block.domain.norm(u) * block.codomain.norm(v)
                if not abs(left - right) <= 16 * s.eps * scale:
                    form = "padded block" if padded else "block"
                    raise Failure(
                        f"{name}.{form}({axis!r}, {first}, {last}) and its adjoint differ: "
                        f"<Ax, y> = {left:.7g}, <x, A.H y> = {right:.7g}"
                    )


def check_nested_blocks(s: Subject) -> None:
    """A block of a block of another axis, in either order, is the part of both ranges."""
    for B, x, image, name in _both(s):
        axes = split_axes(B)
        for i, (a, n) in enumerate(axes):
            for b, m in axes[i + 1 :]:
                ra = (n // 3, max(n // 3 + 1, (2 * n) // 3))
                rb = (m // 2, m)
                for padded in (False, True):
                    _nest(s, B, x, image, name, (a, *ra), (b, *rb), padded)


def _shares_halo(B: LinearOperator, axis: str) -> bool:
    """Whether a part alone is free: planes of the halo may count in either neighbor's part."""
    return B.rule.relation(axis) is Relation.CONTRACTED and B.rule.halo(axis) > 0


def _partial_sums(
    s: Subject, B: Any, x: Any, image: Any, name: str, axis: str, n: int, padded: bool
) -> None:
    """The parts of a ragged split (padded: of equal shares, the last past the end) add up."""
    share = max(1, (n + 1) // 2)
    ranges = [(i, i + share) for i in range(0, n, share)] if padded else ragged_ranges(n)[:-2]
    total: Any = None
    for start, stop in ranges:
        block = B.block(axis, start, stop, padded)
        part = block_input(B, x, axis, start, stop, padded)
        label = f"{name}.block({axis!r}, {start}, {stop}, padded={padded})"
        _fits(block, part, label)
        found = host(block(part))
        if any(np.isnan(p).any() for p in elements(found)):
            raise Failure(f"{label} reads planes outside the array")
        total = found if total is None else _sum_up(total, found)
    what = f"{name}: its {'padded ' if padded else ''}blocks along {axis!r} do not add up"
    s.close(B.codomain, total, image, float(B.domain.norm(x)), what)


def _sum_up(a: Any, b: Any) -> Any:
    return tuple(p + q for p, q in zip(a, b, strict=True)) if isinstance(a, tuple) else a + b


def _nest(
    s: Subject,
    B: LinearOperator,
    x: Any,
    image: Any,
    name: str,
    a: tuple[str, int, int],
    b: tuple[str, int, int],
    padded: bool,
) -> None:
    form = "padded blocks" if padded else "blocks"
    label = f"{name}: {form} of {a[0]!r} {a[1:]} and {b[0]!r} {b[1:]}"
    # The two may be one axis, read as contracted on the left and as produced on the right.
    crossed = {B.rule.relation(a[0]), B.rule.relation(b[0])} == {
        Relation.CONTRACTED,
        Relation.PRODUCED,
    }
    if crossed and (_shares_halo(B, a[0]) or _shares_halo(B, b[0])):
        return
    results = []
    for first, second in ((a, b), (b, a)):
        outer = B.block(*first, padded)
        if second[0] not in outer.rule.names:
            if crossed:
                return
            raise Failure(
                f"{label}: the block of {first[0]!r} has no axis {second[0]!r} ('{outer.rule}')"
            )
        if outer.rule.relation(second[0]) is not B.rule.relation(second[0]):
            if crossed:
                return
            raise Failure(
                f"{label}: {second[0]!r} is {B.rule.relation(second[0])} in {name} and "
                f"{outer.rule.relation(second[0])} in its block of {first[0]!r}"
            )
        inner = outer.block(*second, padded)
        part = x
        for axis, start, stop in (first, second):
            part = block_input(B, part, axis, start, stop, padded)
        _fits(inner, part, label)
        results.append(host(inner(part)))
    size = float(B.domain.norm(x))
    if _shares_halo(B, a[0]) or _shares_halo(B, b[0]):
        s.close(
            part_of(B.codomain, results[0]),
            results[0],
            results[1],
            size,
            f"{label}, in either order",
        )
        return
    wanted, masked = image, x
    for axis, start, stop in (a, b):
        if B.rule.relation(axis) is Relation.CONTRACTED:
            masked = _own_planes(B, masked, axis, start, stop)
    if masked is not x:
        wanted = host(B(masked))
    for axis, start, stop in (a, b):
        if B.rule.relation(axis) in _RELATIONS:
            wanted = cut(wanted, positions(B.rule.codomain, axis), start, stop, B.codomain)
    for result in results:
        s.close(part_of(B.codomain, wanted), result, wanted, size, label)


def _plain_block(
    s: Subject, B: Any, x: Any, image: Any, name: str, axis: str, start: int, stop: int
) -> None:
    block = B.block(axis, start, stop)
    label = f"{name}.block({axis!r}, {start}, {stop})"
    part = block_input(B, x, axis, start, stop, False)
    _fits(block, part, label)
    wanted = _expect(B, x, image, axis, start, stop)
    found = host(block(part))
    size = float(B.domain.norm(x))
    s.close(part_of(B.codomain, wanted), found, wanted, size, f"{label} is not that part of {name}")


def _padded_block(
    s: Subject, B: Any, block: Any, x: Any, image: Any, name: str, axis: str, start: int, stop: int
) -> None:
    label = f"{name}.block({axis!r}, {start}, {stop}, padded=True)"
    n = extent(B, axis)
    part = block_input(B, x, axis, start, stop, True)
    _fits(block, part, label)
    found = host(block(part))
    lo, hi = min(max(start, 0), n), max(min(stop, n), 0)
    hi = max(lo, hi)
    wanted = _expect(B, x, image, axis, lo, hi)
    if B.rule.relation(axis) in _RELATIONS:
        cuts = positions(B.rule.codomain, axis)
        wanted = _widen(wanted, cuts, lo - start if hi > lo else 0, stop - start, B.codomain)
    for number, found_part in enumerate(elements(found)):
        if np.isnan(found_part).any():
            raise Failure(f"{label} reads planes outside the array (NaN in member {number})")
    size = float(B.domain.norm(x))
    s.close(part_of(B.codomain, wanted), found, wanted, size, f"{label} is not that part of {name}")
    if B.rule.relation(axis) in _RELATIONS:
        for m, p in positions(B.rule.codomain, axis):
            planes = np.moveaxis(elements(found)[m], p, 0)
            outside = [i for i in range(stop - start) if not lo <= start + i < hi]
            if np.any(planes[outside] != 0):
                raise Failure(f"{label} writes other numbers than 0 outside the array")
    _padded_adjoint(s, block, B, name, axis, start, stop)


def _padded_adjoint(
    s: Subject, block: Any, B: Any, name: str, axis: str, start: int, stop: int
) -> None:
    """NaN in output planes outside the array reaches nothing, inputs outside get zeros."""
    rule: Rule = B.rule
    if rule.relation(axis) not in _RELATIONS:
        return
    n = extent(B, axis)
    outside = [i for i in range(stop - start) if not 0 <= start + i < n]
    y = plain(block.codomain).random(s.generator(42))
    dirty, clean = each(np.array, y), each(np.array, y)
    for m, p in positions(rule.codomain, axis):
        np.moveaxis(elements(dirty)[m], p, 0)[outside] = np.nan
        np.moveaxis(elements(clean)[m], p, 0)[outside] = 0
    found, wanted = host(block.H(dirty)), host(block.H(clean))
    label = f"{name}.block({axis!r}, {start}, {stop}, padded=True).H"
    for part in elements(found):
        if np.isnan(part).any():
            raise Failure(f"{label} reads planes outside the array")
    s.close(block.domain, found, wanted, float(block.codomain.norm(clean)), label)


def _both(s: Subject) -> Iterator[tuple[LinearOperator, Any, Any, str]]:
    A = s.operator
    if not split_axes(A) and not split_axes(A.H):
        raise NotApplicable(f"no axis of its rule '{A.rule}' may be split, or all are empty")
    yield A, s.x, s.Ax, "A"
    yield A.H, s.y, s.Hy, "A.H"


def split_axes(B: Operator) -> list[tuple[str, int]]:
    """The axes of its rule that may be split, with their extents, empty ones left out."""
    return [
        (name, extent(B, name))
        for name in B.rule.names
        if B.rule.relation(name) is not Relation.WHOLE and extent(B, name)
    ]


def ragged_ranges(n: int) -> list[tuple[int, int]]:
    """A ragged split, and some ranges for themselves."""
    ends = sorted({0, 1, n // 2, n - 1, n} & set(range(n + 1)))
    return [*itertools.pairwise(ends), (0, n), (n // 2, n // 2)]


def _planes(B: Operator, axis: str, start: int, stop: int, padded: bool) -> tuple[int, int, int]:
    """First and last input plane of a block, and the extent of the input; a ring is not cut."""
    rule = B.rule
    n = extent_of(B.domain, rule.domain, axis)
    if rule.relation(axis) is Relation.ALIGNED:
        lo, hi = B._input_range(axis, start, stop)
    else:
        lo, hi = start - rule.halo(axis), stop + rule.halo(axis)
    if not padded and not rule.periodic(axis):
        lo = min(max(lo, 0), n)
        hi = max(min(hi, n), lo)
    return lo, hi, n


def block_input(B: Operator, x: Any, axis: str, start: int, stop: int, padded: bool) -> Any:
    """What a block of `B` reads of `x`; planes outside the array are NaN."""
    rule = B.rule
    if rule.relation(axis) is Relation.PRODUCED:
        return x
    lo, hi, n = _planes(B, axis, start, stop, padded)
    parts = list(elements(x))
    for m, p in positions(rule.domain, axis):
        plane = np.arange(lo, hi)
        inside = (plane >= 0) & (plane < n)
        if rule.periodic(axis) and n:
            inside[:] = True
            plane = plane % n
        taken = np.take(parts[m], np.where(inside, plane, 0), axis=p) if n else None
        if taken is None:
            shape = list(parts[m].shape)
            shape[p] = hi - lo
            taken = np.zeros(shape, parts[m].dtype)
        np.moveaxis(taken, p, 0)[~inside] = np.nan
        parts[m] = taken
    return tuple(parts) if isinstance(x, tuple) else parts[0]


def _own_planes(B: LinearOperator, x: Any, axis: str, start: int, stop: int) -> Any:
    """`x` with zeros in all planes but a range."""
    parts = list(each(np.array, x) if isinstance(x, tuple) else (np.array(x),))
    for m, p in positions(B.rule.domain, axis):
        planes = np.moveaxis(parts[m], p, 0)
        planes[:start] = 0
        planes[stop:] = 0
    return tuple(parts) if isinstance(x, tuple) else parts[0]


def _expect(B: Any, x: Any, image: Any, axis: str, start: int, stop: int) -> Any:
    if B.rule.relation(axis) is Relation.CONTRACTED:
        return host(B(_own_planes(B, x, axis, start, stop)))
    return cut(image, positions(B.rule.codomain, axis), start, stop, B.codomain)


def cut(x: Any, cuts: Cuts, start: int, stop: int, space: Any) -> Any:
    parts = list(elements(x))
    for m, p in cuts:
        parts[m] = np.take(parts[m], np.arange(start, stop), axis=p)
    return tuple(parts) if isinstance(space, ProductSpace) else parts[0]


def _widen(x: Any, cuts: Cuts, before: int, length: int, space: Any) -> Any:
    parts = list(elements(x))
    for m, p in cuts:
        shape = list(parts[m].shape)
        count, shape[p] = shape[p], length
        out = np.zeros(shape, parts[m].dtype)
        np.moveaxis(out, p, 0)[before : before + count] = np.moveaxis(parts[m], p, 0)
        parts[m] = out
    return tuple(parts) if isinstance(space, ProductSpace) else parts[0]


def part_of(space: Any, x: Any) -> Any:
    """The space that a part of an element of `space` belongs to, for messages."""
    members = [
        member if part.shape == member.shape else type(member)(part.shape, member.dtype)
        for member, part in zip(space.members, elements(x), strict=True)
    ]
    return ProductSpace(members) if isinstance(space, ProductSpace) else members[0]


def _fits(block: Any, part: Any, label: str) -> None:
    shapes = [p.shape for p in elements(part)]
    wanted = [m.shape for m in block.domain.members]
    if shapes != wanted:
        raise Failure(f"{label} takes {wanted}, its rule and halo give {shapes}")
