"""A line of numbers read along an affine map, as IR: how rows look at slices, and slices at rows.

Element i of the result looks at place ``start + step i`` of a line of numbers and takes a few of
them from there on with weights of a rule: `hat` interpolates (Joseph's model), `hat_back` is its
transpose, `spans` measures overlaps with an interval (the footprint, which is its own transpose).

Eight float32 lanes keep places apart from the place of their group, which is float64, so that their
fractions are good to some 1e-7 however long the line is; four float64 lanes have plain places, and
`hat_back` then has the weights of `hat` from the same places. Indices are those of the whole axis,
and groups begin at multiples of the lanes, so an element has the same bits in any part of it.
Numbers are picked from a window by permuting registers (`lanes`); a number whose weight is zero may
be anything, NaN too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from geometries.kernels.compiling import compiled
from geometries.kernels.lanes import Kit

__all__ = ["MARGIN", "STEEPEST", "hat", "hat_back", "spans", "spread_of"]

STEEPEST = 8.0  # the largest step
MARGIN = 88  # readable numbers before and after what elements with a result look at

_f32, _f64, _i32, _i64 = ir.FloatType(), ir.DoubleType(), ir.IntType(32), ir.IntType(64)


@compiled
def spread_of(step):
    """How far apart neighboring places are: less than 1 (0), less than 2 (1), or more (2)."""
    return 0 if step < 0.999 else (1 if step < 1.999 else 2)


class _Places:
    """The places of one group of lanes: number before each, and the fraction beyond it."""

    def __init__(self, kit: Any, start: Any, step: Any, index: Any) -> None:
        builder = kit.builder
        half = ir.Constant(_f64, kit.lanes // 2)
        lanes = kit.constant(*(float(lane) for lane in range(kit.lanes)))
        first = builder.sitofp(index, _f64)
        if kit.lanes == 8:
            origin = builder.fadd(start, builder.fmul(step, first))
            middle = builder.fadd(start, builder.fmul(step, builder.fadd(first, half)))
            floor = builder.module.declare_intrinsic("llvm.floor", [_f64])
            middle = builder.call(floor, [middle])
            rest = builder.fptrunc(builder.fsub(origin, middle), _f32)
            place = builder.fmul(kit.splat(builder.fptrunc(step, _f32)), lanes)
            place = builder.fadd(kit.splat(rest), place)
            self.before = kit.floored(place)
            relative = self.before
        else:
            self.index = builder.fadd(kit.splat(first), lanes)
            place = builder.fadd(kit.splat(start), builder.fmul(kit.splat(step), self.index))
            self.before = kit.floored(place)
            middle = builder.extract_element(self.before, ir.Constant(_i32, 2))
            relative = builder.fsub(self.before, kit.splat(middle))
        self.fraction = builder.fsub(place, self.before)
        self.relative = builder.fptosi(relative, kit.indices)
        self.base = builder.fptosi(middle, _i64)


Weights = Callable[[Any], Any]
Rule = Callable[[Any, _Places, Any, Any], Weights]


def _taps(rule: Rule, ahead: int, endless: bool, adds: bool) -> Any:
    """The intrinsic of a rule.

    `sources` (B, width) has element s of its whole axis at `at + s`. Elements [begin, end) of
    `outs` (B, room), which whole groups may exceed, are element `shift` and those
    after it of the whole axis; `shift` is a multiple of 8. `one`, `two` are the rule's. The first
    of `count` taps is `ahead` of the place (float32).
    """

    def intrinsic_of(
        typingctx: Any,
        sources: Any,
        at: Any,
        outs: Any,
        shift: Any,
        begin: Any,
        end: Any,
        start: Any,
        step: Any,
        one: Any,
        two: Any,
        count: Any,
        spread: Any,
    ) -> Any:
        whole, real = types.int64, types.float64
        signature = types.void(
            sources, whole, outs, whole, whole, whole, real, real, real, real, whole, whole
        )

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kit = Kit(context, builder, 8 if signature.args[0].dtype == types.float32 else 4)
            data, target = (kit.data(signature.args[i], args[i]) for i in (0, 2))
            batch, width = kit.shape(signature.args[0], args[0], 2)
            _, room = kit.shape(signature.args[2], args[2], 2)
            _, at, _, shift, begin, end, start, step, one, two, count, spread = args
            offset = ahead if kit.lanes == 8 else 0

            def loop(pick: Any, single: bool) -> None:
                with kit.groups(begin, end) as (i, _):
                    places = _Places(kit, start, step, builder.add(i, shift))
                    weight = rule(kit, places, one, two)
                    index = pick.index(places.relative)
                    base = builder.add(builder.add(at, places.base), ir.Constant(_i64, offset))

                    def look(place: Any, where: Any) -> None:
                        total = kit.vector(target, where) if adds else None

                        def tap(m: Any, total: Any) -> Any:
                            number = m if isinstance(m, ir.Value) else ir.Constant(_i64, m)
                            share = weight(m)
                            seen = pick.value(data, builder.add(place, number), index)
                            met = builder.fcmp_ordered(">", share, kit.constant(0.0))
                            seen = builder.select(met, seen, kit.constant(0.0))
                            if total is None:
                                return builder.fmul(share, seen)
                            return kit.fma(share, seen, total)

                        total = tap(1, tap(0, total))
                        if endless:
                            with kit.loop(ir.Constant(_i64, 2), count, total) as (m, further):
                                further(tap(m, further.value))
                            total = further.result
                        kit.save(total, target, where)

                    if single:
                        look(base, i)
                        return
                    with kit.loop(ir.Constant(_i64, 0), batch) as (b, _):
                        look(
                            builder.add(builder.mul(b, width), base),
                            builder.add(builder.mul(b, room), i),
                        )

            several = builder.icmp_signed(">", batch, ir.Constant(_i64, 1))
            case = builder.mul(spread, ir.Constant(_i64, 2))
            case = builder.add(case, builder.zext(several, _i64))
            ways = [(pick, single) for pick in kit.picks() for single in (True, False)]
            kit.choose(case, [partial(loop, *way) for way in ways])
            return context.get_dummy_value()

        return signature, codegen

    return intrinsic(intrinsic_of)


def _number(kit: Any, m: Any) -> Any:
    if not isinstance(m, ir.Value):
        return kit.constant(float(m))
    return kit.splat(kit.builder.sitofp(m, kit.number))


def _scalar(kit: Any, value: Any) -> Any:
    return kit.splat(kit.builder.fptrunc(value, _f32) if kit.lanes == 8 else value)


def _magnitude(kit: Any, value: Any) -> Any:
    return kit.maximum(value, kit.negative(value))


def _hat(kit: Any, places: _Places, one: Any, two: Any) -> Weights:
    builder = kit.builder

    def weight(m: Any) -> Any:
        return places.fraction if m else builder.fsub(kit.constant(1.0), places.fraction)

    return weight


def _hat_back(kit: Any, places: _Places, one: Any, two: Any) -> Weights:
    builder = kit.builder
    unit, step = kit.constant(1.0), _scalar(kit, two)
    first = None
    if kit.lanes == 8:
        first = builder.fmul(step, builder.fsub(unit, places.fraction))
        first = builder.fsub(first, unit)

    def weight(m: Any) -> Any:
        number = _number(kit, m)
        if first is not None:
            gap = kit.fma(step, number, first)
        else:
            row = builder.fadd(places.before, number)
            gap = builder.fadd(kit.splat(one), builder.fmul(step, row))
            gap = builder.fsub(gap, places.index)
        return builder.fsub(unit, _magnitude(kit, gap))

    return weight


def _spans(kit: Any, places: _Places, one: Any, two: Any) -> Weights:
    builder = kit.builder
    unit, length, scale = kit.constant(1.0), _scalar(kit, one), _scalar(kit, two)
    end = builder.fadd(places.fraction, length)

    def weight(m: Any) -> Any:
        if isinstance(m, int) and m == 0:
            rest = builder.fsub(unit, places.fraction)
            share = builder.select(builder.fcmp_ordered("<", rest, length), rest, length)
        else:
            share = kit.clip(builder.fsub(end, _number(kit, m)))
        return builder.fmul(scale, share)

    return weight


hat = _taps(_hat, ahead=0, endless=False, adds=True)
hat_back = _taps(_hat_back, ahead=1, endless=True, adds=False)
spans = _taps(_spans, ahead=0, endless=True, adds=False)
