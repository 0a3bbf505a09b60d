"""The Pallas engine: sums of shifted views, one overlapping window a block.

Inputs are frames, with what stands beyond the ends already in them (`linops/stencils/slices.py`
fills and folds them for every engine). A kernel sees one block of the outputs and the windows that
it needs, never a whole array. Extents need not be whole blocks.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from linops import arrays
from linops.arrays import Array
from linops.compiled.pallas import PallasOptions, find_pallas
from linops.stencils import slices
from linops.stencils.line import Line
from linops.stencils.slices import Tap

__all__ = ["Term", "adjoint", "forward", "sum_views", "unsupported"]


class Term(NamedTuple):
    """`weight * field * frame[begin : begin + shape]`."""

    frame: int
    begin: tuple[int, ...]
    weight: float | complex
    field: int
    """Number of the coefficient field; -1 for none."""


def unsupported(ndim: int, options: PallasOptions) -> str | None:
    """Why no kernel of Pallas can serve a stencil on so many axes; None where one can."""
    if find_pallas() is None:
        return "jax.experimental.pallas cannot be imported"
    try:
        options.blocks(ndim)
        options.arguments()
    except ValueError as error:
        return str(error)
    return None


def forward(
    inputs: Sequence[Array],
    lines: Sequence[tuple[Line, ...]],
    taps: Sequence[Tap],
    fields: Sequence[Array],
    outputs: int,
    starts: Array,
    options: PallasOptions,
) -> list[Array]:
    """As `slices.forward`, by kernels of Pallas."""
    frames = [slices.framed_input(x, row, starts) for x, row in zip(inputs, lines, strict=True)]
    terms: list[list[Term]] = [[] for _ in range(outputs)]
    for tap in taps:
        row = lines[tap.input]
        begin = tuple(line.before + line.lead + o for line, o in zip(row, tap.offset, strict=True))
        terms[tap.output].append(Term(tap.input, begin, tap.weight, tap.coefficient))
    shape = tuple(line.count for line in lines[0])
    found = sum_views(frames, terms, fields, shape, options)
    for axis, line in enumerate(lines[0]):
        found = [slices.blanked(part, axis - len(shape), line, starts[axis]) for part in found]
    return found


def adjoint(
    outputs: Sequence[Array],
    lines: Sequence[tuple[Line, ...]],
    taps: Sequence[Tap],
    fields: Sequence[Array],
    starts: Array,
    options: PallasOptions,
) -> list[Array]:
    """As `slices.adjoint`: flipped taps on to frames, then what is beyond the ends folded back."""
    first = lines[0]
    n = len(first)
    before = [line.before + line.lead + line.high for line in first]
    sizes = tuple(line.before + line.extent + line.after for line in first)
    after = [
        max(size - line.before - line.lead + line.low - line.count, 0)
        for size, line in zip(sizes, first, strict=True)
    ]
    masked = list(outputs)
    for axis, line in enumerate(first):
        masked = [slices.blanked(part, axis - n, line, starts[axis]) for part in masked]
    places: dict[tuple[int, int], int] = {}
    frames: list[Array] = []
    terms: list[list[Term]] = [[] for _ in lines]
    for tap in taps:
        key = tap.output, tap.coefficient
        if key not in places:
            part = masked[tap.output]
            if tap.coefficient >= 0:
                part = part * slices.conjugate(fields[tap.coefficient])
            places[key] = len(frames)
            frames.append(arrays.framed(part, before, after))
        begin = tuple(line.high - o for line, o in zip(lines[tap.input], tap.offset, strict=True))
        terms[tap.input].append(Term(places[key], begin, slices.conjugated(tap.weight), -1))
    if not frames:
        return slices.adjoint(outputs, lines, taps, fields, starts)
    totals = sum_views(frames, terms, (), sizes, options)
    return [slices.folded(total, row, starts) for total, row in zip(totals, lines, strict=True)]


def sum_views(
    frames: Sequence[Array],
    terms: Sequence[Sequence[Term]],
    fields: Sequence[Array],
    shape: tuple[int, ...],
    options: PallasOptions,
    accumulators: Sequence[Array] = (),
    scale: Any = 1.0,
) -> list[Array]:
    """The sums of each list of terms: arrays of `shape`, behind the frames' batch axes.

    Parameters
    ----------
    frames
        Arrays of JAX whose last axes are those of the grid; one batch for all.
    terms
        One list an output.
    fields
        Of `shape`, without batch axes.
    shape
        The extents of the outputs, 1 to 3 axes.
    options
        Blocks and what the compiler is told.
    accumulators, scale
        One array an output: the result is `scale * accumulator + sum`, written where the
        accumulator was; the caller's arrays do not change. `scale` may be traced.
    """
    import jax
    import jax.numpy as jnp

    batch = tuple(frames[0].shape[: frames[0].ndim - len(shape)])
    run = functools.partial(_sum_blocks, tuple(map(tuple, terms)), shape, options)
    for _ in batch:
        axes = ([0] * len(frames), [None] * len(fields), [0] * len(accumulators), None)
        run = jax.vmap(run, in_axes=axes)
    found = run(
        list(frames), list(fields), list(accumulators), jnp.reshape(jnp.asarray(scale), (1,))
    )
    return list(found)


def _sum_blocks(
    terms: tuple[tuple[Term, ...], ...],
    shape: tuple[int, ...],
    options: PallasOptions,
    frames: list[Array],
    fields: list[Array],
    accumulators: list[Array],
    scale: Array,
) -> list[Array]:
    import jax
    import jax.numpy as jnp

    pl = find_pallas()
    blocks = tuple(
        min(b, max(n, 1)) for b, n in zip(options.blocks(len(shape)), shape, strict=True)
    )
    grid = tuple(-(-n // b) for n, b in zip(shape, blocks, strict=True))
    dtype = jnp.result_type(*frames, *fields)
    if 0 in shape:
        return [jnp.zeros(shape, dtype) for _ in terms]
    windows, specs, firsts = [], [], []
    for number, frame in enumerate(frames):
        begins = [term.begin for row in terms for term in row if term.frame == number]
        first = (
            tuple(min(places) for places in zip(*begins, strict=True))
            if begins
            else (0,) * len(shape)
        )
        reach = (
            tuple(
                max(places) - low
                for places, low in zip(zip(*begins, strict=True), first, strict=True)
            )
            if begins
            else (0,) * len(shape)
        )
        wanted = [g * b + r for g, b, r in zip(grid, blocks, reach, strict=True)]
        cut = frame[tuple(slice(f, f + w) for f, w in zip(first, wanted, strict=True))]
        windows.append(jnp.pad(cut, [(0, w - n) for w, n in zip(wanted, cut.shape, strict=True)]))
        sizes = tuple(pl.Element(b + r) for b, r in zip(blocks, reach, strict=True))
        specs.append(
            pl.BlockSpec(sizes, lambda *i: tuple(k * b for k, b in zip(i, blocks, strict=True)))
        )
        firsts.append(first)
    whole = pl.BlockSpec(blocks, lambda *i: i)
    held = [whole] * (len(fields) + len(accumulators))
    number_spec = pl.BlockSpec((1,), lambda *i: (0,))

    def kernel(*refs: Any) -> None:
        ins, outs = refs[: -len(terms)], refs[-len(terms) :]
        scaled = ins[-1][0]
        for k, (row, out) in enumerate(zip(terms, outs, strict=True)):
            total: Any = jnp.zeros(blocks, dtype)
            if accumulators:
                total = scaled.astype(dtype) * ins[len(windows) + len(fields) + k][...]
            for field in sorted({term.field for term in row}):
                part: Any = None
                for term in row:
                    if term.field != field:
                        continue
                    low = [b - f for b, f in zip(term.begin, firsts[term.frame], strict=True)]
                    place = tuple(pl.ds(a, b) for a, b in zip(low, blocks, strict=True))
                    view = ins[term.frame][place] * jnp.asarray(term.weight, dtype)
                    part = view if part is None else part + view
                if field >= 0:
                    part = part * ins[len(windows) + field][...]
                total = total + part
            out[...] = total

    aliases = {len(windows) + len(fields) + k: k for k in range(len(accumulators))}
    return list(
        pl.pallas_call(
            kernel,
            out_shape=[jax.ShapeDtypeStruct(shape, dtype) for _ in terms],
            grid=grid,
            in_specs=[*specs, *held, number_spec],
            out_specs=[whole for _ in terms],
            input_output_aliases=aliases,
            **options.arguments(),
        )(*windows, *fields, *accumulators, scale)
    )
