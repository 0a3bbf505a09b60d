"""Vectors of eight float32 or four float64 numbers, as LLVM IR, for the innermost loops.

Eight neighbors look at a window of 16 neighboring numbers (or of 8); numbers are picked from it
by permuting registers, which costs a fraction of a gather; machines without AVX2 pick by scalar
loads. Numba's own vectoriser knows no such permutation. The loops are `planar_lanes` and
`columns_lanes`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils

__all__ = ["FLAGS", "REACH", "Kit", "Loop", "Pick"]

REACH = 8  # where in the window its place is; lanes lie in [-8, 8) of it

FLAGS = ("contract", "nsz")
_f32, _f64, _i32, _i64 = ir.FloatType(), ir.DoubleType(), ir.IntType(32), ir.IntType(64)
_F8, _I4 = ir.VectorType(_f32, 8), ir.VectorType(_i64, 4)


class Kit:
    """The few vector operations that loops are made of; `lanes` 8 is float32, 4 is float64."""

    def __init__(self, context: Any, builder: Any, lanes: int = 8) -> None:
        self.lanes = lanes
        self.number = _f32 if lanes == 8 else _f64
        self.vectors = ir.VectorType(self.number, lanes)
        self.indices = ir.VectorType(_i32, lanes)
        self.context = context
        self.builder = builder
        self._permutes = "+avx2" in context.codegen().magic_tuple()[2]

    def data(self, kind: Any, array: Any) -> Any:
        return cgutils.create_struct_proxy(kind)(self.context, self.builder, array).data

    def constant(self, *values: float) -> Any:
        values = values if len(values) == self.lanes else values * self.lanes
        return ir.Constant(self.vectors, [ir.Constant(self.number, value) for value in values])

    def whole(self, *values: int) -> Any:
        """A constant vector of int32."""
        values = values if len(values) == self.lanes else values * self.lanes
        return ir.Constant(self.indices, [ir.Constant(_i32, value) for value in values])

    def splat(self, scalar: Any) -> Any:
        kind = ir.VectorType(scalar.type, self.lanes)
        one = self.builder.insert_element(
            ir.Constant(kind, ir.Undefined), scalar, ir.Constant(_i32, 0)
        )
        return self.builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), self.whole(0))

    def entry(self, data: Any, row: int, width: Any, column: Any) -> Any:
        """A number of a table with `width` columns."""
        start = self.builder.mul(ir.Constant(_i64, row), width)
        return self.builder.load(self.builder.gep(data, [self.builder.add(start, column)]))

    def base(self, at: Any, stride: Any, cells: Any, row: Any) -> Any:
        """`at + row * stride + cells[row]`."""
        cell = self.builder.sext(self.builder.load(self.builder.gep(cells, [row])), _i64)
        return self.builder.add(self.builder.add(at, self.builder.mul(row, stride)), cell)

    def vector(self, data: Any, offset: Any) -> Any:
        return self.builder.load(self._vector_at(data, offset), align=4)

    def beside(self, first: Any, second: Any) -> Any:
        """Two vectors as one of twice the lanes."""
        return self.shuffled(first, second, range(2 * self.lanes))

    def half(self, both: Any, number: int) -> Any:
        """The first or the second of two vectors `beside` each other."""
        order = range(number * self.lanes, (number + 1) * self.lanes)
        return self.shuffled(both, both, order)

    def shuffled(self, first: Any, second: Any, order: Sequence[int]) -> Any:
        """The lanes of two vectors, counted through both, in any order and number."""
        kind = ir.VectorType(_i32, len(order))
        numbers = ir.Constant(kind, [ir.Constant(_i32, number) for number in order])
        return self.builder.shuffle_vector(first, second, numbers)

    def save(self, value: Any, data: Any, offset: Any) -> None:
        self.builder.store(value, self._vector_at(data, offset), align=4)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        builder = self.builder
        return builder.fadd(builder.fmul(a, b, flags=FLAGS), c, flags=FLAGS)

    def after(self, value: Any, change: Any, steps: int) -> Any:
        """`value + steps * change`."""
        return self.fma(self.constant(float(steps)), change, value) if steps else value

    def negative(self, a: Any) -> Any:
        return self.builder.fsub(self.constant(-0.0), a, flags=FLAGS)

    def maximum(self, a: Any, b: Any) -> Any:
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def minimum(self, a: Any, b: Any) -> Any:
        return self.builder.select(self.builder.fcmp_ordered("<", a, b), a, b)

    def clip(self, a: Any) -> Any:
        return self.maximum(self.minimum(a, self.constant(1.0)), self.constant(0.0))

    def distance(self, fraction: Any, tap: int) -> Any:
        if tap == 0:
            return fraction
        far = self.constant(float(tap))
        a, b = (far, fraction) if tap > 0 else (fraction, far)
        return self.builder.fsub(a, b, flags=FLAGS)

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
        builder = self.builder
        blocks = [builder.append_basic_block(f"lanes.{name}") for name in ("one", "two")]
        after = builder.append_basic_block("lanes.after")
        builder.cbranch(condition, *blocks)
        ways = []
        for block, emit in zip(blocks, (one, two), strict=True):
            builder.position_at_end(block)
            ways.append((emit(), builder.block))
            builder.branch(after)
        builder.position_at_end(after)
        result = builder.phi(ways[0][0].type)
        for way in ways:
            result.add_incoming(*way)
        return result

    def place(self, place: Any, low: Any, high: Any) -> Any:
        """Whole part (int64) and rest (float32) of a float64 kept in [low, high]."""
        builder = self.builder
        place = builder.select(builder.fcmp_ordered(">", place, low), place, low)
        place = builder.select(builder.fcmp_ordered("<", place, high), place, high)
        whole = self._call("llvm.floor.f64", _f64, place)
        rest = builder.fptrunc(builder.fsub(place, whole), _f32)
        return builder.fptosi(whole, _i64), rest

    def floor(self, spot: Any) -> Any:
        """Fraction and whole part (int32) of 8 lanes."""
        builder = self.builder
        whole = self.floored(spot)
        relative = builder.fptosi(whole, self.indices)
        return builder.fsub(spot, whole, flags=FLAGS), relative

    def floored(self, spot: Any) -> Any:
        name = f"llvm.floor.v{self.lanes}f{32 if self.lanes == 8 else 64}"
        return self._call(name, self.vectors, spot)

    def pick(self, data: Any, base: Any, offset: int, relative: Any) -> Any:
        """`data[base + offset + relative]`, relative in -8 .. 7."""
        builder = self.builder
        start = builder.add(base, ir.Constant(_i64, offset - REACH))
        if self._permutes:
            # The permutation takes an index modulo 8; the sign tells the halves apart.
            low, high = (
                self._call("llvm.x86.avx2.permps", _F8, self.vector(data, position), relative)
                for position in (start, builder.add(start, ir.Constant(_i64, 8)))
            )
            negative = builder.icmp_signed("<", relative, self.whole(0))
            return builder.select(negative, low, high)
        inside = builder.and_(builder.add(relative, self.whole(REACH)), self.whole(15))
        return self.gathered(data, start, inside)

    def gathered(self, data: Any, start: Any, relative: Any) -> Any:
        """`data[start + relative]`, a scalar load a lane."""
        builder = self.builder
        value = ir.Constant(self.vectors, ir.Undefined)
        for lane in range(self.lanes):
            index = builder.extract_element(relative, ir.Constant(_i32, lane))
            index = builder.add(start, builder.sext(index, _i64))
            number = builder.load(builder.gep(data, [index]))
            value = builder.insert_element(value, number, ir.Constant(_i32, lane))
        return value

    def pick_near(self, data: Any, base: Any, offset: int, relative: Any) -> Any:
        """`data[base + offset + relative]`, relative in -4 .. 3: one permutation."""
        if not self._permutes:
            return self.pick(data, base, offset, relative)
        builder = self.builder
        start = builder.add(base, ir.Constant(_i64, offset - 4))
        index = builder.xor(relative, self.whole(4))
        return self._call("llvm.x86.avx2.permps", _F8, self.vector(data, start), index)

    def reduced(self, name: str, vector: Any) -> Any:
        """The "smin" or "smax" of int32 lanes."""
        return self._call(f"llvm.vector.reduce.{name}.v{self.lanes}i32", _i32, vector)

    def slots(self, whole: Any, size: int) -> list[Any]:
        """Whole float64 lanes in [0, 2^31) times `size`, a power of two, as int64 scalars."""
        builder = self.builder
        # The last bit of a number near 2^52 / size counts 1 / size: its bits are the product.
        magic = 2.0**52 / size
        bits = builder.bitcast(builder.fadd(whole, self.constant(magic)), _I4)
        (pattern,) = struct.unpack("<q", struct.pack("<d", magic))
        lanes = (builder.extract_element(bits, ir.Constant(_i32, k)) for k in range(4))
        return [builder.sub(lane, ir.Constant(_i64, pattern)) for lane in lanes]

    def loop(self, begin: Any, end: Any, start: Any = None, step: int = 1) -> Loop:
        return Loop(self.builder, begin, end, start, step)

    def _call(self, name: str, kind: Any, *args: Any) -> Any:
        function = cgutils.get_or_insert_function(
            self.builder.module, ir.FunctionType(kind, [a.type for a in args]), name
        )
        return self.builder.call(function, args)

    def _vector_at(self, data: Any, offset: Any) -> Any:
        if isinstance(offset, int):
            offset = ir.Constant(_i64, offset)
        pointer = self.builder.gep(data, [offset])
        kind = ir.VectorType(pointer.type.pointee, self.lanes)
        return self.builder.bitcast(pointer, kind.as_pointer())

    def groups(self, begin: Any, end: Any) -> Loop:
        """Loop over whole groups of lanes that hold [begin, end); the index is the first lane."""
        builder = self.builder
        low = builder.and_(begin, ir.Constant(_i64, -self.lanes))
        return Loop(builder, low, end, step=self.lanes)

    def permuted(self, vector: Any, index: Any) -> Any:
        """Lanes of a vector in another order; `index` counts float32 modulo 8."""
        moved = self.builder.bitcast(vector, _F8)
        moved = self._call("llvm.x86.avx2.permps", _F8, moved, index)
        return self.builder.bitcast(moved, self.vectors)

    def shape(self, kind: Any, array: Any, dimensions: int) -> list[Any]:
        """The extents of an array."""
        struct = cgutils.create_struct_proxy(kind)(self.context, self.builder, array)
        extents: list[Any] = cgutils.unpack_tuple(self.builder, struct.shape, dimensions)
        return extents

    def choose(self, number: Any, emits: list[Callable[[], None]]) -> None:
        """Run the code that `emits[number]` emits (the last for any other number)."""
        builder = self.builder
        blocks = [builder.append_basic_block("lanes.choice") for _ in emits]
        after = builder.append_basic_block("lanes.after")
        switch = builder.switch(number, blocks[-1])
        for value, block in enumerate(blocks[:-1]):
            switch.add_case(ir.Constant(number.type, value), block)
        for block, emit in zip(blocks, emits, strict=True):
            builder.position_at_end(block)
            emit()
            builder.branch(after)
        builder.position_at_end(after)

    def picks(self) -> list[Pick]:
        """Ways to look up `data[at + relative]`: relative within half a group, a group, any."""
        return [Pick(self, reach if self._permutes else 2) for reach in (0, 1, 2)]


class Pick:
    """Look-ups of one number a lane: `index` once for a vector of positions, then `value`s.

    `reach` 0: positions in [-lanes / 2, lanes / 2), one permutation; 1: in [-lanes, lanes), two
    and a choice; 2: any, by scalar loads.
    """

    def __init__(self, kit: Kit, reach: int) -> None:
        self._kit, self._reach = kit, reach

    def index(self, relative: Any) -> Any:
        """What `value` wants of positions (int32 lanes)."""
        kit = self._kit
        builder = kit.builder
        if self._reach == 2:
            return relative, None
        negative = builder.icmp_signed("<", relative, kit.whole(0))
        if self._reach == 0:
            relative = builder.add(relative, kit.whole(kit.lanes // 2))
        if kit.lanes == 4:
            # A float64 is two float32 for the permutation, which takes an index modulo 8.
            eight = ir.VectorType(_i32, 8)
            order = ir.Constant(eight, [ir.Constant(_i32, k // 2) for k in range(8)])
            relative = builder.shuffle_vector(relative, relative, order)
            relative = builder.shl(relative, ir.Constant(eight, [ir.Constant(_i32, 1)] * 8))
            halves = ir.Constant(eight, [ir.Constant(_i32, k % 2) for k in range(8)])
            relative = builder.or_(relative, halves)
        return relative, negative

    def value(self, data: Any, at: Any, index: Any) -> Any:
        """The numbers at `data[at + position]`."""
        kit = self._kit
        builder = kit.builder
        if self._reach == 2:
            return kit.gathered(data, at, index[0])
        if self._reach == 0:
            start = builder.sub(at, ir.Constant(_i64, kit.lanes // 2))
            return kit.permuted(kit.vector(data, start), index[0])
        start = builder.sub(at, ir.Constant(_i64, kit.lanes))
        low = kit.permuted(kit.vector(data, start), index[0])
        high = kit.permuted(kit.vector(data, at), index[0])
        return builder.select(index[1], low, high)


class Loop:
    """`for index in range(begin, end)`, with one vector carried in a register, or none.

    Entered, it gives the index and itself; called with the next value at the end of the body;
    `result` holds the last value after the block.
    """

    def __init__(
        self, builder: Any, begin: Any, end: Any, start: Any = None, step: int = 1
    ) -> None:
        self._step = step
        self._builder = builder
        self._entry = builder.block
        self._head = builder.append_basic_block("lanes.head")
        self._body = builder.append_basic_block("lanes.body")
        self._exit = builder.append_basic_block("lanes.exit")
        self._begin, self._end, self._start = begin, end, start
        self._next: Any = None
        self.value: Any = None

    def __enter__(self) -> tuple[Any, Loop]:
        builder = self._builder
        builder.branch(self._head)
        builder.position_at_end(self._head)
        self._index = builder.phi(_i64)
        self._index.add_incoming(self._begin, self._entry)
        if self._start is not None:
            self.value = builder.phi(self._start.type)
            self.value.add_incoming(self._start, self._entry)
        builder.cbranch(builder.icmp_signed("<", self._index, self._end), self._body, self._exit)
        builder.position_at_end(self._body)
        return self._index, self

    def __call__(self, value: Any) -> None:
        self._next = value

    def __exit__(self, *error: object) -> None:
        builder = self._builder
        step = builder.add(self._index, ir.Constant(_i64, self._step))
        self._index.add_incoming(step, builder.block)
        if self._start is not None:
            self.value.add_incoming(self._next, builder.block)
        builder.branch(self._head)
        builder.position_at_end(self._exit)
        self.result = self.value
