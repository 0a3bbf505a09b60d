"""The slice engine: a stencil on arrays of any namespace, as sums of shifted views.

Forward, the input is written into a frame, what is beyond each axis is filled in from the frame
itself, axis after axis, so that corners come out right, and the views are summed. The adjoint sums
with flipped taps on to the frame and folds what is beyond the ends back, last axis first: nothing
here is written for one boundary. Frames are filled in place where the library writes; nothing is
rolled, padded or concatenated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.stencils.line import Line, PlaneRun

__all__ = [
    "Tap",
    "adjoint",
    "blanked",
    "components",
    "conjugate",
    "conjugated",
    "folded",
    "forward",
    "framed_input",
    "joined",
    "shifted",
    "wide",
]


class Tap(NamedTuple):
    """`weight * coefficient * input[i + offset]`, added to an output."""

    output: int
    input: int
    offset: tuple[int, ...]
    weight: float | complex
    coefficient: int
    """Number of the coefficient field; -1 for none."""


def forward(
    inputs: Sequence[Array],
    lines: Sequence[tuple[Line, ...]],
    taps: Sequence[Tap],
    fields: Sequence[Array],
    outputs: int,
    starts: Array,
    values: Any = None,
) -> list[Array]:
    """One array for each output; `lines` are those of each input.

    `values[input][axis]` are the values of planes beyond the ends, for constant boundaries.
    """
    frames = []
    for number, (x, row) in enumerate(zip(inputs, lines, strict=True)):
        frames.append(framed_input(x, row, starts, None if values is None else values[number]))
    found = []
    for output in range(outputs):
        total: Any = None
        for field in sorted({tap.coefficient for tap in taps if tap.output == output}):
            part: Any = None
            for tap in taps:
                if tap.output == output and tap.coefficient == field:
                    view = shifted(frames[tap.input], lines[tap.input], tap.offset)
                    part = _plus(part, view, tap.weight)
            if field >= 0:
                part = part * fields[field]
            total = part if total is None else total + part
        if total is None:
            total = _zeros(inputs[0], [line.count for line in lines[0]])
        for axis, line in enumerate(lines[0]):
            total = blanked(total, axis - len(lines[0]), line, starts[axis])
        found.append(total)
    return found


def adjoint(
    outputs: Sequence[Array],
    lines: Sequence[tuple[Line, ...]],
    taps: Sequence[Tap],
    fields: Sequence[Array],
    starts: Array,
) -> list[Array]:
    """The transposed map with conjugated weights: one array for each input."""
    first = lines[0]
    n = len(first)
    masked = []
    for part in outputs:
        for axis, line in enumerate(first):
            part = blanked(part, axis - n, line, starts[axis])
        masked.append(part)
    before = [line.before + line.lead + line.high for line in first]
    sizes = [line.before + line.extent + line.after for line in first]
    after = [
        max(size - line.before - line.lead + line.low - line.count, 0)
        for size, line in zip(sizes, first, strict=True)
    ]
    frames: dict[tuple[int, int], Array] = {}
    found = []
    for number, row in enumerate(lines):
        total: Any = None
        for tap in taps:
            if tap.input != number:
                continue
            key = tap.output, tap.coefficient
            if key not in frames:
                part = masked[tap.output]
                if tap.coefficient >= 0:
                    part = part * conjugate(fields[tap.coefficient])
                frames[key] = arrays.framed(part, before, after)
            view = frames[key]
            for axis, (line, size) in enumerate(zip(row, sizes, strict=True)):
                begin = line.high - tap.offset[axis]
                view = arrays.narrow(view, axis - n, begin, begin + size)
            total = _plus(total, view, conjugated(tap.weight))
        if total is None:
            found.append(_zeros(outputs[0], [line.extent for line in row]))
            continue
        found.append(folded(total, row, starts))
    return found


def framed_input(x: Array, lines: Sequence[Line], starts: Array, values: Any = None) -> Array:
    """`x` with what stands beyond the ends of its axes."""
    n = len(lines)
    for axis, line in enumerate(lines):
        if line.whole is not None:
            x = _extend(x, axis - n, line, starts[axis])
    if all(line.plain for line in lines):
        return x
    frame = arrays.framed(x, [line.before for line in lines], [line.after for line in lines])
    for axis, line in enumerate(lines):
        for plane in line.blanks:
            hole = arrays.narrow(frame, axis - n, line.before + plane, line.before + plane + 1)
            frame = arrays.written(frame, axis - n, line.before + plane, hole * 0)
        for run in line.runs:
            frame = arrays.written(frame, axis - n, run.target, _read(frame, axis - n, run))
        if values is not None:
            frame = _filled(frame, axis - n, line, values[axis])
    return frame


def _filled(frame: Array, axis: int, line: Line, values: Any) -> Array:
    """Planes beyond the ends with constant values there, where these are not None."""
    ends = ((0, line.before), (line.before + line.extent, line.after))
    for value, (begin, count) in zip(values, ends, strict=True):
        if value is not None and count:
            planes = arrays.narrow(frame, axis, begin, begin + count)
            frame = arrays.written(frame, axis, begin, planes * 0 + value)
    return frame


def folded(total: Array, lines: Sequence[Line], starts: Array) -> Array:
    """The transpose of `framed_input`."""
    n = len(lines)
    for axis in reversed(range(n)):
        line = lines[axis]
        for run in line.runs:
            low = min(run.source, run.source + (run.planes - 1) * run.step)
            part = arrays.narrow(total, axis - n, run.target, run.target + run.planes)
            own = arrays.narrow(total, axis - n, low, low + run.planes)
            total = arrays.written(total, axis - n, low, own + _turn(part, axis - n, run))
        for plane in line.blanks:
            hole = arrays.narrow(total, axis - n, line.before + plane, line.before + plane + 1)
            total = arrays.written(total, axis - n, line.before + plane, hole * 0)
        total = arrays.narrow(total, axis - n, line.before, line.before + line.extent)
    for axis, line in reversed(list(enumerate(lines))):
        if line.whole is not None:
            total = _returned(total, axis - n, line, starts[axis])
    return total


def _read(frame: Array, axis: int, run: PlaneRun) -> Array:
    low = min(run.source, run.source + (run.planes - 1) * run.step)
    return _turn(arrays.narrow(frame, axis, low, low + run.planes), axis, run)


def _turn(part: Array, axis: int, run: PlaneRun) -> Array:
    if run.step < 0:
        part = arrays.namespace(part).flip(part, axis=part.ndim + axis)
    return -part if run.sign < 0 else part


def shifted(frame: Array, lines: Sequence[Line], offset: Sequence[int]) -> Array:
    """The view of a framed input that a tap with this offset reads."""
    n = len(lines)
    for axis, (line, o) in enumerate(zip(lines, offset, strict=True)):
        begin = line.before + line.lead + o
        if begin or frame.shape[axis - n] != line.count:
            frame = arrays.narrow(frame, axis - n, begin, begin + line.count)
    return frame


def _plus(total: Any, view: Array, weight: Any) -> Array:
    if type(view) is np.ndarray and total is not None:
        product = view if weight == 1 else view * weight
        total += product
        return total
    product = view * weight
    return product if total is None else total + product


def components(x: Array, d: int, led: bool) -> list[Array]:
    """The components of an array with `d` axes of a grid; `led` where it has an axis of them."""
    if not led:
        return [x]
    tail = (slice(None),) * d
    return [x[(..., c, *tail)] for c in range(x.shape[-d - 1])]


def joined(parts: Sequence[Array], d: int, led: bool) -> Array:
    """One array of the components."""
    if not led:
        return parts[0]
    return arrays.namespace(*parts).stack(list(parts), axis=-d - 1)


def wide(x: Array) -> Array:
    """Half precision is summed in float32."""
    return arrays.cast(x, np.dtype("float32")) if arrays.dtype_of(x).itemsize == 2 else x


def _zeros(like: Array, planes: Sequence[int]) -> Array:
    batch = tuple(like.shape)[: like.ndim - len(planes)]
    return arrays.zeros((*batch, *planes), arrays.dtype_of(like), like)


def conjugated(weight: Any) -> Any:
    """The conjugate of a weight."""
    return weight.conjugate() if isinstance(weight, complex) else weight


def conjugate(field: Array) -> Array:
    """The complex conjugate; real arrays as they are."""
    return arrays.namespace(field).conj(field) if arrays.dtype_of(field).kind == "c" else field


# --- padded blocks: the place of the block on its axis is data -------------------------------


def _planes(count: int, first: Array) -> tuple[Any, Array]:
    xp = arrays.namespace(first)
    return xp, xp.arange(count, dtype=first.dtype) + first


def _table(entries: Sequence[int], like: Array) -> Array:
    return arrays.convert(np.array(entries, np.int32), like)


def blanked(y: Array, axis: int, line: Line, start: Array) -> Array:
    """Zero in output planes that are outside the whole axis."""
    if line.whole is None or not y.shape[axis]:
        return y
    xp, plane = _planes(line.count, start)
    valid = (plane >= 0) & (plane < line.whole[1])
    return arrays.gather_planes(y, axis, xp.arange(line.count, dtype=start.dtype), valid)


def _extend(x: Array, axis: int, line: Line, start: Array) -> Array:
    """The input of a padded block with what is beyond the true ends in its planes."""
    assert line.whole is not None
    if not x.shape[axis]:
        return x
    n, halo, shift = line.whole[0], line.halo, line.lead
    xp, plane = _planes(line.extent, start - shift)
    own = xp.arange(line.extent, dtype=start.dtype)
    table = line.table
    if table is None:
        reach = halo if line.ring else 0
        return arrays.gather_planes(x, axis, own, (plane >= -reach) & (plane < n + reach))
    place = xp.clip(plane + halo, 0, n + 2 * halo - 1)
    sign = xp.take(_table(table[1], start), place)
    source = xp.take(_table(table[0], start), place) - start + shift
    valid = (plane >= -halo) & (plane < n + halo) & (sign != 0)
    valid = valid & (source >= 0) & (source < line.extent)
    taken = arrays.gather_planes(x, axis, xp.clip(source, 0, line.extent - 1), valid)
    return _sign(taken, axis, sign) if -1 in table[1] else taken


def _returned(total: Array, axis: int, line: Line, start: Array) -> Array:
    """The transpose of `_extend`."""
    assert line.whole is not None
    if not total.shape[axis]:
        return total
    n, halo, shift = line.whole[0], line.halo, line.lead
    xp, plane = _planes(line.extent, start - shift)
    own = xp.arange(line.extent, dtype=start.dtype)
    reach = halo if line.ring else 0
    real = (plane >= -reach) & (plane < n + reach)
    low, high = line.walls
    if low:
        real = real & (plane != 0)
    if high:
        real = real & (plane != n - 1)
    result = arrays.gather_planes(total, axis, own, real)
    for planes, signs in line.readers:
        place = xp.clip(plane, 0, n - 1)
        sign = xp.take(_table(signs, start), place)
        reader = xp.take(_table(planes, start), place) - start + shift
        valid = (plane >= 0) & (plane < n) & (sign != 0) & (reader >= 0) & (reader < line.extent)
        part = arrays.gather_planes(total, axis, xp.clip(reader, 0, line.extent - 1), valid)
        result = result + (_sign(part, axis, sign) if -1 in signs else part)
    return result


def _sign(x: Array, axis: int, sign: Array) -> Array:
    xp = arrays.namespace(x)
    signs = xp.reshape(arrays.convert(sign, x), (-1,) + (1,) * (-axis - 1))
    return xp.where(signs < 0, -x, x)
