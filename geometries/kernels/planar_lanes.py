"""The innermost loops of the fast planar kernels, eight float32 lanes at a time, as LLVM IR.

Eight neighbouring rays (forward) or cells (adjoint) look at a window of 16 neighbouring
numbers. One scalar position in float64 places the window; lanes keep their distance from it
in float32, at most 7, so a position is right to 1e-6 whatever the size of the grid. Numbers are
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

__all__ = ["REACH", "gather_fan_2", "gather_fan_4", "gather_parallel_2", "gather_parallel_4",
           "march"]

REACH = 7  # how far a lane may be from the place of the window, in elements

_FLAGS = ("contract", "nsz")
_f32, _f64, _i32, _i64 = ir.FloatType(), ir.DoubleType(), ir.IntType(32), ir.IntType(64)
_F8, _I8 = ir.VectorType(_f32, 8), ir.VectorType(_i32, 8)


@intrinsic
def march(
    typingctx: Any, image: Any, at: Any, stride: Any, begin: Any, end: Any, x: Any, slope: Any,
    low: Any, high: Any, lanes: Any,
) -> Any:
    """March 8 rays over slabs `begin <= j < end` (int64, counted from where x and lanes hold).

    `image` flat float32; cell c of slab j at `at + j * stride + c`; the window stands at
    `floor(x + j * slope)`, kept in [low, high] (float64). `lanes` (5, 8) float32: distance from
    x, its change a slab, gain, bias, sum; the share of the second cell is
    `max(0, gain * fraction + bias)`, and the sum gets the interpolated cell values.
    """
    signature = types.void(
        image, types.int64, types.int64, types.int64, types.int64, types.float64, types.float64,
        types.float64, types.float64, lanes,
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
            first = kit.pick(data, base, -REACH, relative)
            second = kit.pick(data, base, 1 - REACH, relative)
            change = builder.fsub(second, first, flags=_FLAGS)
            carried(builder.fadd(carried.value, kit.fma(share, change, first), flags=_FLAGS))
        kit.save(carried.result, table, 32)
        return context.get_dummy_value()

    return signature, codegen


def _gather_parallel(taps: int) -> Any:
    @intrinsic
    def gather(
        typingctx: Any, data: Any, at: Any, stride: Any, views: Any, x: Any, places: Any,
        shapes: Any, low: Any, high: Any, total: Any,
    ) -> Any:
        """Gather views of a parallel beam into 8 cells.

        `data` flat float32, bin k of view v at `at + v * stride + k`; `x` middle of the cells;
        `places` (v, 2) float64: detector place of x = 0, its change a cell; `shapes` (v, 3)
        float32: that change, slope q and top b of the trapezoid `clip(b - q distance, 0, 1)`;
        `total` (8,) float32.
        """
        signature = types.void(
            data, types.int64, types.int64, types.int64, types.float64, places, shapes,
            types.float64, types.float64, total,
        )

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kit = _Kit(context, builder)
            data, places, shapes, total = (
                kit.data(signature.args[i], args[i]) for i in (0, 5, 6, 9)
            )
            _, at, stride, views, x, _, _, low, high, _ = args
            lanes = kit.constant(*(i - 3.5 for i in range(8)))
            with kit.loop(ir.Constant(_i64, 0), views, kit.vector(total, 0)) as (v, carried):
                origin = kit.scalar(places, v, 2, 0)
                pace = kit.scalar(places, v, 2, 1)
                place = builder.fadd(origin, builder.fmul(x, pace))
                cell, rest = kit.place(place, low, high)
                step, q, b = (kit.splat(kit.scalar(shapes, v, 3, i)) for i in range(3))
                fraction, relative = kit.floor(kit.fma(lanes, step, kit.splat(rest)))
                base = builder.add(builder.add(at, builder.mul(v, stride)), cell)
                value = carried.value
                for tap in range(1 - taps // 2, taps // 2 + 1):
                    share = kit.clip(kit.fma(kit.distance(fraction, tap), kit.negative(q), b))
                    number = kit.pick(data, base, tap - REACH, relative)
                    value = kit.fma(share, number, value)
                carried(value)
            kit.save(carried.result, total, 0)
            return context.get_dummy_value()

        return signature, codegen

    return gather


def _gather_fan(taps: int) -> Any:
    @intrinsic
    def gather(
        typingctx: Any, data: Any, slopes: Any, tops: Any, image: Any, at: Any, stride: Any,
        views: Any, x: Any, places: Any, shapes: Any, low: Any, high: Any, total: Any,
    ) -> Any:
        """Gather views of a fan beam on a flat detector into 8 cells.

        As for parallel beams, but `places` (v, 4) float64 holds numerator and denominator of
        the detector place at x = 0 and their changes a cell: n, n', m, m'; `shapes` (v, 1)
        float32: m'. The trapezoid is that of each ray: `slopes` (times the denominator) and
        `tops` lie at `at`, `data` at `image + at`.
        """
        signature = types.void(
            data, slopes, tops, types.int64, types.int64, types.int64, types.int64, types.float64,
            places, shapes, types.float64, types.float64, total,
        )

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kit = _Kit(context, builder)
            data, slopes, tops, places, shapes, total = (
                kit.data(signature.args[i], args[i]) for i in (0, 1, 2, 8, 9, 12)
            )
            _, _, _, image, at, stride, views, x, _, _, low, high, _ = args
            lanes = kit.constant(*(i - 3.5 for i in range(8)))
            with kit.loop(ir.Constant(_i64, 0), views, kit.vector(total, 0)) as (v, carried):
                n, dn, m, dm = (kit.scalar(places, v, 4, i) for i in range(4))
                n = builder.fadd(n, builder.fmul(x, dn))
                m = builder.fadd(m, builder.fmul(x, dm))
                place = builder.fdiv(n, m)
                pace = builder.fptrunc(builder.fsub(dn, builder.fmul(place, dm)), _f32)
                cell, rest = kit.place(place, low, high)
                depth = kit.fma(lanes, kit.splat(kit.scalar(shapes, v, 1, 0)),
                                kit.splat(builder.fptrunc(m, _f32)))
                away = builder.fdiv(builder.fmul(lanes, kit.splat(pace), flags=_FLAGS), depth)
                fraction, relative = kit.floor(
                    builder.fadd(away, kit.splat(rest), flags=_FLAGS)
                )
                base = builder.add(builder.add(at, builder.mul(v, stride)), cell)
                depth = kit.negative(depth)
                value = carried.value
                for tap in range(1 - taps // 2, taps // 2 + 1):
                    q = kit.pick(slopes, base, tap - REACH, relative)
                    b = kit.pick(tops, base, tap - REACH, relative)
                    p = kit.pick(data, builder.add(base, image), tap - REACH, relative)
                    far = builder.fmul(kit.distance(fraction, tap), depth, flags=_FLAGS)
                    value = kit.fma(kit.clip(kit.fma(far, q, b)), p, value)
                carried(value)
            kit.save(carried.result, total, 0)
            return context.get_dummy_value()

        return signature, codegen

    return gather


gather_parallel_2, gather_parallel_4 = _gather_parallel(2), _gather_parallel(4)
gather_fan_2, gather_fan_4 = _gather_fan(2), _gather_fan(4)


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

    def place(self, place: Any, low: Any, high: Any) -> Any:
        """Whole part (int64) and rest (float32) of a float64 kept in [low, high]."""
        builder = self._builder
        place = builder.select(builder.fcmp_ordered(">", place, low), place, low)
        place = builder.select(builder.fcmp_ordered("<", place, high), place, high)
        whole = self._call("llvm.floor.f64", _f64, place)
        rest = builder.fptrunc(builder.fsub(place, whole), _f32)
        return builder.fptosi(whole, _i64), rest

    def floor(self, spot: Any) -> Any:
        """Fraction of 8 lanes, and their whole part counted from the start of the window."""
        builder = self._builder
        whole = self._call("llvm.floor.v8f32", _F8, spot)
        reach = ir.Constant(_I8, [ir.Constant(_i32, REACH)] * 8)
        relative = builder.add(builder.fptosi(whole, _I8), reach)
        return builder.fsub(spot, whole, flags=_FLAGS), relative

    def pick(self, data: Any, base: Any, offset: int, relative: Any) -> Any:
        """`data[base + offset + relative]`, relative in 0 .. 15."""
        builder = self._builder
        start = builder.add(base, ir.Constant(_i64, offset))
        if self._permutes:
            halves = [
                self._call("llvm.x86.avx2.permps", _F8, self.vector(data, position), relative)
                for position in (start, builder.add(start, ir.Constant(_i64, 8)))
            ]
            bit = builder.shl(relative, ir.Constant(_I8, [ir.Constant(_i32, 28)] * 8))
            upper = builder.icmp_signed("<", bit, ir.Constant(_I8, [ir.Constant(_i32, 0)] * 8))
            return builder.select(upper, halves[1], halves[0])
        mask = ir.Constant(_I8, [ir.Constant(_i32, 15)] * 8)
        inside = builder.and_(relative, mask)
        value = ir.Constant(_F8, ir.Undefined)
        for lane in range(8):
            index = builder.extract_element(inside, ir.Constant(_i32, lane))
            index = builder.add(start, builder.zext(index, _i64))
            number = builder.load(builder.gep(data, [index]))
            value = builder.insert_element(value, number, ir.Constant(_i32, lane))
        return value

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
        builder.cbranch(
            builder.icmp_signed("<", self._index, self._end), self._body, self._exit
        )
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
