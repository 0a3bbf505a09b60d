"""Spaces: what an operator maps from and to, with the inner product that solvers use.

A `Space` is a shape, a dtype, and where they matter names and spacings of its axes. It
makes elements, checks them, and reduces them. Solvers reach reductions through spaces only,
which is why they run unchanged on sharded elements.

Inner products are Euclidean; spacing is a fact for operators that take derivatives, and never
hides in an inner product or an adjoint.
"""

from __future__ import annotations

import copy
import math
import operator
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from linops import arguments, arrays, numeric
from linops.arguments import Kind
from linops.arrays import Array
from linops.errors import DTypeError, ShapeError
from linops.home import LOCAL, Home, MemberHomes
from linops.precision import complex_of

if TYPE_CHECKING:
    from linops.operator import Operator

__all__ = ["AnySpace", "ProductSpace", "Space", "inners"]

_Extents = int | Sequence[int]
_LONGEST = 2**31 - 1  # planes are counted in 32 bits where blocks are data of a program

_DTYPES = ("float16", "float32", "float64", "complex64", "complex128")


@dataclass(frozen=True, init=False)
class Space:
    """Arrays of one shape and dtype.

    Parameters
    ----------
    shape
        Extent of each axis; `()` for scalars. Zero extents are allowed.
    dtype
        float16, float32, float64, complex64 or complex128.
    axes
        A name for each axis, such as `("z", "y", "x")`.
    spacing
        Distance of neighbouring planes along each axis, in physical units: one number or one
        for each axis.

    Raises
    ------
    ShapeError
        For a negative or fractional extent, or names or spacings of another count.
    DTypeError
        For a dtype that is neither real nor complex floating point.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    axes: tuple[str, ...] | None
    spacing: tuple[float, ...] | None
    home: Home = field(default=LOCAL, repr=False)

    @arguments.checked
    def __init__(
        self,
        shape: _Extents,
        dtype: Any = "float32",
        axes: Sequence[str] | None = None,
        spacing: float | Sequence[float] | None = None,
    ) -> None:
        extents = _extents(shape)
        object.__setattr__(self, "shape", extents)
        object.__setattr__(self, "dtype", _dtype(dtype))
        object.__setattr__(self, "axes", _names(axes, extents))
        object.__setattr__(self, "spacing", _spacing(spacing, extents))

    @cached_property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @cached_property
    def is_complex(self) -> bool:
        """Whether the entries are complex."""
        return self.dtype.kind == "c"

    @property
    def members(self) -> tuple[Space, ...]:
        """The space itself, as the one member of a product."""
        return (self,)

    def with_dtype(self, dtype: Any) -> Space:
        """The same axes with entries of another dtype."""
        return Space(self.shape, dtype, self.axes, self.spacing).with_home(self.home)

    def with_home(self, home: Home) -> Space:
        """The same space of elements that live elsewhere."""
        made = copy.copy(self)
        object.__setattr__(made, "home", home)
        return made

    def complexified(self) -> Space:
        """The complex space of the same precision."""
        return self.with_dtype(complex_of(self.dtype))

    def zeros(self, like: Array | None = None, *, batch: tuple[int, ...] = ()) -> Array:
        """The zero element in the namespace and on the device of `like`: an array, a namespace,
        or a pair (namespace, device); NumPy by default. `batch` axes stand in front."""
        return self.home.full((*batch, *self.shape), self.dtype, 0, like)

    def ones(self, like: Array | None = None) -> Array:
        """The element of ones, in the namespace and on the device of `like`."""
        return self.home.full(self.shape, self.dtype, 1, like)

    @arguments.checking("seed")
    def random(self, seed: int | np.random.Generator, like: Array | None = None) -> Array:
        """Independent standard normal entries, complex ones in a complex space.

        The numbers depend on the seed alone, not on the namespace.
        """
        generator = np.random.default_rng(seed)
        values = generator.standard_normal(self.shape)
        if self.is_complex:
            values = values + 1j * generator.standard_normal(self.shape)
        host = np.asarray(values, self.dtype)
        exemplar = arrays.exemplar(like)
        if exemplar is not None and not self.home.holds(exemplar):
            host = arrays.convert(host, exemplar)
        return self.home.adopt(host)

    def inner(self, a: Array, b: Array) -> Any:
        """`<a, b>`, the first argument conjugated, accumulated in float64.

        A Python number; under a trace, or where a gradient is required, a 0-d array. Leading
        batch axes give an array with one value for each member.
        """
        self.validate(a)
        self.validate(b)
        return self.home.dots([(self, a, b)], True)[0]

    def norm(self, a: Array) -> Any:
        """The Euclidean norm, accumulated in float64; types as for `inner`.

        Squares neither overflow nor vanish: where they would, entries are scaled by the largest.
        """
        narrow = not arrays.has_float64(a) and (arrays.is_traced(a) or a.ndim > self.ndim)
        if self.home.placed or not narrow:
            with np.errstate(over="ignore"):
                square = self.inner(a, a)
            if isinstance(square, (float, complex)):
                if _holds(square.real) or self.home.placed:
                    return math.sqrt(square.real)
            else:
                xp = arrays.namespace(square)
                real = xp.real(square) if self.is_complex else square
                if self.home.placed or arrays.is_traced(square) or _hold(real):
                    return xp.sqrt(real)
        top = _largest(a, self.ndim)
        xp = arrays.namespace(top)
        wide = xp.reshape(top, (*top.shape, *(1,) * self.ndim))
        scaled = self.inner(a / wide, a / wide)
        if isinstance(scaled, (float, complex)):
            return float(top) * math.sqrt(scaled.real)
        return top * xp.sqrt(xp.real(scaled) if self.is_complex else scaled)

    def validate(self, x: Array) -> Array:
        """`x` itself, if it is an element (or a batch of elements along leading axes).

        Raises
        ------
        ShapeError
            Where the trailing axes are not the space's.
        DTypeError
            Where `x` is no array, or has another dtype.
        """
        self.check_shape(x, "this space")
        if arrays.dtype_of(x) != self.dtype:
            error = DTypeError(
                f"expected an element of dtype {self.dtype}, got {x.dtype}; "
                "cast it first, e.g. with linops.arrays.cast"
            )
            self.home.refuse(error)
            raise error
        return x

    def check_shape(self, x: Array, owner: str) -> None:
        """Raise unless `x` is an array whose trailing axes are the space's."""
        self.home.check(x, self, owner)

    def describe_shape(self) -> str:
        """The shape with the names of its axes: `(z=4, y=5, x=6)`."""
        if self.axes is None:
            return str(self.shape)
        return "(" + ", ".join(f"{a}={n}" for a, n in zip(self.axes, self.shape, strict=True)) + ")"

    def ravel(self, x: Array) -> Array:
        """The entries of `x` as one flat vector in C order; batch axes stay in front."""
        self.check_shape(x, "ravel")
        batch = tuple(x.shape)[: x.ndim - self.ndim]
        return arrays.namespace(x).reshape(x, (*batch, self.size))

    def unravel(self, v: Array) -> Array:
        """The element whose entries in C order are `v`, of shape `(..., size)`."""
        if v.ndim < 1 or v.shape[-1] != self.size:
            raise ShapeError(
                f"unravel expects a flat vector of {self.size} entries for {self.describe_shape()},"
                f" got shape {tuple(v.shape)}"
            )
        return arrays.namespace(v).reshape(v, (*v.shape[:-1], *self.shape))

    def lower(self, operator: Operator) -> Operator:
        """`operator` itself; on a placed space lowered to its placement."""
        return self.home.lower(operator, self)

    def __str__(self) -> str:
        return f"{self.describe_shape()} {self.dtype}"


_Member = Space  # of a product


@dataclass(frozen=True, init=False)
class ProductSpace:
    """Tuples of elements, one for each member space.

    All arrays of an element come from one namespace and have the same leading batch axes.

    Raises
    ------
    ShapeError
        Where there is no member, or a member is no space.
    """

    spaces: tuple[Space, ...]

    @arguments.checked
    def __init__(self, spaces: Sequence[_Member]) -> None:
        members = tuple(spaces)
        if not members or not all(isinstance(space, Space) for space in members):
            raise ShapeError(
                f"a product space takes one or more spaces, got {members!r}; "
                "products do not nest, list the members flat"
            )
        object.__setattr__(self, "spaces", members)

    @cached_property
    def home(self) -> Home:
        """Where the members live."""
        homes = [space.home for space in self.spaces]
        return MemberHomes(homes) if any(home.placed for home in homes) else LOCAL

    @cached_property
    def size(self) -> int:
        """Number of entries of all members together."""
        return sum(space.size for space in self.spaces)

    @property
    def shape(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the members."""
        return tuple(space.shape for space in self.spaces)

    @property
    def dtype(self) -> np.dtype:
        """The widest dtype of the members."""
        return np.result_type(*(space.dtype for space in self.spaces))

    @property
    def is_complex(self) -> bool:
        """Whether any member is complex."""
        return any(space.is_complex for space in self.spaces)

    @property
    def members(self) -> tuple[Space, ...]:
        """The member spaces."""
        return self.spaces

    def with_dtype(self, dtype: Any) -> ProductSpace:
        """The same members with entries of another dtype."""
        return ProductSpace([space.with_dtype(dtype) for space in self.spaces])

    def with_home(self, home: Home) -> ProductSpace:
        """The same members, of elements that all live elsewhere."""
        return ProductSpace([space.with_home(home) for space in self.spaces])

    def complexified(self) -> ProductSpace:
        """Every member complexified."""
        return ProductSpace([space.complexified() for space in self.spaces])

    def zeros(self, like: Array | None = None, *, batch: tuple[int, ...] = ()) -> tuple[Array, ...]:
        """The tuple of zero elements."""
        like = _one(like)
        return tuple(space.zeros(like, batch=batch) for space in self.spaces)

    def ones(self, like: Array | None = None) -> tuple[Array, ...]:
        """The tuple of elements of ones."""
        like = _one(like)
        return tuple(space.ones(like) for space in self.spaces)

    @arguments.checking("seed")
    def random(
        self, seed: int | np.random.Generator, like: Array | None = None
    ) -> tuple[Array, ...]:
        """Independent standard normal entries in every member."""
        like = _one(like)
        generator = np.random.default_rng(seed)
        return tuple(space.random(generator, like) for space in self.spaces)

    def inner(self, a: tuple[Array, ...], b: tuple[Array, ...]) -> Any:
        """The sum of the members' inner products."""
        self.validate(a)
        self.validate(b)
        return _added(_reduced(list(zip(self.spaces, a, b, strict=True)), True))

    def norm(self, a: tuple[Array, ...]) -> Any:
        """The Euclidean norm over all members."""
        with np.errstate(over="ignore"):
            square = self.inner(a, a)
        if isinstance(square, (float, complex)):
            if _holds(square.real):
                return math.sqrt(square.real)
            parts = [space.norm(part) for space, part in zip(self.spaces, a, strict=True)]
            return math.hypot(*parts)
        xp = arrays.namespace(square)
        return xp.sqrt(xp.real(square) if self.is_complex else square)

    def validate(self, x: tuple[Array, ...]) -> tuple[Array, ...]:
        """`x` itself, if it is a tuple of elements with equal batch axes."""
        self.check_shape(x, "this space")
        for space, part in zip(self.spaces, x, strict=True):
            space.validate(part)
        return x

    def check_shape(self, x: Any, owner: str) -> None:
        """Raise unless `x` is a tuple of arrays that fit the members."""
        try:
            self._check_members(x, owner)
        except (TypeError, ValueError) as error:
            self.home.refuse(error)
            raise

    def _check_members(self, x: Any, owner: str) -> None:
        if not isinstance(x, (tuple, list)) or len(x) != len(self.spaces):
            came = f"{len(x)} of them" if isinstance(x, (tuple, list)) else type(x).__name__
            raise ShapeError(
                f"{owner} takes a tuple of {len(self.spaces)} arrays, shapes "
                f"{self.describe_shape()}, got {came}"
            )
        for number, (space, part) in enumerate(zip(self.spaces, x, strict=True)):
            space.check_shape(part, f"member {number} of {owner}")
        # Plain members are put beside placed ones, of whatever namespace they are.
        if not any(m.home.holds(part) for m, part in zip(self.spaces, x, strict=True)):
            arrays.namespace(*x)
        batches = {tuple(p.shape)[: p.ndim - s.ndim] for s, p in zip(self.spaces, x, strict=True)}
        if len(batches) > 1:
            raise ShapeError(
                f"{owner} takes equal leading batch axes in all members, got "
                + " and ".join(map(str, sorted(batches)))
            )

    def describe_shape(self) -> str:
        """The members' shapes with the names of their axes."""
        return "(" + ", ".join(space.describe_shape() for space in self.spaces) + ")"

    def ravel(self, x: tuple[Array, ...]) -> Array:
        """All members' entries as one flat vector, member after member."""
        self.check_shape(x, "ravel")
        flat = [space.ravel(part) for space, part in zip(self.spaces, x, strict=True)]
        return arrays.namespace(*flat).concat(flat, axis=-1)

    def unravel(self, v: Array) -> tuple[Array, ...]:
        """The tuple whose entries, member after member, are `v`."""
        if v.ndim < 1 or v.shape[-1] != self.size:
            raise ShapeError(
                f"unravel expects a flat vector of {self.size} entries, got {tuple(v.shape)}"
            )
        parts, start = [], 0
        for space in self.spaces:
            parts.append(space.unravel(v[..., start : start + space.size]))
            start += space.size
        return tuple(parts)

    def lower(self, operator: Operator) -> Operator:
        """`operator` itself; on a placed space lowered to its placement."""
        return self.home.lower(operator, self)

    def __str__(self) -> str:
        return " x ".join(str(space) for space in self.spaces)


AnySpace = Space | ProductSpace
"""Either kind of space."""


def _space_advice(value: Any) -> str:
    if arrays.is_array(value):
        return (
            f"the space of that array is linops.Space({tuple(value.shape)}, "
            f"{str(value.dtype).rsplit('.', 1)[-1]!r}), and linops.Diagonal(array) multiplies by it"
        )
    if hasattr(value, "domain") and hasattr(value, "codomain"):
        return "its spaces are its .domain and its .codomain"
    if isinstance(value, int) or (isinstance(value, tuple) and value):
        return f"make one with linops.Space({value!r})"
    return "make one with linops.Space(shape)"


def _one_array_advice(value: Any) -> str:
    if isinstance(value, ProductSpace):
        return "pick a member of the product space first"
    return _space_advice(value)


arguments.declare(
    "Space",
    Kind(
        "a plain Space",
        (Space,),
        advice=_one_array_advice,
        error=lambda value: ShapeError if isinstance(value, ProductSpace) else DTypeError,
    ),
)
arguments.declare(
    "_Member",
    Kind(
        "a plain Space",
        (Space,),
        advice=lambda value: (
            "products do not nest, list the members flat"
            if isinstance(value, ProductSpace)
            else "make one with linops.Space(shape)"
        ),
        error=lambda value: ShapeError,
    ),
)
arguments.declare("ProductSpace", Kind("a ProductSpace", (ProductSpace,), advice=_space_advice))
arguments.declare(
    "AnySpace", Kind("a Space or a ProductSpace", (Space, ProductSpace), advice=_space_advice)
)


def _holds(square: float) -> bool:
    """Whether a sum of squares lost nothing to the range of its numbers."""
    return square > 1e-280 and math.isfinite(square)


def _hold(squares: Array) -> bool:
    xp = arrays.namespace(squares)
    return bool(arrays.item(xp.all((squares > 1e-280) & xp.isfinite(squares))))


def _largest(a: Array, ndim: int) -> Array:
    """The largest size of an entry of each element, 1 where there is none or it is no number."""
    x = arrays.constant(a)
    xp = arrays.namespace(x)
    size = xp.abs(x)
    if arrays.dtype_of(x).kind == "c":
        parts = xp.abs(xp.real(x)), xp.abs(xp.imag(x))
        size = xp.where(parts[0] > parts[1], *parts)
    axes = tuple(range(-ndim, 0))
    if axes:
        size = xp.sum(size, axis=axes) if 0 in tuple(x.shape) else xp.max(size, axis=axes)
    good = (size > 0) & xp.isfinite(size)
    return xp.where(good, size, xp.ones_like(size))


def inners(*products: tuple[AnySpace, Any, Any]) -> tuple[Array, ...]:
    """Several inner products `(space, a, b)` at once, as 0-d arrays of the elements' namespace.

    Nothing is read to the host, so loops without host decisions use it; a sharded space reduces
    all of them together.
    """
    terms: list[_Term] = []
    for space, a, b in products:
        space.validate(a)
        space.validate(b)
        several = isinstance(space, ProductSpace)
        terms += zip(space.members, a if several else (a,), b if several else (b,), strict=True)
    found = iter(_reduced(terms, False))
    return tuple(_added([next(found) for _ in space.members]) for space, _, _ in products)


_Term = tuple[Space, Array, Array]


def _reduced(terms: Sequence[_Term], host: bool) -> list[Any]:
    """The inner products of `(space, a, b)`; those that can be are reduced together."""
    groups: dict[Any, list[int]] = {}
    for k, (space, _, _) in enumerate(terms):
        groups.setdefault(space.home.reduction, []).append(k)
    found: list[Any] = [None] * len(terms)
    for members in groups.values():
        values = terms[members[0]][0].home.dots([terms[k] for k in members], host)
        for k, value in zip(members, values, strict=True):
            found[k] = value
    return found


def _added(values: Sequence[Any]) -> Any:
    return sum(values[1:], values[0])


def _extents(shape: Any) -> tuple[int, ...]:
    if isinstance(shape, np.ndarray) and shape.ndim == 1:
        shape = shape.tolist()
    entries = shape if isinstance(shape, (tuple, list)) else (shape,)
    try:
        extents = tuple(int(operator.index(n)) for n in entries)
    except (TypeError, RuntimeError):
        raise ShapeError(
            f"a shape is whole numbers, got {arguments.described(shape)}; e.g. linops.Space((4, 5))"
        ) from None
    if any(isinstance(n, bool | np.bool_) for n in entries) or any(n < 0 for n in extents):
        raise ShapeError(f"a shape is non-negative whole numbers, got {shape!r}")
    if any(n > _LONGEST for n in extents):
        raise ShapeError(
            f"an axis has at most {_LONGEST} planes, which 32 bits count, got the shape {shape!r}; "
            "fold the axis into two"
        )
    return extents


def _dtype(dtype: Any) -> np.dtype:
    # torch.float32 by its name; without torch nothing has a second one.
    name = str(dtype).rsplit(".", 1)[-1] if "torch" in sys.modules else "no dtype"
    found: np.dtype
    try:
        found = np.dtype(dtype)
    except TypeError:
        try:
            found = np.dtype(name)
        except TypeError:
            raise DTypeError(
                f"a space's dtype is one of {', '.join(_DTYPES)}, got {dtype!r}"
            ) from None
    if found.name not in _DTYPES:
        raise DTypeError(
            f"a space's dtype is one of {', '.join(_DTYPES)}, got {found.name}; "
            "operators cast integers and booleans on entry by themselves"
        )
    return np.dtype(found.name)  # in the machine's own byte order


def _names(axes: Sequence[str] | None, shape: tuple[int, ...]) -> tuple[str, ...] | None:
    if axes is None:
        return None
    names = tuple(axes)
    if not all(isinstance(name, str) and name.isidentifier() for name in names):
        raise ShapeError(
            f"names of axes are words of letters, digits and underscores, such as ('y', 'x'), "
            f"got {names!r}"
        )
    if len(names) != len(shape) or len(set(names)) != len(names):
        raise ShapeError(
            f"a space of shape {shape} takes {len(shape)} different names of axes, got {names!r}"
        )
    return names


def _spacing(
    spacing: float | Sequence[float] | None, shape: tuple[int, ...]
) -> tuple[float, ...] | None:
    if spacing is None:
        return None
    several = isinstance(spacing, (tuple, list, np.ndarray))
    entries: Any = spacing if several else (spacing,) * len(shape)
    values = tuple(numeric.positive("spacing", value, ShapeError) for value in entries)
    if len(values) != len(shape):
        raise ShapeError(
            f"a space of shape {shape} takes one spacing or {len(shape)} of them, got {spacing!r}"
        )
    return values


def _one(like: Any) -> Any:
    """One array to imitate, of an element of a product space."""
    if isinstance(like, tuple) and like and arrays.is_array(like[0]):
        return like[0]
    return like
