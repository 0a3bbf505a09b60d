"""The innermost loops of the fast planar kernels, eight float32 lanes at a time, as LLVM IR.

Eight neighbouring rays (forward) or cells (adjoint) look at a window of 16 neighbouring
numbers. One scalar position in float64 places the window; lanes keep their distance from it
in float32, less than 8, so a position is right to 1e-6 whatever the size of the grid. Numbers are
picked from the window by permuting registers (`lanes`).

Who sets up lanes and sees to it that windows stay inside padded rows is `planar_fast`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .lanes import FLAGS, Kit

__all__ = ["add_pairs", "gather_fan", "gather_parallel", "march"]

TIGHT = 0.997  # bins a cell up to which 3.5 cells and half a bin keep within 4 bins to each side
_f32, _f64, _i64 = ir.FloatType(), ir.DoubleType(), ir.IntType(64)


@intrinsic
def march(
    typingctx: Any,
    image: Any,
    at: Any,
    stride: Any,
    begin: Any,
    end: Any,
    x: Any,
    slope: Any,
    low: Any,
    high: Any,
    lanes: Any,
) -> Any:
    """March 8 rays over slabs `begin <= j < end` (int64, counted from where x and lanes hold).

    `image` flat float32; cell c of slab j at `at + j * stride + c`; the window stands at
    `floor(x + j * slope)`, kept in [low, high] (float64). `lanes` (5, 8) float32: distance from
    x, its change a slab, gain, bias, sum; the share of the second cell is
    `max(0, gain * fraction + bias)`, and the sum gets the interpolated cell values.
    """
    signature = types.void(
        image,
        types.int64,
        types.int64,
        types.int64,
        types.int64,
        types.float64,
        types.float64,
        types.float64,
        types.float64,
        lanes,
    )

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kit = Kit(context, builder)
        data = kit.data(signature.args[0], args[0])
        table = kit.data(signature.args[9], args[9])
        _, at, stride, begin, end, x, slope, low, high, _ = args
        off, move, gain, bias, total = (kit.vector(table, 8 * i) for i in range(5))
        with kit.loop(begin, end, total) as (j, carried):
            jd = builder.sitofp(j, _f64)
            place = builder.fadd(x, builder.fmul(jd, slope))
            cell, rest = kit.place(place, low, high)
            jf = kit.splat(builder.sitofp(j, _f32))
            spot = kit.fma(jf, move, builder.fadd(off, kit.splat(rest)))
            fraction, relative = kit.floor(spot)
            share = kit.maximum(kit.fma(fraction, gain, bias), kit.constant(0.0))
            base = builder.add(builder.add(at, builder.mul(j, stride)), cell)
            first = kit.pick(data, base, 0, relative)
            second = kit.pick(data, base, 1, relative)
            change = builder.fsub(second, first, flags=FLAGS)
            carried(builder.fadd(carried.value, kit.fma(share, change, first), flags=FLAGS))
        kit.save(carried.result, table, 32)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def gather_parallel(
    typingctx: Any,
    data: Any,
    at: Any,
    stride: Any,
    views: Any,
    x: Any,
    places: Any,
    shapes: Any,
    low: Any,
    high: Any,
    total: Any,
) -> Any:
    """Gather views of a parallel beam into 8 cells.

    `data` flat float32, bin k of view v at `at + v * stride + k`; `x` middle of the cells;
    `places` (v, 7) float64: detector place of x = 0, its change a cell; `shapes` (v, 4)
    float32: that change, slope q and top b of the trapezoid `clip(b - q distance, 0, 1)`, and
    whether it reaches over 4 bins (1) or 2 (0); `total` (8,) float32.
    """
    signature = types.void(
        data,
        types.int64,
        types.int64,
        types.int64,
        types.float64,
        places,
        shapes,
        types.float64,
        types.float64,
        total,
    )

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kit = Kit(context, builder)
        data, places, shapes, total = (kit.data(signature.args[i], args[i]) for i in (0, 5, 6, 9))
        _, at, stride, views, x, _, _, low, high, _ = args
        lanes = kit.constant(*(i - 3.5 for i in range(8)))
        with kit.loop(ir.Constant(_i64, 0), views, kit.vector(total, 0)) as (v, carried):
            origin, pace = (kit.scalar(places, v, 7, i) for i in range(2))
            place = builder.fadd(origin, builder.fmul(x, pace))
            cell, rest = kit.place(place, low, high)
            step, q, b = (kit.splat(kit.scalar(shapes, v, 4, i)) for i in range(3))
            wide = builder.fcmp_ordered(">", kit.scalar(shapes, v, 4, 3), ir.Constant(_f32, 0.5))
            fraction, relative = kit.floor(kit.fma(lanes, step, kit.splat(rest)))
            base = builder.add(builder.add(at, builder.mul(v, stride)), cell)
            q = kit.negative(q)

            def tap(t: int, value: Any, pick: Any) -> Any:
                share = kit.clip(kit.fma(kit.distance(fraction, t), q, b))
                return kit.fma(share, pick(data, base, t, relative), value)

            carried(kit.taps(None, wide, tap, carried.value))
        kit.save(carried.result, total, 0)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def gather_fan(
    typingctx: Any,
    data: Any,
    slopes: Any,
    tops: Any,
    image: Any,
    at: Any,
    stride: Any,
    views: Any,
    x: Any,
    places: Any,
    shapes: Any,
    low: Any,
    high: Any,
    total: Any,
) -> Any:
    """Gather views of a fan beam on a flat detector into 8 cells.

    As for parallel beams, but the detector place of x is n / m, and `places` (v, 7) float64
    holds n and its change a cell, m and its change, and what tells the width of a cell's shadow:
    the source's x, e, f; it takes 4 bins where `|x - source| e + f > m^2` in the nearest
    of the 8 cells. `shapes` (v, 4) float32: the change of m first. The trapezoid is that of each
    ray: `slopes` (times m) and `tops` lie at `at`, `data` at `image + at`.
    """
    signature = types.void(
        data,
        slopes,
        tops,
        types.int64,
        types.int64,
        types.int64,
        types.int64,
        types.float64,
        places,
        shapes,
        types.float64,
        types.float64,
        total,
    )

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kit = Kit(context, builder)
        data, slopes, tops, places, shapes, total = (
            kit.data(signature.args[i], args[i]) for i in (0, 1, 2, 8, 9, 12)
        )
        _, _, _, image, at, stride, views, x, _, _, low, high, _ = args
        lanes = kit.constant(*(i - 3.5 for i in range(8)))
        with kit.loop(ir.Constant(_i64, 0), views, kit.vector(total, 0)) as (v, carried):
            n, dn, m, dm, source, e, f = (kit.scalar(places, v, 7, i) for i in range(7))
            n = builder.fadd(n, builder.fmul(x, dn))
            m = builder.fadd(m, builder.fmul(x, dm))
            near = builder.fsub(m, builder.fmul(kit.magnitude(dm), ir.Constant(_f64, 4.0)))
            aside = builder.fmul(kit.magnitude(builder.fsub(x, source)), e)
            wide = builder.fcmp_ordered(">", builder.fadd(aside, f), builder.fmul(near, near))
            place = builder.fdiv(n, m)
            pace = builder.fptrunc(builder.fsub(dn, builder.fmul(place, dm)), _f32)
            cell, rest = kit.nearest(place, low, high)
            paces = builder.fpext(kit.magnitude(pace), _f64)
            tight = builder.fcmp_ordered("<", paces, builder.fmul(near, ir.Constant(_f64, TIGHT)))
            depth = kit.fma(
                lanes, kit.splat(kit.scalar(shapes, v, 4, 0)), kit.splat(builder.fptrunc(m, _f32))
            )
            away = builder.fdiv(builder.fmul(lanes, kit.splat(pace), flags=FLAGS), depth)
            fraction, relative = kit.floor(builder.fadd(away, kit.splat(rest), flags=FLAGS))
            base = builder.add(builder.add(at, builder.mul(v, stride)), cell)
            values = builder.add(base, image)
            depth = kit.negative(depth)

            def tap(t: int, value: Any, pick: Any) -> Any:
                q = pick(slopes, base, t, relative)
                b = pick(tops, base, t, relative)
                p = pick(data, values, t, relative)
                far = builder.fmul(kit.distance(fraction, t), depth, flags=FLAGS)
                return kit.fma(kit.clip(kit.fma(far, q, b)), p, value)

            carried(kit.taps(tight, wide, tap, carried.value))
        kit.save(carried.result, total, 0)
        return context.get_dummy_value()

    return signature, codegen


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
