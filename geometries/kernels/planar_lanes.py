"""The innermost loops of the fast planar kernels, eight float32 lanes at a time, as LLVM IR.

Eight neighboring rays (forward) or cells (adjoint) look at a window of 16 neighboring
numbers. One scalar position in float64 places the window; lanes keep their distance from it
in float32, less than 8, so a position is right to 1e-6 whatever the size of the grid. Numbers are
picked from the window by permuting registers (`lanes`).

Who sets up lanes and sees to it that windows stay inside padded rows is `planar_fast`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .lanes import FLAGS, Kit

__all__ = ["gather_fan", "gather_parallel", "march"]

_f32, _f64, _i64 = ir.FloatType(), ir.DoubleType(), ir.IntType(64)


@intrinsic
def march(
    typingctx: Any,
    image: Any,
    at: Any,
    twin: Any,
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

    `image` flat float32; cell c of slab j at `at + j * stride + c`, of a second image `twin`
    further (None: one alone); the window stands at `floor(x + j * slope)`, kept in [low, high]
    (float64). `lanes` (6, 8) float32: distance from x, its change a slab, gain, bias, the sums of
    the images; the share of the second cell is `max(0, gain * fraction + bias)`, and the sums get
    the interpolated cell values.
    """
    signature = types.void(
        image,
        types.int64,
        twin,
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
        table = kit.data(signature.args[10], args[10])
        _, at, twin, stride, begin, end, x, slope, low, high, _ = args
        twin = None if signature.args[2] == types.none else twin
        off, move, gain, bias = (kit.vector(table, 8 * i) for i in range(4))
        with kit.loop(begin, end, _sums(kit, table, 32, twin)) as (j, carried):
            jd = builder.sitofp(j, _f64)
            place = builder.fadd(x, builder.fmul(jd, slope))
            cell, rest = kit.place(place, low, high)
            jf = kit.splat(builder.sitofp(j, _f32))
            spot = kit.fma(jf, move, builder.fadd(off, kit.splat(rest)))
            fraction, relative = kit.floor(spot)
            share = kit.maximum(kit.fma(fraction, gain, bias), kit.constant(0.0))
            base = builder.add(builder.add(at, builder.mul(j, stride)), cell)
            first, second = (
                _pick(kit, partial(kit.pick, data), base, twin, i, relative) for i in (0, 1)
            )
            change = builder.fsub(second, first, flags=FLAGS)
            value = kit.fma(_both(kit, share, twin), change, first)
            carried(builder.fadd(carried.value, value, flags=FLAGS))
        _keep(kit, carried.result, table, 32, twin)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def gather_parallel(
    typingctx: Any,
    data: Any,
    at: Any,
    twin: Any,
    stride: Any,
    cells: Any,
    numbers: Any,
    shapes: Any,
    total: Any,
) -> Any:
    """Gather views of a parallel beam into 8 cells, of one image or of two.

    `data` flat float32, bin k of view v at `at + v * stride + k`, of the second image `twin`
    further (None: of one alone). The middle of the cells falls on bin `cells` (v,) int32 plus
    row 0 of `numbers` (9, v) float32. `shapes` (4, v) float32:
    change of that place a cell, slope q and top b of the trapezoid `clip(b - q distance, 0, 1)`,
    and whether it reaches over 4 bins (1) or 2 (0). `total` (16,) float32,
    8 an image.
    """
    signature = types.void(data, types.int64, twin, types.int64, cells, numbers, shapes, total)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kit = Kit(context, builder)
        data, cells, numbers, shapes, total = (
            kit.data(signature.args[i], args[i]) for i in (0, 4, 5, 6, 7)
        )
        _, at, twin, stride, *_ = args
        twin = None if signature.args[2] == types.none else twin
        (views,) = kit.shape(signature.args[4], args[4], 1)
        lanes = kit.constant(*(i - 3.5 for i in range(8)))
        with kit.loop(ir.Constant(_i64, 0), views, _sums(kit, total, 0, twin)) as (v, carried):
            rest = kit.splat(kit.entry(numbers, 0, views, v))
            step, q, b = (kit.splat(kit.entry(shapes, i, views, v)) for i in range(3))
            wide = builder.fcmp_ordered(">", kit.entry(shapes, 3, views, v), ir.Constant(_f32, 0.5))
            fraction, relative = kit.floor(kit.fma(lanes, step, rest))
            base = kit.base(at, stride, cells, v)
            q = kit.negative(q)

            def tap(t: int, value: Any, pick: Any) -> Any:
                share = kit.clip(kit.fma(kit.distance(fraction, t), q, b))
                number = _pick(kit, partial(pick, data), base, twin, t, relative)
                return kit.fma(_both(kit, share, twin), number, value)

            carried(kit.taps(None, wide, tap, carried.value))
        _keep(kit, carried.result, total, 0, twin)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def gather_fan(
    typingctx: Any,
    data: Any,
    at: Any,
    twin: Any,
    stride: Any,
    cells: Any,
    numbers: Any,
    shapes: Any,
    total: Any,
) -> Any:
    """Gather views of a fan beam on a flat detector into 8 cells, of one image or of two.

    As for parallel beams, but the detector place of a cell is n / m, and a ray along (e, f), both
    linear in its bin k, meets the cell at the distance m |k - n / m| with

        ``clip((|e| + |f|) / 2 - m |k - n / m|, 0, min(|e|, |f|))``

    times its length and over |e f|, which two `data` hold already. `numbers` (9, v): the rest of
    the place; its change a cell times m, and m, both of the middle; |e| and |f| of its bin, and
    their changes a bin; whether lanes keep within 4 bins to both sides; whether shadows reach
    over 4 bins. Row 0 of `shapes`: the change of m a cell.
    """
    signature = types.void(data, types.int64, twin, types.int64, cells, numbers, shapes, total)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kit = Kit(context, builder)
        data, cells, numbers, shapes, total = (
            kit.data(signature.args[i], args[i]) for i in (0, 4, 5, 6, 7)
        )
        _, at, twin, stride, *_ = args
        twin = None if signature.args[2] == types.none else twin
        (views,) = kit.shape(signature.args[4], args[4], 1)
        lanes = kit.constant(*(i - 3.5 for i in range(8)))
        half = kit.constant(0.5)
        none = ir.Constant(_f32, 0.0)
        with kit.loop(ir.Constant(_i64, 0), views, _sums(kit, total, 0, twin)) as (v, carried):
            rest, pace, depth, e, f, de, df = (
                kit.splat(kit.entry(numbers, i, views, v)) for i in range(7)
            )
            tight, wide = (
                builder.fcmp_ordered(">", kit.entry(numbers, i, views, v), none) for i in (7, 8)
            )
            depth = kit.fma(lanes, kit.splat(kit.entry(shapes, 0, views, v)), depth)
            away = builder.fdiv(builder.fmul(lanes, pace, flags=FLAGS), depth, flags=FLAGS)
            spot = builder.fadd(away, rest, flags=FLAGS)
            bins = kit.floored(spot)
            relative = builder.fptosi(bins, kit.indices)
            base = kit.base(at, stride, cells, v)
            off = builder.fmul(builder.fsub(spot, bins, flags=FLAGS), depth, flags=FLAGS)
            e, f = kit.fma(bins, de, e), kit.fma(bins, df, f)
            middle = builder.fmul(half, builder.fadd(e, f, flags=FLAGS), flags=FLAGS)
            change = builder.fmul(half, builder.fadd(de, df, flags=FLAGS), flags=FLAGS)
            left = builder.fsub(middle, off, flags=FLAGS)
            right = builder.fadd(middle, off, flags=FLAGS)

            def tap(t: int, value: Any, pick: Any) -> Any:
                step = builder.fsub if t > 0 else builder.fadd
                step = step(change, depth, flags=FLAGS)
                chord = kit.after(right if t > 0 else left, step, t)
                chord = kit.minimum(chord, kit.after(e, de, t))
                chord = kit.minimum(chord, kit.after(f, df, t))
                chord = kit.maximum(chord, kit.constant(0.0))
                number = _pick(kit, partial(pick, data), base, twin, t, relative)
                return kit.fma(_both(kit, chord, twin), number, value)

            carried(kit.taps(tight, wide, tap, carried.value))
        _keep(kit, carried.result, total, 0, twin)
        return context.get_dummy_value()

    return signature, codegen


def _sums(kit: Kit, table: Any, at: int, twin: Any) -> Any:
    """Eight sums, those of two images beside each other where there is a twin."""
    one = kit.vector(table, at)
    return one if twin is None else kit.beside(one, kit.vector(table, at + 8))


def _pick(kit: Kit, pick: Any, base: Any, twin: Any, offset: int, relative: Any) -> Any:
    one = pick(base, offset, relative)
    if twin is None:
        return one
    return kit.beside(one, pick(kit.builder.add(base, twin), offset, relative))


def _both(kit: Kit, weight: Any, twin: Any) -> Any:
    return weight if twin is None else kit.beside(weight, weight)


def _keep(kit: Kit, sums: Any, table: Any, at: int, twin: Any) -> None:
    for k in range(1 if twin is None else 2):
        kit.save(sums if twin is None else kit.half(sums, k), table, at + 8 * k)
