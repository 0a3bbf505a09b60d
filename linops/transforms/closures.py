"""What functions close over: values that JAX traces become arguments.

An operator made of functions inside `jit` or `grad` may close over a traced scalar or field. A
program that is compiled for itself does not see the trace that such a value belongs to; so the
operator holds these values as arrays of its own, and runs its functions with others in their place.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from linops import arrays
from linops.arrays import Array

__all__ = ["fill_closure", "find_closed_over"]

Visit = Callable[[Array], Any]


def find_closed_over(function: Any) -> tuple[Array, ...]:
    """The traced values that a function reads from its closure, defaults or partial arguments, in
    a fixed order; in containers, other functions and operators too."""
    if "jax" not in sys.modules:
        return ()
    found: list[Array] = []

    def collect(value: Array) -> Array:
        found.append(value)
        return value

    _walk(function, collect, set())
    return tuple(found)


def fill_closure(function: Any, values: Iterator[Array]) -> Any:
    """The function with other values in the place of those of `find_closed_over`, in order."""
    return _walk(function, lambda _: next(values), set())


def _walk(value: Any, visit: Visit, path: set[int]) -> Any:
    """`value` with every traced array in it replaced; itself where there is none."""
    if arrays.is_array(value):
        return visit(value) if arrays.is_traced(value) else value
    if id(value) in path:  # a function that calls itself
        return value
    path = {*path, id(value)}
    if isinstance(value, types.FunctionType):
        return _of_function(value, visit, path)
    if isinstance(value, functools.partial):
        func, args, keywords = (
            _walk(part, visit, path) for part in (value.func, value.args, value.keywords)
        )
        same = func is value.func and args is value.args and keywords is value.keywords
        return value if same else functools.partial(func, *args, **keywords)
    wrapped = getattr(value, "__wrapped__", None)
    if callable(value) and wrapped is not None:  # jitted, for one
        inner = _walk(wrapped, visit, path)
        return value if inner is wrapped else inner
    tree_util = sys.modules["jax"].tree_util
    leaves, tree = tree_util.tree_flatten(value)
    if len(leaves) == 1 and leaves[0] is value:
        return value
    walked = [_walk(leaf, visit, path) for leaf in leaves]
    if all(new is old for new, old in zip(walked, leaves, strict=True)):
        return value
    return tree_util.tree_unflatten(tree, walked)


def _of_function(value: types.FunctionType, visit: Visit, path: set[int]) -> Any:
    cells, changed = [], False
    for cell in value.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:  # never filled
            cells.append(cell)
            continue
        inner = _walk(content, visit, path)
        changed |= inner is not content
        cells.append(cell if inner is content else types.CellType(inner))
    defaults = _walk(value.__defaults__, visit, path)
    keywords = _walk(value.__kwdefaults__, visit, path)
    changed |= defaults is not value.__defaults__ or keywords is not value.__kwdefaults__
    if not changed:
        return value
    made = types.FunctionType(
        value.__code__, value.__globals__, value.__name__, defaults, tuple(cells)
    )
    made.__kwdefaults__ = keywords
    return made
