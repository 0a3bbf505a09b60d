"""`Operator`: a map between spaces, linear or not; what every operator is and can do.

Immutability, rules, blocks, arithmetic and derivatives are declared here; what linearity adds is in
`linops/linear_operator.py`. How operators combine is in `linops/algebra/`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from linops import apply, arguments, arrays, guard, tracing
from linops.arrays import Array
from linops.autocast import own_precision
from linops.cost import Cost
from linops.errors import ShapeError
from linops.precision import Precision, complex_of, real_of
from linops.rule import Rule
from linops.space import AnySpace

if TYPE_CHECKING:
    from linops.linear_operator import LinearOperator

__all__ = ["Operator"]

_PUBLIC_ROOMS = ("linops.elementary.", "linops.functionals.", "linops.stencils.")
# Their constructors are called by users; nodes of the algebra are made by what has checked.


class Operator(ABC):
    """A map between spaces, linear or not.

    Parameters
    ----------
    domain, codomain
        What it maps from and to.
    rule
        The sharding rule, a line in the grammar of `linops.rule`; without one no axis splits.
    precision
        `"fast"`, `"float32"` or `"float64"`; by default that of the coarser space.
    name
        For messages and `describe()`; the class name by default.
    tags
        Known properties, such as `"self_adjoint"`, `"psd"`, `"nonnegative"`.

    Notes
    -----
    Attributes may be set in `__init__`; afterwards the operator is immutable. It hashes by
    identity and pickles.
    """

    domain: AnySpace
    codomain: AnySpace
    name: str
    _precision: Precision | None
    _declared_tags: frozenset[str]
    _declared_rule: Rule | None

    linear: ClassVar[bool] = False
    _kind: ClassVar[str] = "map"
    # Which class of a family of nodes it makes with others of its kind, and
    _node: ClassVar[Any] = None
    # of which family it is a node itself (`linops.algebra.node`).
    __array_ufunc__ = None
    __array_priority__ = 1e6
    batched: bool = False
    """Whether `_apply` takes leading batch axes itself; else it sees one element at a time."""

    blockwise: bool = False
    """Whether its functions serve any extent of the axes that its rule splits, its arrays cut along
    the axes that the rule gives them: blocks then follow from rule and fields. Along an axis with a
    halo the functions see their own planes and the halo beside them, cut off where the array ends.
    """

    _exact: ClassVar[bool] = False
    # Of library leaves: the hooks return the declared shape and dtype, batches included.
    _binds_itself: bool = False
    _lowered: ClassVar[bool] = False
    # Under a trace of JAX the hooks bind a primitive for themselves (programs on many devices).
    _aliases: bool = False
    # The result may share memory with the input; `apply` copies it where it leaves.
    _accumulated: ClassVar[bool] = False
    # What a call gives is wider than the codomain says: a float64, whatever the dtype.
    _host_arrays: ClassVar[Mapping[str, str]] = {}
    # 64-bit tables, with their dtype, that compiled code reads: JAX carries their bits.
    _alike: ClassVar[Mapping[str, str]] = {}
    # Static attributes of which the hooks read no more than another attribute says, by its name.
    _host_orders: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    # Axes of domain and codomain, outermost first, as compiled code has them in memory.
    _host_out: ClassVar[bool] = False
    # Whether the host functions write into `out`.
    _renewal: ClassVar[str] = "build a fresh operator"
    # What to do where the tensors that its numbers were computed from have changed.

    def __init__(
        self,
        domain: AnySpace,
        codomain: AnySpace,
        rule: str | Rule | None = None,
        *,
        precision: str | Precision | None = None,
        name: str | None = None,
        tags: Iterable[str] = (),
    ) -> None:
        own = self.__dict__  # past __setattr__, which guards what is frozen
        own["domain"] = domain
        own["codomain"] = codomain
        own["name"] = name or type(self).__name__
        own["_precision"] = None if precision is None else Precision.of(precision)
        own["_declared_tags"] = frozenset(tags)
        own["_declared_rule"] = parsed = None if rule is None else Rule.parse(rule)
        if parsed is not None:
            _match_rule(parsed, domain, codomain, self.name)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in cls.__dict__:
            init = cls.__init__
            if cls.__module__.startswith(_PUBLIC_ROOMS):
                init = arguments.checked(init)
            cls.__init__ = _freezing(init)  # type: ignore[method-assign]
        if isinstance(cls._aliases, bool) and "_aliases" not in cls.__dict__:
            # What a user's leaf returns may be a view of its input.
            cls._aliases = not cls._exact
        if "jax" in sys.modules:
            _show_to_jax(cls)

    # --- what it is --------------------------------------------------------------------

    @cached_property
    def rule(self) -> Rule:
        """How its axes shard (see `linops.rule`)."""
        if self._declared_rule is not None:
            return self._declared_rule
        derived = self._derive_rule()
        return derived if derived is not None else _rule_without_splits(self)

    @cached_property
    def tags(self) -> frozenset[str]:
        """Properties that are certain: `"self_adjoint"`, `"psd"`, `"unitary"`, `"diagonal"`,
        `"nonnegative"`, `"real_linear"`, `"approximate_adjoint"`."""
        found = self._declared_tags | self._derive_tags()
        if self.domain.is_complex or self.codomain.is_complex:
            return found
        # Between real spaces there is nothing else to be linear over.
        return found - {"real_linear"}

    @property
    def precision(self) -> Precision:
        """Precision of the arithmetic; a composition has that of its coarsest part."""
        return self._derive_precision() if self._precision is None else self._precision

    @property
    def dtype(self) -> np.dtype:
        """The wider dtype of the two spaces, complex if either is."""
        return np.result_type(self.domain.dtype, self.codomain.dtype)

    @property
    def shape(self) -> tuple[int, int]:
        """`(codomain.size, domain.size)`, as SciPy and PyLops want it."""
        return self.codomain.size, self.domain.size

    def describe(self) -> str:
        """The tree that will run, one line an operator: spaces, rule, precision, flops, bytes."""
        from linops.algebra.describe import describe

        return describe(self)

    def cost(self) -> Cost:
        """Flops and bytes of one apply."""
        return self._cost()

    # --- what it does ------------------------------------------------------------------

    def __call__(self, x: Any) -> Any:
        return apply.call(self, x)

    @arguments.checked
    def block(self, axis: str | int, start: int, stop: int, padded: bool = False) -> Operator:
        """The operator on a range of one axis.

        The law, for every axis and split:

            aligned      concatenate_i  A.block(a, i) @ x[i with halo]  ==  A @ x
            produced     concatenate_i  A.block(a, i) @ x               ==  A @ x
            contracted   sum_i          A.block(a, i) @ x[i with halo]  ==  A @ x

        Parameters
        ----------
        axis
            Name in the rule or in a space, or number (of the codomain's axis; of the domain's
            where the codomain is a scalar).
        start, stop
            Planes of the output where the axis is aligned or produced, of the input where it
            is contracted.
        padded
            The form for programs that all devices share: the range may reach past both ends,
            the input always has the halo on both sides, planes outside the array are never
            read and are written as zeros. Blocks of equal length have equal structure.

        Raises
        ------
        ShapeError
            Where no axis has that name, the axis must not be split, or the range is no range.
        """
        from linops.algebra.blocks import block

        return block(self, axis, start, stop, padded)

    def apply_into(
        self,
        source: Any,
        target: Any,
        chunks: int | Mapping[str, int] | None = None,
        **options: Any,
    ) -> Any:
        """The operator from store to store, block by block; `target` itself comes back.

        For arrays larger than memory: files, data sets of HDF5, Zarr and TensorStore, or any
        object with `shape`, `dtype`, `read(slices)`, `write(slices, block)`. Parameters and errors
        are those of `linops.stores.apply_into`.
        """
        from linops.stores.tilewise import apply_into

        return apply_into(self, source, target, chunks, **options)

    @own_precision
    def jacobian(self, x: Any) -> LinearOperator:
        """The derivative at `x`, a linear operator that solvers can use.

        Its primal pass runs once, here.
        """
        self.domain.check_shape(x, f"{self.name}.jacobian")
        return self._jacobian(apply.admit_element(self, x))

    def jvp(self, x: Any, dx: Any) -> Any:
        """The derivative at `x` along `dx`."""
        return self.jacobian(x)(dx)

    def vjp(self, x: Any, dy: Any) -> Any:
        """The adjoint of the derivative at `x`, applied to `dy`."""
        return self.jacobian(x).H(dy)

    @abstractmethod
    def _apply(self, x: Any) -> Any:
        """The map itself; `x` is validated, cast, and without batch axes unless `batched`."""

    # --- arithmetic ----------------------------------------------------------------------

    @tracing.untraced
    def __matmul__(self, other: Any) -> Any:
        if type(other) is np.ndarray and self.linear:
            return apply.call(self, other)
        return _combine("matmul", self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return _combine("rmatmul", self, other)

    def __add__(self, other: Any) -> Any:
        return _combine("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return _combine("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return _combine("subtract", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _combine("subtract", other, self)

    def __mul__(self, other: Any) -> Any:
        return _combine("multiply", other, self)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return _combine("divide", self, other)

    def __neg__(self) -> Any:
        return _combine("scale", -1, self)

    def __pos__(self) -> Operator:
        return self

    def __pow__(self, exponent: Any) -> Any:
        return _combine("power", self, exponent)

    # --- hooks -------------------------------------------------------------------------

    def _jacobian(self, x: Any) -> LinearOperator:
        raise TypeError(
            f"{self.name} declares no derivative: override _jacobian(x), or build it with "
            "from_function(..., linear=False)"
        )

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> Operator | None:
        """A better block than "extend by zeros, apply, crop"; None where there is none."""
        if not self.blockwise:
            return None
        from linops.algebra.blockwise import block_by_rule

        return block_by_rule(self, axis, start, stop, padded)

    def _input_range(self, axis: str, start: int, stop: int) -> tuple[int, int]:
        """Planes of the input that planes `start` to `stop` of an aligned axis need, uncut."""
        halo = self.rule.halo(axis)
        return start - halo, stop + halo

    def _member_range(self, member: int, axis: str, start: int, stop: int) -> tuple[int, int]:
        """The same for one member of the domain, where some need fewer planes than others."""
        return self._input_range(axis, start, stop)

    def _within(self, memory: float) -> Operator:
        """The same with temporaries of at most so many bytes; itself where it has no choice."""
        return self

    def _data_and_static(self) -> tuple[dict[str, Any], tuple[tuple[str, Hashable], ...]]:
        """Its children as a pytree of JAX, by name, and what of it is static."""
        from linops.structure import flatten

        return flatten(self)

    @classmethod
    def _of_data(
        cls, static: tuple[tuple[str, Hashable], ...], data: Mapping[str, Any], name: str
    ) -> Any:
        """The operator of such children, which may be anything, and static parts."""
        from linops.structure import rebuilt

        return rebuilt(cls, static, data, name)

    def _identity(self) -> Operator:
        """Which operator it is, where it only says how another one runs."""
        return self

    def _derive_rule(self) -> Rule | None:
        return None

    def _derive_tags(self) -> frozenset[str]:
        return frozenset()

    def _derive_precision(self) -> Precision:
        return Precision.coarsest(
            Precision.of_dtype(space.dtype) for space in (self.domain, self.codomain)
        )

    def _cost(self) -> Cost:
        """Input, result and its own arrays, each met once."""
        streaming = Cost.streaming(self.domain, self.codomain)
        held = self._data_and_static()[0].values()
        own = [part for value in held for part in (value if type(value) is tuple else (value,))]
        size = sum(
            float(np.prod(part.shape)) * arrays.dtype_of(part).itemsize
            for part in own
            if arrays.is_array(part)
        )
        return dataclasses.replace(streaming, read=streaming.read + size)

    def _beside(self, name: str, like: Array) -> Array:
        """One of its arrays in the namespace, and on the device, of `like`."""
        array = self.__dict__[name]
        if type(array) is np.ndarray and type(like) is np.ndarray:
            return array
        dtype = None
        if arrays.trainable(array):
            space = self.domain
            dtype = arrays.dtype_of(array)
            if dtype.kind in "fc":
                dtype = (complex_of if dtype.kind == "c" else real_of)(space.dtype)
        cache = self.__dict__.setdefault("_cache_resident", {})
        return arrays.resident(cache, name, array, like, dtype)

    def _admit_field(self, name: str, value: Any) -> Any:
        """What `replace` puts in the place of a field."""
        from linops.algebra.replacing import fitting

        return fitting(f"{self.name}.{name}", self.__dict__[name], value)

    @cached_property
    def _forward(self) -> Callable[[Any], Any]:
        return self._entered(self._apply, self.codomain, adjoint=False)

    def _entered(
        self, hook: Callable[[Any], Any], target: AnySpace, adjoint: bool
    ) -> Callable[[Any], Any]:
        """One of the two functions, as nodes call it."""
        if "_cache_sources" in self.__dict__:
            hook = _origins().watched(self, hook)
        if not self._exact:
            return guard.entrance(self, hook, adjoint)
        flat = any(not space.ndim for space in target.members)
        return guard.wrap_scalars(hook) if flat else hook

    def _warn_once(self, message: str) -> None:
        if not self.__dict__.get("_cache_warned"):
            self.__dict__["_cache_warned"] = True
            apply.warn(message)

    # --- immutability, pickling, display -------------------------------------------------

    def replace(self, **changes: Any) -> Self:
        """A copy with other values in some of its fields; everything else is shared.

        Parameters
        ----------
        changes
            By the names of attributes: arrays (of the shape that they have now, real or complex as
            now), operators between the same spaces, numbers.

        Raises
        ------
        TypeError
            For another name, listing the fields; spaces and what follows from them are not
            replaced: build a new operator.
        ShapeError, DTypeError
            Where a value does not fit in the place of the old one.
        """
        from linops.algebra.replacing import admitted_fields

        return self._with(**admitted_fields(self, changes))

    def _with(self, **changes: Any) -> Self:
        """A copy with other attributes, as they are; `rule` and `tags` stand for those declared."""
        if "rule" in changes:
            changes["_declared_rule"] = changes.pop("rule")
        if "tags" in changes:
            changes["_declared_tags"] = frozenset(changes.pop("tags"))
        return self._of({**self.__getstate__(), **changes})

    @classmethod
    def _made(
        cls,
        domain: AnySpace,
        codomain: AnySpace,
        rule: Rule,
        tags: Iterable[str] = (),
        **fields: Any,
    ) -> Self:
        """The operator of parts that are known to fit, past `__init__`."""
        operator = object.__new__(cls)
        Operator.__init__(operator, domain, codomain, rule, tags=tags)
        operator.__dict__.update(fields)
        _note_sources(operator)
        return operator

    @classmethod
    def _opened(cls, fill: Callable[[Self], None]) -> Self:
        """The operator that `fill` sets up, spaces and all, past `__init__`."""
        operator = object.__new__(cls)
        operator.__dict__["_open"] = True
        fill(operator)
        del operator.__dict__["_open"]
        _note_sources(operator)
        return operator

    @classmethod
    def _of(cls, state: Mapping[str, Any]) -> Self:
        """The operator of these attributes, past `__init__`."""
        operator = object.__new__(cls)
        operator.__dict__.update(state)
        _note_sources(operator)
        return operator

    def __setattr__(self, name: str, value: Any) -> None:
        if not self.__dict__.get("_open"):
            raise AttributeError(
                f"{self.name} is immutable: cannot set {name!r}; build a new operator"
            )
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{self.name} is immutable: cannot delete {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        cached = _cached_names(type(self))
        return {
            key: value
            for key, value in self.__dict__.items()
            if key not in cached and not key.startswith(("_cache", "_open"))
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def _repr_html_(self) -> str:
        from linops.algebra.describe import describe_html

        return describe_html(self)

    def __repr__(self) -> str:
        if "_declared_rule" not in self.__dict__:  # a debugger looks on while it is made
            return f"<{type(self).__name__}, not set up>"
        try:
            shown = f"{self.precision}"
            shown += f" [{', '.join(sorted(self.tags))}]" if self.tags else ""
        except Exception:  # a pytree that holds something else than arrays
            shown = "?"
        return f"<{self.name}: {self.domain} -> {self.codomain}, {shown}>"


@tracing.untraced
def _combine(name: str, *operands: Any) -> Any:
    """What the arithmetic of that name gives."""
    if "torch" in sys.modules and tracing.compiling():
        return tracing.outside(_combine, name, *operands)
    global _arithmetic
    if _arithmetic is None:
        _arithmetic = importlib.import_module("linops.algebra.arithmetic")
    return getattr(_arithmetic, name)(*operands)


_arithmetic: Any = None  # it imports this module


def _freezing(init: Callable[..., None]) -> Callable[..., None]:
    @tracing.untraced
    @functools.wraps(init)
    def wrapped(self: Operator, *args: Any, **kwargs: Any) -> None:
        if "torch" in sys.modules and tracing.compiling():
            tracing.outside(wrapped, self, *args, **kwargs)
            return
        outermost = type(self).__init__ is wrapped
        if outermost:
            self.__dict__["_open"] = True  # attributes may be set
        init(self, *args, **kwargs)
        if outermost:
            del self.__dict__["_open"]
            if "torch" in sys.modules and _origins().tensors(self):
                _note_sources(self)
            # Classes of the library hold what JAX takes; every operator of a user's is looked at.
            if "jax" in sys.modules and not (self._exact and type(self) in _shown):
                _show_to_jax(type(self), self)

    return wrapped


def _note_sources(operator: Operator) -> None:
    """Remember what the operator's tensors were computed from, where they were."""
    # What watches its sources itself says more about what to do.
    if "torch" in sys.modules and "_cache_watch" not in operator.__dict__:
        found = _origins().owned_by(operator)
        if found:
            operator.__dict__["_cache_sources"] = found


@functools.cache
def _origins() -> Any:
    from linops.algebra import origins  # which imports this module

    return origins


_shown: set[type[Operator]] = set()


def _show_to_jax(cls: type[Operator], operator: Operator | None = None) -> None:
    from linops.transforms import pytree

    if pytree.register(cls):
        _shown.add(cls)
    if operator is not None:
        pytree.check_static(operator)


@functools.cache
def _cached_names(cls: type) -> frozenset[str]:
    return frozenset(
        name
        for base in cls.__mro__
        for name, value in vars(base).items()
        if isinstance(value, cached_property)
    )


arguments.declare("Operator", arguments.Kind("an Operator", (Operator,)))


def _match_rule(rule: Rule, domain: AnySpace, codomain: AnySpace, name: str) -> None:
    for members, space, side in ((rule.domain, domain, "left"), (rule.codomain, codomain, "right")):
        counts = [len(member) for member in members]
        wanted = [member.ndim for member in space.members]
        if counts != wanted:
            raise ShapeError(
                f"{name}: rule '{rule}' names {counts} axes on the {side}, the space {space} has "
                f"{wanted}"
            )


def _rule_without_splits(operator: Operator) -> Rule:
    taken: set[str] = set()

    def side(space: AnySpace, letter: str) -> str:
        members = []
        for m, member in enumerate(space.members):
            names = member.axes or tuple(f"{letter}{m}_{i}" for i in range(member.ndim))
            members.append(" ".join(f"{name}!" for name in names))
            taken.update(names)
        return ", ".join(members)

    return Rule.parse(f"{side(operator.domain, 'i')} -> {side(operator.codomain, 'o')}")
