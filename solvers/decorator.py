"""The controls that all solvers share: their names, defaults and documentation, written once."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, TypedDict, TypeVar, cast

from linops import arrays
from linops.arguments import checking
from linops.linear_operator import LinearOperator
from linops.space import AnySpace
from solvers.elements import admit, first, require_finite
from solvers.implicit import Derivative, solve_implicitly
from solvers.together import agree

__all__ = ["Controls", "no_graph", "ranks_meet", "solver"]

_F = TypeVar("_F", bound=Callable[..., Any])

_MET: contextvars.ContextVar[list[bool] | None] = contextvars.ContextVar("met", default=None)
"""Whether the ranks of the solve under way have met: empty before."""


class Controls(TypedDict, total=False):
    """The controls that every solver takes beside `iterations` and `x0`; `CONTROLS` describes
    them, `DEFAULTS` holds what they are where they are not given."""

    callback: Any
    progress: bool
    checkpoint_directory: Any
    resume: Any
    checkpoint_every: int
    keep: int | None
    rtol: float
    atol: float


DEFAULTS: Controls = {
    "callback": None,
    "progress": False,
    "checkpoint_directory": None,
    "resume": None,
    "checkpoint_every": 1,
    "keep": None,
    "rtol": 0.0,
    "atol": 0.0,
}

CONTROLS = """\
callback
        `callback(iteration, residual, solution)` after each iteration, counted from 1; `False`
        ends the solve.
    progress
        Whether to draw a bar (needs tqdm).
    checkpoint_directory, resume, checkpoint_every, keep
        Where to save steps; a directory, step or rank's folder to go on from; how often; how
        many to keep (None: all).
    rtol, atol
        The solve ends where the residual, as `residual_history` holds it, is at most
        `atol + rtol s`. With measurements y the scale s is `|y|`, the residual of x = 0; without
        (functionals alone) the first residual. Zeros, as by default, end no solve of data that
        are not fit exactly."""


DIFFERENTIABLE = """
    differentiable
        Whether JAX and torch differentiate the solution (reverse mode, outside of `jit`): in y,
        and in arrays of A that are traced or require a gradient, by the implicit function theorem
        with one more solve. The derivative is that of the exact minimiser, so iterations should
        reach it; x0 has none."""


def solver(*held: str, derivative: Derivative | None = None) -> Callable[[_F], _F]:
    """Make a function with `**controls: Unpack[Controls]` a solver.

    Its signature and its documentation show the controls by name, other keywords are refused, the
    arguments in `held` are held to their annotations (see `linops.arguments`), and no derivatives
    are recorded inside; with a `derivative`, it takes `differentiable=True`.
    """

    def decorate(function: _F) -> _F:
        signature = inspect.signature(function)
        *own, last = signature.parameters.values()
        annotations = Controls.__annotations__
        shared = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value,
                              annotation=getattr(annotations[name], "__forward_arg__", Any))
            for name, value in DEFAULTS.items()
        ]  # fmt: skip
        assert last.kind is last.VAR_KEYWORD, f"{function.__name__} takes no **controls"
        if derivative is not None:
            shared.append(_DIFFERENTIABLE)
        shown = signature.replace(parameters=[*own, *shared])
        known = frozenset(shown.parameters)
        checked = no_graph()(checking(*held)(function) if held else function)

        @functools.wraps(function)
        def solve(*args: Any, **options: Any) -> Any:
            for name in options:
                if name not in known:
                    raise TypeError(
                        f"{function.__name__}() got an unexpected keyword {name!r}; it takes "
                        f"{', '.join(shown.parameters)}"
                    )
            if derivative is not None and options.pop("differentiable", False):
                given = shown.bind(*args, **options).arguments
                A, y = given.pop("A"), given.pop("y")
                return solve_implicitly(solve, derivative, A, y, given)
            with _alike((*args, *options.values())):
                return checked(*args, **options)

        solve.__signature__ = shown  # type: ignore[attr-defined]
        if solve.__doc__ is not None:
            more = CONTROLS if derivative is None else CONTROLS + DIFFERENTIABLE
            solve.__doc__ = solve.__doc__.replace("**controls", more, 1)
        return cast(_F, solve)

    return decorate


_DIFFERENTIABLE = inspect.Parameter(
    "differentiable", inspect.Parameter.KEYWORD_ONLY, default=False, annotation="bool"
)


@contextlib.contextmanager
def _alike(given: tuple[Any, ...]) -> Any:
    """Tell the other ranks of a placed problem of an error that comes before they have met: they
    wait for this rank in their `Solve`."""
    cell = _MET.get()
    if cell is None or cell:  # a solver that calls another one shares its meeting
        cell = []
    token = _MET.set(cell)
    try:
        yield
    except Exception as error:
        if not cell and len(given) > 1 and isinstance(given[0], LinearOperator):
            space = given[0].codomain
            if space.home.placed:
                cell.append(True)
                _tell(given[1], space, error)
        raise
    finally:
        _MET.reset(token)


def _tell(y: Any, space: AnySpace, error: Exception) -> None:
    """Do what the others do in their `Solve` until they meet, and tell them there."""
    try:
        y = admit(y, space, "y")
        require_finite(y, "y")
    except Exception:
        return  # every rank refuses such measurements
    if arrays.is_distributed(first(y)):
        agree(first(y), {}, error)


def ranks_meet() -> None:
    """Say that the ranks of this solve have met: errors before it are told to all, see `solver`."""
    cell = _MET.get()
    if cell is not None:
        cell.append(True)


@contextlib.contextmanager
def no_graph() -> Any:
    """Record no derivatives inside; torch is not imported for it."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
    else:
        with torch.no_grad():
            yield
