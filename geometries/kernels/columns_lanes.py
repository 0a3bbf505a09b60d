"""The innermost loops of `columns`: one piece of the walk for all rows of a detector column, as IR.

A row is a straight line over the slices; in one piece of the walk in the plane it lies in one cell
or in two, and `_split` says in which and how long. Forward picks the two cells of each of
neighboring rows from a window of the voxel column; the adjoint keeps what `_split` says and adds
it row by row. Both run the same instructions on the same numbers, so they have the same weights
bit for bit, whatever group a row is in.

Two kinds of tables and of arithmetic, told apart by their dtype. Eight float32 lanes: `level` is a
fixed-point int32 with `bits` of fraction, because a float32 height of a few hundred slices would
spoil the split of flat rays; `slope` is in these units, `share` the length per unit. Four float64
lanes: `level`, `slope`, `share` = 1 / |slope| as they are. Rows are in rising order of z, their
tables filled up to whole groups.

A padded column has cell k at `FRONT + k + 2`; `first` to `first + 1` and the two from `top` on are
outside. So a cell outside, however far, is one of these four, and its value zero.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from geometries.kernels.lanes import FLAGS, Kit

__all__ = ["BACK", "FRONT", "march", "scatter", "split"]

FRONT = 8  # numbers before slot 0 of a padded column, as far as a window reaches
BACK = 12  # numbers from slot `top` on

_f32, _f64, _i32, _i64 = ir.FloatType(), ir.DoubleType(), ir.IntType(32), ir.IntType(64)


@intrinsic
def march(
    typingctx: Any,
    columns: Any,
    width: Any,
    total: Any,
    level: Any,
    slope: Any,
    share: Any,
    begin: Any,
    end: Any,
    first: Any,
    top: Any,
    bits: Any,
    start: Any,
    stop: Any,
    spread: Any,
) -> Any:
    """Add one piece of the walk to `total` (B, rows), for the rows [begin, end).

    `columns` (B, width): the padded voxel column of each image. Slot 0 is slice `first` of the
    whole grid, slot `top` the first slice after the last. `start`, `stop`: float64, the piece.
    `spread` says how far apart rows are: 0 less than one slice, 1 less than two, 2 anything.
    """
    signature = types.void(
        columns, types.int64, total, level, slope, share, types.int64, types.int64, types.int64,
        types.int64, types.int64, types.float64, types.float64, types.int64,
    )  # fmt: skip

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kit, tables = _tables(context, builder, signature, args, 3)
        data = kit.data(signature.args[0], args[0])
        sums = kit.data(signature.args[2], args[2])
        batch, rows = kit.shape(signature.args[2], args[2], 2)
        width, begin, end, spread = args[1], args[6], args[7], args[13]
        piece = _piece(kit, args, 8)

        def loop(pick: Any, single: bool) -> None:
            with kit.groups(begin, end) as (row, _):
                place, below, above, crossing = _split(kit, tables, piece, row)
                inside = builder.fcmp_ordered(">", below, kit.constant(0.0))
                middle = builder.extract_element(place, ir.Constant(_i32, kit.lanes // 2))
                base = builder.add(builder.sext(middle, _i64), ir.Constant(_i64, FRONT))
                index = pick.index(builder.sub(place, kit.splat(middle)))

                def look(at: Any, where: Any) -> None:
                    one = pick.value(data, at, index)
                    two = pick.value(data, builder.add(at, ir.Constant(_i64, 1)), index)
                    # A cell that the row does not reach may hold anything, NaN too.
                    one = builder.select(inside, one, kit.constant(0.0))
                    two = builder.select(crossing, two, kit.constant(0.0))
                    seen = kit.fma(above, two, kit.vector(sums, where))
                    kit.save(kit.fma(below, one, seen), sums, where)

                if single:
                    look(base, row)
                    return
                with kit.loop(ir.Constant(_i64, 0), batch) as (b, _):
                    at = builder.add(builder.mul(b, width), base)
                    look(at, builder.add(builder.mul(b, rows), row))

        several = builder.icmp_signed(">", batch, ir.Constant(_i64, 1))
        case = builder.add(builder.mul(spread, ir.Constant(_i64, 2)), builder.zext(several, _i64))
        ways = [(pick, single) for pick in kit.picks() for single in (True, False)]
        kit.choose(case, [lambda way=way: loop(*way) for way in ways])
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def split(
    typingctx: Any,
    places: Any,
    pairs: Any,
    level: Any,
    slope: Any,
    share: Any,
    begin: Any,
    end: Any,
    first: Any,
    top: Any,
    bits: Any,
    start: Any,
    stop: Any,
) -> Any:
    """Keep what `march` would use: `places` (rows,) int32 slots, `pairs` (2 rows,) lengths.

    A pair is the length in the cell of the slot and in the one above.
    """
    signature = types.void(
        places, pairs, level, slope, share, types.int64, types.int64, types.int64,
        types.int64, types.int64, types.float64, types.float64,
    )  # fmt: skip

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kit, tables = _tables(context, builder, signature, args, 2)
        places = kit.data(signature.args[0], args[0])
        pairs = kit.data(signature.args[1], args[1])
        piece = _piece(kit, args, 7)
        n = kit.lanes
        order = [ir.Constant(_i32, k // 2 + n * (k % 2)) for k in range(2 * n)]
        with kit.groups(args[5], args[6]) as (row, _):
            place, below, above, _ = _split(kit, tables, piece, row)
            kit.save(place, places, row)
            both = builder.shuffle_vector(
                below, above, ir.Constant(ir.VectorType(_i32, 2 * n), order)
            )
            pointer = builder.gep(pairs, [builder.mul(row, ir.Constant(_i64, 2))])
            builder.store(both, builder.bitcast(pointer, both.type.as_pointer()), align=4)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def scatter(
    typingctx: Any,
    slots: Any,
    at: Any,
    places: Any,
    pairs: Any,
    values: Any,
    begin: Any,
    end: Any,
) -> Any:
    """Add values times pairs of the rows [begin, end) to a voxel column, slot 0 at `slots[at]`.

    A slot holds four sums: of even rows and of odd ones, of its own cell and, one slot early, of
    the one above. So a row adds both at once, and seldom waits for the row before. An even
    number of rows is added; one beyond `end` must have `values` 0 or be a real one. Values are
    finite, because a length 0 is multiplied too.
    """
    signature = types.void(
        slots, types.int64, places, pairs, values, types.int64, types.int64
    )  # fmt: skip

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes = 8 if signature.args[0].dtype == types.float32 else 4
        kit = Kit(context, builder, lanes)
        slots, places, pairs, values = (kit.data(signature.args[i], args[i]) for i in (0, 2, 3, 4))
        two = ir.VectorType(kit.number, 2)
        zero, one = ir.Constant(_i32, 0), ir.Constant(_i64, 1)
        size = 4 if lanes == 8 else 8
        none = ir.Constant(two, ir.Undefined)
        begin = builder.and_(args[5], ir.Constant(_i64, -2))
        with kit.loop(begin, args[6], step=2) as (first, _):
            for odd in (0, 1):
                row = builder.add(first, ir.Constant(_i64, odd))
                slot = builder.sext(builder.load(builder.gep(places, [row])), _i64)
                slot = builder.add(builder.shl(slot, ir.Constant(_i64, 2)), args[1])
                slot = builder.add(slot, ir.Constant(_i64, 2 * odd))
                target = builder.bitcast(builder.gep(slots, [slot]), two.as_pointer())
                source = builder.gep(pairs, [builder.shl(row, one)])
                pair = builder.load(builder.bitcast(source, two.as_pointer()), align=size)
                value = builder.load(builder.gep(values, [row]))
                value = builder.insert_element(none, value, zero)
                value = builder.shuffle_vector(
                    value, none, ir.Constant(ir.VectorType(_i32, 2), [zero, zero])
                )
                old = builder.load(target, align=size)
                new = builder.fadd(builder.fmul(pair, value, flags=FLAGS), old, flags=FLAGS)
                builder.store(new, target, align=size)
        return context.get_dummy_value()

    return signature, codegen


def _tables(context: Any, builder: Any, signature: Any, args: Any, at: int) -> Any:
    """The kit for the dtype of the tables, and level, slope, share from argument `at` on."""
    kit = Kit(context, builder, 8 if signature.args[at].dtype == types.int32 else 4)
    return kit, [kit.data(signature.args[at + i], args[at + i]) for i in range(3)]


def _piece(kit: Any, args: Any, at: int) -> dict[str, Any]:
    """What all rows share, as vectors: arguments first, top, bits, start, stop from `at` on."""
    builder = kit.builder
    first, top, bits, start, stop = args[at : at + 5]
    length = builder.fsub(stop, start)
    piece = {"start": start, "stop": stop, "whole": length}
    if kit.lanes == 8:
        piece = {name: builder.fptrunc(value, _f32) for name, value in piece.items()}
        bits = builder.trunc(bits, _i32)
        one = ir.Constant(_i32, 1)
        piece["bits"] = bits
        piece["mask"] = builder.sub(builder.shl(one, bits), one)
        piece["top"] = builder.trunc(top, _i32)
    else:
        piece["first"] = builder.sitofp(first, _f64)
        piece["top"] = builder.sitofp(top, _f64)
    return {name: kit.splat(value) for name, value in piece.items()}


def _split(kit: Any, tables: Any, piece: dict[str, Any], row: Any) -> Any:
    """(slot of the lower cell, length in it, length in the next one, whether it is reached)."""
    builder = kit.builder
    level, slope, share = (kit.vector(table, row) for table in tables)
    start, stop, whole = piece["start"], piece["stop"], piece["whole"]
    zero = kit.constant(0.0)
    if kit.lanes == 8:
        one, two = (
            builder.add(level, builder.fptosi(builder.fmul(slope, t), kit.indices))
            for t in (start, stop)
        )
        above = builder.icmp_signed(">", one, two)
        low, high = builder.select(above, two, one), builder.select(above, one, two)
        part = builder.sitofp(builder.and_(high, piece["mask"]), kit.vectors)
        low, up = builder.ashr(low, piece["bits"]), builder.ashr(high, piece["bits"])
        crossing = builder.icmp_signed(">", up, low)
        none = kit.whole(0)
        place = builder.select(builder.icmp_signed(">", low, none), low, none)
        top = piece["top"]
        place = builder.select(builder.icmp_signed("<", place, top), place, top)
    else:
        one, two = (builder.fadd(level, builder.fmul(slope, t)) for t in (start, stop))
        above = builder.fcmp_ordered(">", one, two)
        low, high = builder.select(above, two, one), builder.select(above, one, two)
        low, up = kit.floored(low), kit.floored(high)
        part = builder.fsub(high, up)
        crossing = builder.fcmp_ordered(">", up, low)
        place = kit.maximum(builder.fsub(low, piece["first"]), zero)
        top = piece["top"]
        place = builder.select(builder.fcmp_ordered("<", place, top), place, top)
        place = builder.fptosi(place, kit.indices)
    part = builder.fmul(part, share)
    part = builder.select(builder.fcmp_ordered("<", part, whole), part, whole)
    upper = builder.select(crossing, part, zero)
    return place, builder.fsub(whole, upper), upper, crossing
