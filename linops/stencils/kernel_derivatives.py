"""Derivatives of JAX kernels that JAX cannot follow: from a second formulation, or by hand.

`differentiable(fast, native)` runs one kernel and differentiates another; `with_adjoint(forward,
adjoint)` takes a hand-written adjoint. Both are held to what they say before they are trusted
(`linops/stencils/agreement.py`). Linear operators need neither: their declared adjoint is the
derivative.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

from linops.stencils.agreement import check_adjoint, check_native

__all__ = ["differentiable", "with_adjoint"]


def differentiable(
    fast: Callable[..., Any],
    native: Callable[..., Any],
    *,
    example: tuple[Any, ...] | None = None,
    check: bool = True,
) -> Callable[..., Any]:
    """`fast`, with the derivatives of `native`: forward and reverse mode, of every order.

    Parameters
    ----------
    fast
        The kernel that runs, `fast(*arguments)`: a Pallas kernel, say.
    native
        The same function in plain JAX.
    example
        Arguments to check the pair on, at once. Without them it is checked at the first call that
        holds numbers rather than tracers, on smooth states beside its arguments.
    check
        Whether to check at all.

    Returns
    -------
    callable
        Called as both are. Integer and boolean arguments have no tangent (float0).

    Raises
    ------
    ValueError
        Where the two differ in value, shape or dtype, or where `native`'s tangent is not the
        derivative of `fast`: halving the step must quarter what the tangent leaves over.

    Notes
    -----
    The rule is `jvp(native)`; the primal part of every further derivative is `fast` again, so
    Hessians run the fast kernel too. The object is made once: make it where the kernel is defined,
    not in each call.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from linops.stencils import differentiable
    >>> square = differentiable(lambda u: u * u, lambda u: u**2, example=(jnp.arange(3.0),))
    >>> print(jax.grad(lambda u: square(u).sum())(jnp.arange(3.0)))
    [0. 2. 4.]
    """
    import jax

    checked = _Once(check, lambda arguments: check_native(fast, native, arguments))

    @jax.custom_jvp  # type: ignore[untyped-decorator]
    def kernel(*arguments: Any) -> Any:
        return fast(*arguments)

    @kernel.defjvp  # type: ignore[untyped-decorator]
    def tangent(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        # The primal enters the wrapped function again: else second derivatives meet the bare one.
        return kernel(*primals), jax.jvp(native, primals, tangents)[1]

    @functools.wraps(fast)
    def called(*arguments: Any) -> Any:
        traced = _check_leaves(fast, arguments)
        if checked.due:
            checked.run(arguments)
        return kernel(*arguments) if traced else fast(*arguments)

    if example is not None:
        checked.run(example)
    return called


def with_adjoint(
    forward: Callable[..., Any],
    adjoint: Callable[..., Any],
    *,
    example: tuple[Any, ...] | None = None,
    check: bool = True,
) -> Callable[..., Any]:
    """`forward`, with a hand-written adjoint of its derivative.

    Parameters
    ----------
    forward
        `forward(state, *parameters)`; state and parameters are arrays or pytrees of them.
    adjoint
        `adjoint(state, *parameters, cotangent)`: the cotangent of the state, and one for each
        parameter, as a tuple as long as the arguments of `forward`. None (for a whole parameter or
        a leaf of one) says that no cotangent is declared. Entries of integers and booleans are
        ignored. Without parameters the state's cotangent alone will do.
    example, check
        As in `differentiable`: the adjoint is held against differences of `forward`.

    Returns
    -------
    callable
        Called as `forward` is; reverse mode only.

    Raises
    ------
    TypeError
        In forward mode (`jvp`, `jacfwd`, and Hessians through it: use `differentiable`); where an
        argument without a declared cotangent is differentiated, unless it was passed through
        `jax.lax.stop_gradient`; where a differentiated value is closed over instead of passed as
        an argument; where an argument holds something else than arrays and numbers.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from linops.stencils import with_adjoint
    >>> scaled = with_adjoint(
    ...     lambda u, a: a * u, lambda u, a, g: (a * g, (g * u).sum()),
    ...     example=(jnp.arange(3.0), 2.0),
    ... )
    >>> print(jax.grad(lambda a: scaled(jnp.arange(3.0), a).sum())(2.0))
    3.0
    """
    checked = _Once(check, lambda arguments: check_adjoint(forward, adjoint, arguments))
    kernel = _reverse_only(forward, adjoint)

    @functools.wraps(forward)
    def called(*arguments: Any) -> Any:
        traced = _check_leaves(forward, arguments)
        if any(True for function in (forward, adjoint) for _ in _closed_over(function)):
            return _with_closure_as_arguments(forward, adjoint, arguments)
        if checked.due:
            checked.run(arguments)
        return kernel(*arguments) if traced else forward(*arguments)

    if example is not None:
        checked.run(example)
    return called


class _Once:
    """A check that runs at the first call with numbers."""

    def __init__(self, due: bool, check: Callable[[tuple[Any, ...]], None]) -> None:
        self.due, self._check = due, check

    def run(self, arguments: tuple[Any, ...]) -> None:
        import jax

        if not self.due or any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(arguments)):
            return
        with jax.ensure_compile_time_eval():  # numbers stay numbers inside somebody's trace
            self._check(arguments)
        self.due = False


def _check_leaves(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bool:
    """Raise where an argument holds no arrays; whether it holds tracers."""
    import jax

    traced = False
    for leaf in jax.tree.leaves(arguments):
        traced |= isinstance(leaf, jax.core.Tracer)
        if not (hasattr(leaf, "dtype") or isinstance(leaf, (bool, int, float, complex))):
            where = next(
                jax.tree_util.keystr(path)
                for path, found in jax.tree_util.tree_leaves_with_path(arguments)
                if found is leaf
            )
            raise TypeError(
                f"{_name(function)}: argument {where} is a {type(leaf).__name__}; arguments hold "
                "arrays and numbers, bind anything else beforehand with functools.partial"
            )
    return traced


def _reverse_only(
    forward: Callable[..., Any], adjoint: Callable[..., Any], closed_over: int = 0
) -> Callable[..., Any]:
    """The `custom_vjp` of a pair; the last `closed_over` arguments have no declared cotangent."""
    import jax

    @jax.custom_vjp  # type: ignore[untyped-decorator]
    def kernel(*arguments: Any) -> Any:
        return forward(*arguments)

    def run(*arguments: Any) -> Any:
        # With symbolic zeros JAX says which leaves are differentiated.
        values = jax.tree.map(lambda x: x.value, arguments, is_leaf=_is_primal)
        perturbed = jax.tree.map(lambda x: bool(x.perturbed), arguments, is_leaf=_is_primal)
        return forward(*values), (values, _StaticValue(perturbed))

    def pull_back(saved: Any, cotangent: Any) -> tuple[Any, ...]:
        values, perturbed = saved
        if any(jax.tree.leaves(perturbed.tree[len(values) - closed_over :])) and closed_over:
            raise TypeError(
                f"{_name(forward)} closes over a value that is differentiated, for which its "
                "adjoint has no cotangent; pass it as an argument and return its cotangent, or "
                "close over jax.lax.stop_gradient of it"
            )
        cotangent = jax.tree.map(
            lambda c: jax.numpy.zeros(c.aval.shape, c.aval.dtype) if _is_zero(c) else c,
            cotangent,
            is_leaf=_is_zero,
        )
        declared = len(values) - closed_over
        found = adjoint(*values[:declared], cotangent, *values[declared:])
        if declared == 1 and not (
            isinstance(found, tuple) and len(found) == 1 and not isinstance(values[0], tuple)
        ):
            found = (found,)
        if not isinstance(found, (tuple, list)) or len(found) != declared:
            raise TypeError(
                f"the adjoint of {_name(forward)} returned {_count(found)}; wanted a tuple with "
                f"the cotangents of its {declared} arguments, None where none is declared"
            )
        found = (*found, *(None,) * closed_over)
        return tuple(
            _complete(forward, i, value, given, wanted)
            for i, (value, given, wanted) in enumerate(
                zip(values, found, perturbed.tree, strict=True)
            )
        )

    kernel.defvjp(run, pull_back, symbolic_zeros=True)
    return kernel  # type: ignore[no-any-return]


def _complete(
    forward: Callable[..., Any], argument: int, value: Any, given: Any, perturbed: Any
) -> Any:
    """The cotangent of one argument: zeros where nothing is asked, an error where it is missing."""
    import jax
    import numpy as np

    leaves, tree = jax.tree.flatten(value)
    if given is None:
        cotangents = [None] * len(leaves)
    else:
        cotangents = jax.tree.leaves(given, is_leaf=lambda x: x is None)
        if len(cotangents) != len(leaves):
            raise TypeError(
                f"the adjoint of {_name(forward)} returned {len(cotangents)} cotangents for "
                f"argument {argument}, which has {len(leaves)} arrays"
            )
    complete = []
    for leaf, cotangent, wanted in zip(leaves, cotangents, jax.tree.leaves(perturbed), strict=True):
        kind = jax.dtypes.result_type(leaf)
        if not jax.numpy.issubdtype(kind, jax.numpy.inexact):
            complete.append(np.zeros(np.shape(leaf), jax.dtypes.float0))
        elif cotangent is None and wanted:
            raise TypeError(
                f"argument {argument} of {_name(forward)} is differentiated, and its adjoint "
                "declares no cotangent for it; return one, or pass jax.lax.stop_gradient of the "
                "argument"
            )
        elif cotangent is None:
            complete.append(jax.numpy.zeros(np.shape(leaf), kind))
        else:
            complete.append(jax.numpy.reshape(jax.numpy.asarray(cotangent, kind), np.shape(leaf)))
    return jax.tree.unflatten(tree, complete)


def _with_closure_as_arguments(
    forward: Callable[..., Any], adjoint: Callable[..., Any], arguments: tuple[Any, ...]
) -> Any:
    """The call where functions close over tracers: these become arguments without a cotangent."""
    import jax

    result, consts, run = _hoist(forward, arguments)
    _, adjoint_consts, pull_back = _hoist(adjoint, (*arguments, result))
    # What the adjoint closes over is a constant of the derivative.
    held = (*consts, *map(jax.lax.stop_gradient, adjoint_consts))

    @functools.wraps(forward)
    def forward_of_all(*values: Any) -> Any:
        own, closed = values[: len(arguments)], values[len(arguments) :]
        return run(closed[: len(consts)], own)

    def adjoint_of_all(*values: Any) -> Any:
        own, closed = values[: len(arguments) + 1], values[len(arguments) + 1 :]
        return pull_back(closed[len(consts) :], own)

    return _reverse_only(forward_of_all, adjoint_of_all, closed_over=len(held))(*arguments, *held)


def _hoist(
    function: Callable[..., Any], arguments: tuple[Any, ...]
) -> tuple[Any, tuple[Any, ...], Callable[[tuple[Any, ...], tuple[Any, ...]], Any]]:
    """The shapes of a function's result, what it closes over, and the function of both."""
    import jax

    flat, tree = jax.tree.flatten(arguments)
    traced, result = jax.make_jaxpr(
        lambda *leaves: function(*jax.tree.unflatten(tree, leaves)), return_shape=True
    )(*map(_shape, flat))
    structure = jax.tree.structure(result)

    def run(consts: tuple[Any, ...], values: tuple[Any, ...]) -> Any:
        leaves = jax.core.eval_jaxpr(traced.jaxpr, consts, *jax.tree.leaves(values))
        return jax.tree.unflatten(structure, leaves)

    return result, tuple(traced.consts), run


def _shape(x: Any) -> Any:
    import jax

    return x if isinstance(x, jax.ShapeDtypeStruct) else jax.typeof(x)


def _closed_over(function: Any, depth: int = 4) -> Iterator[Any]:
    """Tracers in the closure of a function, and of functions that it closes over."""
    import jax

    if isinstance(function, functools.partial):
        values = [function.func, *function.args, *function.keywords.values()]
    elif isinstance(function, types.MethodType):
        values = [function.__func__]
    else:
        function = getattr(function, "__wrapped__", function)
        values = []
        for cell in getattr(function, "__closure__", None) or ():
            try:
                values.append(cell.cell_contents)
            except ValueError:  # a cell that was never filled
                continue
    for value in values:
        if callable(value) and depth:
            yield from _closed_over(value, depth - 1)
        else:
            yield from (x for x in jax.tree.leaves(value) if isinstance(x, jax.core.Tracer))


class _StaticValue:
    """A value that is part of the structure of a pytree."""

    def __init__(self, tree: Any) -> None:
        self.tree = tree
        _register_static()


@functools.cache
def _register_static() -> None:
    import jax

    jax.tree_util.register_pytree_node(
        _StaticValue,
        lambda static: ((), _Hashable(static.tree)),
        lambda held, _: _StaticValue(held.tree),
    )


class _Hashable:
    def __init__(self, tree: Any) -> None:
        import jax

        self.tree = tree
        leaves, structure = jax.tree.flatten(tree)
        self._key = (tuple(leaves), structure)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Hashable) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _is_primal(x: Any) -> bool:
    return type(x).__name__ == "CustomVJPPrimal"


def _is_zero(x: Any) -> bool:
    return type(x).__name__ == "SymbolicZero"


def _count(found: Any) -> str:
    return f"{len(found)} entries" if isinstance(found, (tuple, list)) else type(found).__name__


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", function))
