"""Whether torch's compiler reads this code, and how to stay out of its graph.

`torch.compile` follows Python into the library. What it cannot follow (operators that are built,
`A @ B`, `A @ x`) goes `outside`: the graph breaks, and it runs as in eager mode. What can be a node
of the graph is in `linops/transforms/torch_compile.py`. Nothing here imports torch.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar, cast

__all__ = ["as_constant", "compiling", "outside", "run_outside", "untraced"]

_F = TypeVar("_F", bound=Callable[..., Any])


def compiling() -> bool:
    """Whether torch's compiler traces this call."""
    return "torch" in sys.modules and sys.modules["torch"].compiler.is_dynamo_compiling()


def untraced(function: _F) -> _F:
    """Mark a function that goes `outside`: what it calls is not traced either."""
    _codes.add(function.__code__)
    return function


def outside(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """`function` as in eager mode, the graph broken before and after it."""
    _prepare()
    return _eagerly(function, *arguments, **options)


def run_outside(function: _F) -> _F:
    """A function, or a constructor, that the compiler runs as in eager mode."""

    @untraced
    @functools.wraps(function)
    def wrapped(*arguments: Any, **options: Any) -> Any:
        if compiling():
            return outside(wrapped, *arguments, **options)
        return function(*arguments, **options)

    return cast(_F, wrapped)


def as_constant(function: _F) -> _F:
    """Mark a function of an operator that gives the same plain value at each call: it runs while
    the graph is made, is not traced, and the operator's identity is guarded."""
    # What torch.compiler.assume_constant_result does, without an import of torch.
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


_codes: set[CodeType] = set()
_eagerly: Any = None


@as_constant
def _prepare() -> bool:
    """Define what torch has to be imported for."""
    global _eagerly
    if _eagerly is None:

        def eagerly(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
            return function(*arguments, **options)

        reason = "operators are built, and some are applied, outside of the graph"
        _eagerly = sys.modules["torch"].compiler.disable(eagerly, reason=reason)
        # A function that breaks the graph at once is left to Python, and those that it calls would
        # be traced in its place.
        frames = importlib.import_module("torch._dynamo.eval_frame")
        skip = frames.FrameAction.SKIP
        for code in _codes:
            frames.set_code_exec_strategy(code, frames.FrameExecStrategy(skip, skip))
    return True
