"""How array code is called: as it is, or in JAX as one compiled program for each structure."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Hashable
from typing import Any

from linops import arrays
from linops.arrays import Array

__all__ = ["run"]


def run(function: Callable[..., Any], setup: Any, like: Array, *operands: Any) -> Any:
    """`function(setup, *operands)`; in JAX compiled, once for each setup and shape."""
    if arrays.is_jax(like):
        return _jit(function, setup)(*operands)
    return function(setup, *operands)


@functools.lru_cache(maxsize=256)
def _jit(function: Callable[..., Any], setup: Hashable) -> Callable[..., Any]:
    compiled: Callable[..., Any] = sys.modules["jax"].jit(functools.partial(function, setup))
    return compiled
