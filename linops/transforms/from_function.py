"""Operators from one function: adjoint and derivative are derived by JAX or torch.

A linear function is transposed by `jax.linear_transpose` (or `torch.func.vjp`), from shapes alone;
a nonlinear one is linearised at a point. Arrays of other namespaces are converted at the edge.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from linops import arrays
from linops.arguments import checked
from linops.errors import DTypeError, ShapeError
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.precision import Precision
from linops.rule import Rule
from linops.space import Space
from linops.transforms.closures import fill_closure, find_closed_over

__all__ = ["DerivedJacobian", "DerivedLinear", "DerivedMap", "from_function", "linearize"]

_PROBED = 1 << 22


@checked
def from_function(
    apply: Callable[[Any], Any],
    *,
    domain: Space,
    codomain: Space | None = None,
    linear: bool = True,
    namespace: str | None = None,
    rule: str | Rule | None = None,
    precision: str | Precision | None = None,
    name: str | None = None,
    tags: Iterable[str] = (),
    blockwise: bool = False,
) -> Operator:
    """An operator from the function that applies it; what else it needs is derived.

    Parameters
    ----------
    apply
        From an array of the domain's shape to one of the codomain's, written in JAX or torch.
    domain, codomain
        The codomain is read from the function where it is not given.
    linear
        Whether a `LinearOperator` is made, its adjoint derived, or a nonlinear `Operator` with a
        derived Jacobian.
    namespace
        `"jax"` or `"torch"`: what `apply` is written in. By default JAX where it is installed.
    rule, precision, name, tags
        As for `LinearOperator`.
    blockwise
        Whether `apply` serves any extent of the rule's aligned axes, as for `from_functions`:
        blocks call it on their own planes and the halo beside them, not on the whole array.

    Raises
    ------
    ValueError
        Where a function that should be linear is not, by one Gaussian probe of `f(0) = 0`,
        additivity and homogeneity (left out above 4 million entries, and where it closes over
        traced values), or cannot be transposed;
        the message gives the reason.
    """
    engine = _engine(namespace)
    for space in (domain, codomain):
        if space is not None and not isinstance(space, Space):
            raise ShapeError(f"from_function maps between plain spaces, got {space}")
    target = engine.codomain(apply, domain)
    if codomain is None:
        codomain = target
    elif (codomain.shape, codomain.dtype) != (target.shape, target.dtype):
        error = DTypeError if codomain.is_complex != target.is_complex else ShapeError
        raise error(
            f"the function gives {target.shape} {target.dtype} for the domain {domain}, the "
            f"codomain is {codomain}"
        )
    label = name or str(getattr(apply, "__name__", "function"))
    if not linear:
        return DerivedMap(apply, engine, domain, codomain, rule, precision, label, blockwise)
    operator = DerivedLinear(
        apply, engine, domain, codomain, rule, precision, label, tags, blockwise
    )
    if domain.size <= _PROBED and not operator._closed:
        _probe(operator)
    else:
        operator._transposed()
    return operator


def linearize(
    apply: Callable[[Any], Any], x: Any
) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """The derivative at `x`, an array of JAX or torch, and its adjoint; both take such arrays."""
    return _engine("jax" if arrays.is_jax(x) else "torch").linearize(apply, x)


class _Derived(Operator):
    """What a function and its library make, linear or not."""

    apply: Callable[[Any], Any]
    _engine: _Engine
    _blockwise: bool
    _closed: tuple[Any, ...]
    # Traced values that the function closes over, as arrays of the operator.

    def _hold(self, apply: Callable[[Any], Any], engine: _Engine, blockwise: bool) -> None:
        self.apply = apply
        self._engine = engine
        self._blockwise = blockwise
        self._closed = find_closed_over(apply)

    @property
    def _filled(self) -> Callable[[Any], Any]:
        """The function, with this operator's own arrays in the place of traced values."""
        return fill_closure(self.apply, iter(self._closed)) if self._closed else self.apply

    def _apply(self, x: Any) -> Any:
        return self._engine.run(self._filled, x)

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> Operator | None:
        from linops.algebra.blockwise import block_of_any_extent

        if not self._blockwise:
            return None
        return block_of_any_extent(self, self._between, axis, start, stop, padded)

    @abstractmethod
    def _between(self, domain: Any, codomain: Any) -> Operator:
        """The same function between other spaces."""


class DerivedLinear(_Derived, LinearOperator):
    """A linear function with the adjoint that its library derives."""

    def __init__(
        self,
        apply: Callable[[Any], Any],
        engine: _Engine,
        domain: Space,
        codomain: Space,
        rule: str | Rule | None,
        precision: str | Precision | None,
        name: str,
        tags: Iterable[str],
        blockwise: bool = False,
    ) -> None:
        super().__init__(domain, codomain, rule, precision=precision, name=name, tags=tags)
        self._hold(apply, engine, blockwise)

    def _between(self, domain: Any, codomain: Any) -> Operator:
        facts = self.rule, self._precision, self.name, self._declared_tags, True
        return DerivedLinear(self._filled, self._engine, domain, codomain, *facts)

    def _apply_adjoint(self, y: Any) -> Any:
        return self._engine.run(self._transposed(), y)

    def _transposed(self) -> Callable[[Any], Any]:
        assert isinstance(self.domain, Space) and isinstance(self.codomain, Space)
        return self._engine.transpose(self._filled, self.domain, self.codomain)


class DerivedMap(_Derived):
    """A function with the Jacobian that its library derives."""

    def __init__(
        self,
        apply: Callable[[Any], Any],
        engine: _Engine,
        domain: Space,
        codomain: Space,
        rule: str | Rule | None,
        precision: str | Precision | None,
        name: str,
        blockwise: bool = False,
    ) -> None:
        super().__init__(domain, codomain, rule, precision=precision, name=name)
        self._hold(apply, engine, blockwise)

    def _between(self, domain: Any, codomain: Any) -> Operator:
        facts = self.rule, self._precision, self.name, True
        return DerivedMap(self._filled, self._engine, domain, codomain, *facts)

    def _jacobian(self, x: Any) -> LinearOperator:
        if arrays.is_traced(x) or self._closed:
            return TracedJacobian(self._filled, self._engine, x, self)
        push, pull = self._engine.linearize(self.apply, x)
        return DerivedJacobian(push, pull, self._engine, self)


class DerivedJacobian(LinearOperator):
    """The derivative of a `DerivedMap` at one point; the function itself ran once."""

    def __init__(
        self, push: Callable[[Any], Any], pull: Callable[[Any], Any], engine: _Engine, of: Operator
    ) -> None:
        super().__init__(of.domain, of.codomain, of.rule, name=f"jacobian of {of.name}")
        self._push, self._pull = push, pull
        self._engine = engine

    def _apply(self, x: Any) -> Any:
        return self._engine.run(self._push, x)

    def _apply_adjoint(self, y: Any) -> Any:
        return self._engine.run(self._pull, y)


class TracedJacobian(LinearOperator):
    """The same at a point that JAX traces: the point is an array of the operator, and the function
    runs again in each application, which a compiler joins."""

    def __init__(
        self, apply: Callable[[Any], Any], engine: _Engine, point: Any, of: Operator
    ) -> None:
        super().__init__(of.domain, of.codomain, of.rule, name=f"jacobian of {of.name}")
        self.apply = apply
        self._engine = engine
        self.point = point
        self._closed = find_closed_over(apply)

    def _at_point(self) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
        function = fill_closure(self.apply, iter(self._closed)) if self._closed else self.apply
        return self._engine.linearize(function, self.point)

    def _apply(self, x: Any) -> Any:
        return self._engine.run(self._at_point()[0], x)

    def _apply_adjoint(self, y: Any) -> Any:
        return self._engine.run(self._at_point()[1], y)


class _Engine:
    """What a library derives; one instance a library, so operators pickle by its name."""

    def __init__(self, library: str) -> None:
        self.library = library

    def __reduce__(self) -> Any:
        return _engine, (self.library,)

    def run(self, function: Callable[[Any], Any], x: Any) -> Any:
        """`function` on `x` as an array of this library, the result in the namespace of x."""
        own = arrays.is_jax(x) if self.library == "jax" else arrays.is_torch(x)
        if own:
            return function(x)
        y = function(arrays.convert(x, self._like()))
        return y if arrays.is_traced(y) else arrays.convert(y, x)

    def codomain(self, apply: Callable[[Any], Any], domain: Space) -> Space:
        """The space of the results; nothing is allocated."""
        try:
            if self.library == "jax":
                found = importlib.import_module("jax").eval_shape(apply, self._struct(domain))
            else:
                torch = importlib.import_module("torch")
                found = apply(
                    torch.empty(
                        domain.shape, dtype=getattr(torch, domain.dtype.name), device="meta"
                    )
                )
            return Space(tuple(found.shape), arrays.dtype_of(found))
        except (TypeError, ValueError, AttributeError, RuntimeError, NotImplementedError) as error:
            raise ValueError(
                f"{_name(apply)} does not take an array of {domain} as {self.library} calls it: "
                f"{_first_line(error)}; write it in {self.library}, or name the other library by "
                "namespace="
            ) from error

    def transpose(
        self, apply: Callable[[Any], Any], domain: Space, codomain: Space
    ) -> Callable[[Any], Any]:
        """The adjoint function."""
        if self.library == "torch":
            return functools.partial(_torch_pull, apply, domain)
        jax = importlib.import_module("jax")
        try:
            transposed = jax.linear_transpose(apply, self._struct(domain))
            jax.eval_shape(transposed, self._struct(codomain))
        except Exception as error:  # JAX ends in bare assertions, too
            raise ValueError(
                f"JAX cannot transpose {_name(apply)}: {_first_line(error)}; it is not linear, or "
                "uses a step without transpose (while_loop, abs, a host callback): give the "
                "adjoint with from_functions, or ask for a nonlinear operator with linear=False"
            ) from error
        return lambda y: transposed(y.conj())[0].conj()

    def linearize(
        self, apply: Callable[[Any], Any], x: Any
    ) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
        """The derivative at x and its adjoint."""
        x = arrays.convert(x, self._like()) if not arrays.is_traced(x) else x
        if self.library == "torch":
            func = importlib.import_module("torch.func")
            push = functools.partial(_torch_push, apply, x)
            return push, lambda dy: func.vjp(apply, x)[1](dy)[0]
        jax = importlib.import_module("jax")
        _, push = jax.linearize(apply, x)
        struct = jax.ShapeDtypeStruct(x.shape, x.dtype)
        transposed = jax.linear_transpose(push, struct)
        return push, lambda dy: transposed(dy.conj())[0].conj()

    def _like(self) -> Any:
        if self.library == "jax":
            return importlib.import_module("jax.numpy").zeros(())
        return importlib.import_module("torch").zeros(())

    def _struct(self, space: Space) -> Any:
        jax = importlib.import_module("jax")
        arrays.zeros((0,), space.dtype, self._like())  # refuses 64 bits without x64
        return jax.ShapeDtypeStruct(space.shape, space.dtype)


@functools.cache
def _engine(namespace: str | None) -> _Engine:
    if namespace is None:
        namespace = "jax" if importlib.util.find_spec("jax") is not None else "torch"
    if namespace not in ("jax", "torch"):
        raise ValueError(f"namespace is {namespace!r}; it is 'jax' or 'torch'")
    if importlib.util.find_spec(namespace) is None:
        raise DTypeError(
            f"from_function derives by {namespace}, which is not installed: "
            f"pip install 'linops[{namespace}]', or give the adjoint with from_functions"
        )
    return _Engine(namespace)


def _torch_pull(apply: Callable[[Any], Any], domain: Space, y: Any) -> Any:
    func = importlib.import_module("torch.func")
    return func.vjp(apply, domain.zeros(y))[1](y)[0]


def _torch_push(apply: Callable[[Any], Any], x: Any, dx: Any) -> Any:
    func = importlib.import_module("torch.func")
    return func.jvp(apply, (x,), (dx,))[1]


def _probe(operator: DerivedLinear) -> None:
    domain, norm = operator.domain, operator.codomain.norm
    x: Any = domain.random(0)
    y: Any = domain.random(1)
    fx, fy = operator(x), operator(y)
    eps = float(np.finfo(domain.dtype).eps) * 64
    scale = norm(fx) + norm(fy)
    faults = (
        ("f(0) is not 0: the map is affine", norm(operator(domain.zeros())), 0.0),
        ("f(x + y) is not f(x) + f(y)", norm(operator(x + y) - fx - fy), eps * scale),
        ("f(2.5 x) is not 2.5 f(x)", norm(operator(x * 2.5) - fx * 2.5), eps * 2.5 * scale),
    )
    for fault, size, limit in faults:
        if not size <= limit:
            raise ValueError(
                f"{operator.name} is not linear: {fault} (off by {size:.2e}); pass linear=False "
                "for a nonlinear operator"
            )
    operator._transposed()


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:160]}" if text else type(error).__name__
