"""`Choice`: several objects of equal structure, of which a compiled loop takes one by its number.

Objects are operators, or tuples of them. JAX sees those of their arrays that differ along a leading
axis, the others once; so a loop over the objects is one program, and others of the same structure
run it too.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from linops import arrays
from linops.errors import ShapeError

__all__ = ["Choice"]


class Choice:
    """Objects of equal structure as a JAX pytree; `choice[k]` is one of them, k may be traced.

    Parameters
    ----------
    objects
        One or more.

    Raises
    ------
    ShapeError
        Where two of them differ in more than the values of arrays.
    """

    def __init__(self, objects: Sequence[Any]) -> None:
        import jax

        _register()
        rows, structures = zip(*map(jax.tree_util.tree_flatten, objects), strict=True)
        if any(structure != structures[0] for structure in structures):
            raise ShapeError("a choice is between operators of one structure; these differ")
        self._structure = structures[0]
        columns = [_together(parts) for parts in zip(*rows, strict=True)]
        self._several = tuple(several for several, _ in columns)
        self._leaves = tuple(leaf for _, leaf in columns)

    def __getitem__(self, k: Any) -> Any:
        import jax

        taken = [
            jax.lax.dynamic_index_in_dim(leaf, k, 0, keepdims=False) if several else leaf
            for several, leaf in zip(self._several, self._leaves, strict=True)
        ]
        return jax.tree_util.tree_unflatten(self._structure, taken)


def _together(parts: Sequence[Any]) -> tuple[bool, Any]:
    """Whether arrays differ, and then all of them along a new first axis."""
    first = parts[0]
    if all(part is first for part in parts):
        return False, first
    if arrays.is_array(first) and all(map(arrays.is_readable, parts)):
        host = [arrays.to_numpy(part) for part in parts]
        if all(np.array_equal(part, host[0], equal_nan=part.dtype.kind == "f") for part in host):
            return False, first
        return True, arrays.stacked(host, first)
    if not arrays.is_array(first) and all(part == first for part in parts):
        return False, first
    return True, arrays.namespace(*parts).stack(parts)


@functools.cache
def _register() -> None:
    import jax

    def taken_apart(choice: Choice) -> tuple[tuple[Any, ...], Any]:
        return choice._leaves, (choice._structure, choice._several)

    def put_together(static: Any, leaves: tuple[Any, ...]) -> Choice:
        choice = object.__new__(Choice)
        choice._structure, choice._several = static
        choice._leaves = tuple(leaves)
        return choice

    jax.tree_util.register_pytree_node(Choice, taken_apart, put_together)
