"""Movements of a rank's tensor from one state to another, by exchanges of `sharding/ranks.py`.

Seen from all ranks together a movement is linear; its adjoint is the movement between the dual
states.
"""

from __future__ import annotations

import functools

from linops.arrays import Array
from linops.transforms.torch_function import apply_pair, recording
from sharding.ranks import RankLine
from sharding.states import Partial, Replicated, Sharded, State, Windowed, dual, real_range

__all__ = ["move", "recorded_move"]


def recorded_move(
    line: RankLine, shape: tuple[int, ...], ndim: int, source: State, target: State, x: Array
) -> Array:
    """`move` in the graph that torch records."""
    there = functools.partial(move, line, shape, ndim, source, target)
    if not recording(x):
        return there(x)
    back = functools.partial(move, line, shape, ndim, dual(target), dual(source))
    moved: Array = apply_pair(x, there, back)
    return moved


def move(
    line: RankLine, shape: tuple[int, ...], ndim: int, source: State, target: State, x: Array
) -> Array:
    """One movement of a rank's tensor along a line of the mesh.

    The movement between the dual states is its adjoint, as a map of all ranks' tensors together.
    """
    if isinstance(source, Replicated):
        if isinstance(target, Partial):
            return x if line.i == 0 else x.new_zeros(x.shape)
        return _take(line, shape, ndim, target, x)
    if isinstance(target, Partial):
        return _spread(line, shape, ndim, source, x)
    if isinstance(source, Partial):
        if isinstance(target, Replicated):
            return line.all_reduce(x)
        assert isinstance(target, Sharded)
        return line.reduce_scatter(x, target.axis - ndim, shape[target.axis])
    axis = source.axis - ndim
    size = shape[source.axis]
    if isinstance(target, Replicated):
        return line.all_gather(x, axis, size)
    if isinstance(target, Windowed):
        return line.halo(x, axis, size, target)
    if isinstance(source, Windowed):
        return line.halo_add(x, axis, size, source)
    return line.all_to_all(x, (axis, size), (target.axis - ndim, shape[target.axis]))


def _take(line: RankLine, shape: tuple[int, ...], ndim: int, state: State, x: Array) -> Array:
    """A rank's range of what it holds whole."""
    return line.taken(x, *_range(line, shape, ndim, state))


def _spread(line: RankLine, shape: tuple[int, ...], ndim: int, state: State, x: Array) -> Array:
    """A rank's range among zeros."""
    return line.spread(x, *_range(line, shape, ndim, state))


def _range(
    line: RankLine, shape: tuple[int, ...], ndim: int, state: State
) -> tuple[int, int, tuple[int, int]]:
    assert isinstance(state, (Sharded, Windowed))
    size = shape[state.axis]
    planes = (
        state.planes(line.i, size)
        if isinstance(state, Windowed)
        else real_range(size, line.n, line.i)
    )
    return state.axis - ndim, size, planes
