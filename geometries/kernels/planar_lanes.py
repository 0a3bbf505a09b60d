"""The innermost loops of the fast planar kernels, eight float32 lanes at a time, as LLVM IR.

Eight neighbouring rays (forward) or cells (adjoint) look at a window of 16 neighbouring
numbers. One scalar position in float64 places the window; lanes keep their distance from it
in float32, less than 8, so a position is right to 1e-6 whatever the size of the grid. Numbers are
picked from the window by permuting registers, which costs a fraction of a gather; machines
without AVX2 pick by scalar loads. Numba's own vectoriser knows no such permutation.

Who sets up lanes and sees to it that windows stay inside padded rows is `planar_fast`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["gather_fan", "gather_parallel", "march"]

TIGHT = 0.997  # bins a cell up to which 3.5 cells and half a bin keep within 4 bins to each side
REACH = 8  # where in the window its place is; lanes lie in [-8, 8) of it

_FLAGS = ("contract", "nsz")
_f32, _f64, _i32, _i64 = ir.FloatType(), ir.DoubleType(), ir.IntType(32), ir.IntType(64)
_F8, _I8 = ir.VectorType(_f32, 8), ir.VectorType(_i32, 8)


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
        kit = _Kit(context, builder)
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
            change = builder.fsub(second, first, flags=_FLAGS)
            carried(builder.fadd(carried.value, kit.fma(share, change, first), flags=_FLAGS))
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
        kit = _Kit(context, builder)
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
        kit = _Kit(context, builder)
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
            away = builder.fdiv(builder.fmul(lanes, kit.splat(pace), flags=_FLAGS), depth)
            fraction, relative = kit.floor(builder.fadd(away, kit.splat(rest), flags=_FLAGS))
            base = builder.add(builder.add(at, builder.mul(v, stride)), cell)
            values = builder.add(base, image)
            depth = kit.negative(depth)

            def tap(t: int, value: Any, pick: Any) -> Any:
                q = pick(slopes, base, t, relative)
                b = pick(tops, base, t, relative)
                p = pick(data, values, t, relative)
                far = builder.fmul(kit.distance(fraction, t), depth, flags=_FLAGS)
                return kit.fma(kit.clip(kit.fma(far, q, b)), p, value)

            carried(kit.taps(tight, wide, tap, carried.value))
        kit.save(carried.result, total, 0)
        return context.get_dummy_value()

    return signature, codegen


class _Kit:
    """The few vector operations that the loops above are made of."""

    def __init__(self, context: Any, builder: Any) -> None:
        self._context = context
        self._builder = builder
        self._permutes = "+avx2" in context.codegen().magic_tuple()[2]

    def data(self, kind: Any, array: Any) -> Any:
        return cgutils.create_struct_proxy(kind)(self._context, self._builder, array).data

    def constant(self, *values: float) -> Any:
        values = values if len(values) == 8 else values * 8
        return ir.Constant(_F8, [ir.Constant(_f32, value) for value in values])

    def splat(self, scalar: Any) -> Any:
        kind = ir.VectorType(scalar.type, 8)
        one = self._builder.insert_element(
            ir.Constant(kind, ir.Undefined), scalar, ir.Constant(_i32, 0)
        )
        zeros = ir.Constant(_I8, [ir.Constant(_i32, 0)] * 8)
        return self._builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), zeros)

    def scalar(self, data: Any, row: Any, width: int, column: int) -> Any:
        builder = self._builder
        index = builder.add(builder.mul(row, ir.Constant(_i64, width)), ir.Constant(_i64, column))
        return builder.load(builder.gep(data, [index]))

    def vector(self, data: Any, offset: Any) -> Any:
        return self._builder.load(self._vector_at(data, offset), align=4)

    def save(self, value: Any, data: Any, offset: Any) -> None:
        self._builder.store(value, self._vector_at(data, offset), align=4)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        builder = self._builder
        return builder.fadd(builder.fmul(a, b, flags=_FLAGS), c, flags=_FLAGS)

    def negative(self, a: Any) -> Any:
        return self._builder.fsub(self.constant(-0.0), a, flags=_FLAGS)

    def maximum(self, a: Any, b: Any) -> Any:
        return self._builder.select(self._builder.fcmp_ordered(">", a, b), a, b)

    def clip(self, a: Any) -> Any:
        one = self.constant(1.0)
        a = self._builder.select(self._builder.fcmp_ordered("<", a, one), a, one)
        return self.maximum(a, self.constant(0.0))

    def distance(self, fraction: Any, tap: int) -> Any:
        if tap == 0:
            return fraction
        far = self.constant(float(tap))
        a, b = (far, fraction) if tap > 0 else (fraction, far)
        return self._builder.fsub(a, b, flags=_FLAGS)

    def magnitude(self, scalar: Any) -> Any:
        name = "llvm.fabs.f64" if scalar.type == _f64 else "llvm.fabs.f32"
        return self._call(name, scalar.type, scalar)

    def taps(self, tight: Any, wide: Any, tap: Any, value: Any) -> Any:
        """`value` with bins 0 and 1 added, and where `wide` also -1 and 2.

        `tight` says where lanes keep within 4 bins; None never asks, as pays where a bin is one
        pick.
        """

        def both(pick: Any) -> Any:
            narrow = tap(1, tap(0, value, pick), pick)
            return self.either(wide, lambda: tap(2, tap(-1, narrow, pick), pick), lambda: narrow)

        if tight is None:
            return both(self.pick)
        return self.either(tight, lambda: both(self.pick_near), lambda: both(self.pick))

    def either(self, condition: Any, one: Any, two: Any) -> Any:
        """The value that `one` or `two` emits, behind a branch."""
        builder = self._builder
        blocks = [builder.append_basic_block(f"lanes.{name}") for name in ("one", "two")]
        after = builder.append_basic_block("lanes.after")
        builder.cbranch(condition, *blocks)
        ways = []
        for block, emit in zip(blocks, (one, two), strict=True):
            builder.position_at_end(block)
            ways.append((emit(), builder.block))
            builder.branch(after)
        builder.position_at_end(after)
        result = builder.phi(_F8)
        for way in ways:
            result.add_incoming(*way)
        return result

    def place(self, place: Any, low: Any, high: Any) -> Any:
        """Whole part (int64) and rest (float32) of a float64 kept in [low, high]."""
        builder = self._builder
        place = builder.select(builder.fcmp_ordered(">", place, low), place, low)
        place = builder.select(builder.fcmp_ordered("<", place, high), place, high)
        whole = self._call("llvm.floor.f64", _f64, place)
        rest = builder.fptrunc(builder.fsub(place, whole), _f32)
        return builder.fptosi(whole, _i64), rest

    def nearest(self, place: Any, low: Any, high: Any) -> Any:
        """As `place`, the nearest whole number, so that the rest is at most half."""
        half = ir.Constant(_f64, 0.5)
        whole, rest = self.place(self._builder.fadd(place, half), low, high)
        return whole, self._builder.fsub(rest, ir.Constant(_f32, 0.5))

    def floor(self, spot: Any) -> Any:
        """Fraction and whole part (int32) of 8 lanes."""
        builder = self._builder
        whole = self._call("llvm.floor.v8f32", _F8, spot)
        relative = builder.fptosi(whole, _I8)
        return builder.fsub(spot, whole, flags=_FLAGS), relative

    def pick(self, data: Any, base: Any, offset: int, relative: Any) -> Any:
        """`data[base + offset + relative]`, relative in -8 .. 7."""
        builder = self._builder
        start = builder.add(base, ir.Constant(_i64, offset - REACH))
        if self._permutes:
            # The permutation takes an index modulo 8; the sign tells the halves apart.
            low, high = (
                self._call("llvm.x86.avx2.permps", _F8, self.vector(data, position), relative)
                for position in (start, builder.add(start, ir.Constant(_i64, 8)))
            )
            negative = builder.icmp_signed(
                "<", relative, ir.Constant(_I8, [ir.Constant(_i32, 0)] * 8)
            )
            return builder.select(negative, low, high)
        reach = ir.Constant(_I8, [ir.Constant(_i32, REACH)] * 8)
        mask = ir.Constant(_I8, [ir.Constant(_i32, 15)] * 8)
        inside = builder.and_(builder.add(relative, reach), mask)
        value = ir.Constant(_F8, ir.Undefined)
        for lane in range(8):
            index = builder.extract_element(inside, ir.Constant(_i32, lane))
            index = builder.add(start, builder.zext(index, _i64))
            number = builder.load(builder.gep(data, [index]))
            value = builder.insert_element(value, number, ir.Constant(_i32, lane))
        return value

    def pick_near(self, data: Any, base: Any, offset: int, relative: Any) -> Any:
        """`data[base + offset + relative]`, relative in -4 .. 3: one permutation."""
        if not self._permutes:
            return self.pick(data, base, offset, relative)
        builder = self._builder
        start = builder.add(base, ir.Constant(_i64, offset - 4))
        index = builder.xor(relative, ir.Constant(_I8, [ir.Constant(_i32, 4)] * 8))
        return self._call("llvm.x86.avx2.permps", _F8, self.vector(data, start), index)

    def loop(self, begin: Any, end: Any, start: Any) -> _Loop:
        return _Loop(self._builder, begin, end, start)

    def _call(self, name: str, kind: Any, *args: Any) -> Any:
        function = cgutils.get_or_insert_function(
            self._builder.module, ir.FunctionType(kind, [a.type for a in args]), name
        )
        return self._builder.call(function, args)

    def _vector_at(self, data: Any, offset: Any) -> Any:
        if isinstance(offset, int):
            offset = ir.Constant(_i64, offset)
        pointer = self._builder.gep(data, [offset])
        return self._builder.bitcast(pointer, _F8.as_pointer())


class _Loop:
    """`for index in range(begin, end)` with one vector carried in a register.

    Entered, it gives the index and itself; called with the next value at the end of the body;
    `result` holds the last value after the block.
    """

    def __init__(self, builder: Any, begin: Any, end: Any, start: Any) -> None:
        self._builder = builder
        self._entry = builder.block
        self._head = builder.append_basic_block("lanes.head")
        self._body = builder.append_basic_block("lanes.body")
        self._exit = builder.append_basic_block("lanes.exit")
        self._begin, self._end, self._start = begin, end, start
        self._next: Any = None

    def __enter__(self) -> tuple[Any, _Loop]:
        builder = self._builder
        builder.branch(self._head)
        builder.position_at_end(self._head)
        self._index = builder.phi(_i64)
        self.value = builder.phi(self._start.type)
        self._index.add_incoming(self._begin, self._entry)
        self.value.add_incoming(self._start, self._entry)
        builder.cbranch(builder.icmp_signed("<", self._index, self._end), self._body, self._exit)
        builder.position_at_end(self._body)
        return self._index, self

    def __call__(self, value: Any) -> None:
        self._next = value

    def __exit__(self, *error: object) -> None:
        builder = self._builder
        step = builder.add(self._index, ir.Constant(_i64, 1))
        self._index.add_incoming(step, builder.block)
        self.value.add_incoming(self._next, builder.block)
        builder.branch(self._head)
        builder.position_at_end(self._exit)
        self.result = self.value
