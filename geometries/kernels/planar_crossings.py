"""The innermost loops of the exact planar kernels, four float64 lanes at a time, as LLVM IR.

Lanes are neighboring rays. Where rays pass right through the grid, the place where one leaves a
slab is where it enters the next, so a march down the slabs computes it once, in registers; the
weights are those of `planar_rays.split`, bit for bit. Runs, tiles and other rays are
`planar_exact`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .lanes import Kit

__all__ = ["add_pairs", "cross", "spread"]

_f32, _f64, _i32, _i64 = ir.FloatType(), ir.DoubleType(), ir.IntType(32), ir.IntType(64)
# Of rays: the first, how many; the first slab, how many; half the slabs of the grid; the first
# cell of padded slabs, and the last place in them that a ray may take.
_CROSSED = (types.int64, types.int64, types.float64, types.int64, *[types.float64] * 3)


@intrinsic
def add_pairs(
    typingctx: Any,
    line: Any,
    place: Any,
    one: Any,
    two: Any,
    values: Any,
    first: Any,
    many: Any,
) -> Any:
    """Add values times pairs of lengths to a slab with two float64 a cell, for `many` rays.

    Ray r adds ``values[first + r] * one[r]`` to `line[2 place[r]]` and the same of `two` to the
    number after it, both at once. A length of 0 adds nothing, whatever the value.
    """
    signature = types.void(line, place, one, two, values, types.int64, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kit = Kit(context, builder, 4)
        line, place, one, two, values = (kit.data(signature.args[i], args[i]) for i in range(5))
        pair = ir.VectorType(_f64, 2)
        low, high = (ir.Constant(ir.IntType(32), i) for i in (0, 1))
        none = ir.Constant(pair, ir.Undefined)
        zeros = ir.Constant(pair, [ir.Constant(_f64, 0.0)] * 2)
        with kit.loop(ir.Constant(_i64, 0), args[6]) as (row, _):
            slot = builder.sext(builder.load(builder.gep(place, [row])), _i64)
            slot = builder.shl(slot, ir.Constant(_i64, 1))
            lengths = builder.insert_element(none, builder.load(builder.gep(one, [row])), low)
            lengths = builder.insert_element(lengths, builder.load(builder.gep(two, [row])), high)
            value = builder.load(builder.gep(values, [builder.add(args[5], row)]))
            if value.type == _f32:
                value = builder.fpext(value, _f64)
            both = builder.insert_element(none, value, low)
            both = builder.insert_element(both, value, high)
            product = builder.fmul(lengths, both)
            met = builder.fcmp_ordered(">", lengths, zeros)
            product = builder.select(met, product, zeros)
            target = builder.bitcast(builder.gep(line, [slot]), pair.as_pointer())
            old = builder.load(target, align=8)
            builder.store(builder.fadd(product, old), target, align=8)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def cross(
    typingctx: Any,
    rays: Any,
    first: Any,
    many: Any,
    slab: Any,
    slabs: Any,
    middle: Any,
    shift: Any,
    top: Any,
    place: Any,
    one: Any,
    two: Any,
) -> Any:
    """`planar_rays.split`, bit for bit, of rays that pass right through the slabs from `slab` on.

    `rays` (6, c), their columns `first` on, up to 3 more than `many` are read; `place`, `one`,
    `two` (slabs, RUN): first cell minus `shift`, kept in [0, top], and the two lengths.
    """
    signature = types.void(rays, *_CROSSED, place, one, two)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kit = Kit(context, builder, 4)
        place, one, two = (kit.data(signature.args[i], args[i]) for i in (8, 9, 10))
        _, width = kit.shape(signature.args[8], args[8], 2)

        def keep(row: Any, j: Any, cell: Any, lengths: Any) -> None:
            target = builder.add(builder.mul(j, width), row)
            for value, array in zip(
                (builder.fptosi(cell, kit.indices), *lengths), (place, one, two), strict=True
            ):
                kit.save(value, array, target)

        _crossings(kit, signature, args, keep)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def spread(
    typingctx: Any,
    rays: Any,
    first: Any,
    many: Any,
    slab: Any,
    slabs: Any,
    middle: Any,
    shift: Any,
    top: Any,
    ranges: Any,
    sinogram: Any,
    view: Any,
    image: Any,
    line: Any,
) -> Any:
    """`cross` and `add_pairs` in one, for a multiple of 4 rays.

    Values stand in `sinogram[:, view, first:]` (B, v, c); pairs are added to the slabs of
    `image` (B, slabs, 2 cells) from `line` on. Four rays at a time leave out the slabs that none
    of them meets by `ranges` (4, c).
    """
    signature = types.void(rays, *_CROSSED, ranges, sinogram, types.int64, image, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kit = Kit(context, builder, 4)
        met, data, target = (kit.data(signature.args[i], args[i]) for i in (8, 9, 11))
        _, count = kit.shape(signature.args[8], args[8], 2)
        batch, views, bins = kit.shape(signature.args[9], args[9], 3)
        _, lines, width = kit.shape(signature.args[11], args[11], 3)
        first, slab, slabs, view, line = args[1], args[3], args[4], args[10], args[12]
        values = builder.add(builder.mul(view, bins), first)
        sinogram, image = builder.mul(views, bins), builder.mul(lines, width)
        none = kit.constant(0.0)
        origin = builder.fptosi(slab, _i64)

        def slabs_met(row: Any) -> tuple[Any, Any]:
            bounds = []
            for i, name in ((1, "smin"), (2, "smax")):
                start = builder.add(builder.mul(ir.Constant(_i64, i), count), first)
                four = kit.vector(met, builder.add(start, row))
                bounds.append(builder.sext(kit.reduced(name, four), _i64))
            begin, end = (builder.sub(bound, origin) for bound in bounds)
            zero = ir.Constant(_i64, 0)
            begin = builder.select(builder.icmp_signed(">", begin, zero), begin, zero)
            return begin, builder.select(builder.icmp_signed("<", end, slabs), end, slabs)

        def add(row: Any, j: Any, cell: Any, lengths: Any) -> None:
            pairs, some = [], []
            for order in ((0, 4, 2, 6), (1, 5, 3, 7)):
                pairs.append(kit.shuffled(lengths[0], lengths[1], order))
                some.append(builder.fcmp_ordered(">", pairs[-1], none))
            slots = kit.slots(cell, 16)
            source = builder.add(values, row)
            start = builder.mul(builder.add(line, j), width)
            with kit.loop(ir.Constant(_i64, 0), batch) as (b, _):
                value = kit.vector(data, builder.add(source, builder.mul(b, sinogram)))
                if value.type.element == _f32:
                    value = builder.fpext(value, kit.vectors)
                added = []
                for pair, met, order in zip(pairs, some, ((0, 0, 2, 2), (1, 1, 3, 3)), strict=True):
                    twice = kit.shuffled(value, value, order)
                    added.append(builder.select(met, builder.fmul(pair, twice), none))
                begin = builder.add(start, builder.mul(b, image))
                begin = builder.ptrtoint(builder.gep(target, [begin]), _i64)
                for k, slot in enumerate(slots):
                    half = (0, 1) if k < 2 else (2, 3)
                    pair = kit.shuffled(added[k % 2], added[k % 2], half)
                    where = builder.inttoptr(builder.add(begin, slot), pair.type.as_pointer())
                    builder.store(builder.fadd(pair, builder.load(where, align=8)), where, align=8)

        _crossings(kit, signature, args, add, slabs_met)
        return context.get_dummy_value()

    return signature, codegen


def _crossings(
    kit: Kit,
    signature: Any,
    args: Any,
    use: Callable[..., None],
    slabs_met: Callable[[Any], tuple[Any, Any]] | None = None,
) -> None:
    """Call `use(row, slab, cell, lengths)` in loops over groups of 4 rays and over slabs."""
    builder = kit.builder
    _, first, many, slab, slabs, middle, shift, top, *_ = args
    rays = kit.data(signature.args[0], args[0])
    _, count = kit.shape(signature.args[0], args[0], 2)
    shift, top = kit.splat(shift), kit.splat(top)
    none, unit = kit.constant(0.0), kit.constant(1.0)
    origin = builder.fsub(slab, middle)
    with kit.loop(ir.Constant(_i64, 0), many, step=4) as (row, _):
        column = builder.add(first, row)
        back, slope, step, spread = (
            kit.vector(rays, builder.add(builder.mul(ir.Constant(_i64, i), count), column))
            for i in range(4)
        )

        def position(j: Any, back: Any = back, slope: Any = slope) -> Any:
            edge = builder.fadd(builder.sitofp(j, _f64), origin)
            return builder.fadd(back, builder.fmul(kit.splat(edge), slope))

        begin, end = slabs_met(row) if slabs_met else (ir.Constant(_i64, 0), slabs)
        with kit.loop(begin, end, position(begin)) as (j, carried):
            entry, leave = carried.value, position(builder.add(j, ir.Constant(_i64, 1)))
            cell = kit.floored(kit.minimum(entry, leave))
            beyond = builder.fsub(kit.maximum(entry, leave), builder.fadd(cell, unit))
            second = kit.minimum(builder.fmul(beyond, spread), step)
            second = kit.maximum(second, none)
            at = kit.minimum(kit.maximum(builder.fsub(cell, shift), none), top)
            use(row, j, at, (builder.fsub(step, second), second))
            carried(leave)
