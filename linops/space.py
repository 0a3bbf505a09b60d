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
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from linops import arguments, arrays, space_arguments
from linops.arguments import Kind
from linops.arrays import Array
from linops.errors import DTypeError, ShapeError
from linops.home import LOCAL, Home, MemberHomes
from linops.inner_products import inner_of_members, inners, norm, norm_of_members
from linops.precision import complex_of
from linops.space_arguments import member_advice, member_of, space_advice

if TYPE_CHECKING:
    from linops.operator import Operator

__all__ = ["AnySpace", "ProductSpace", "Space", "inners"]

_Extents = int | Sequence[int]


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
        Distance of neighboring planes along each axis, in physical units: one number or one
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
        extents = space_arguments.admit_shape(shape)
        object.__setattr__(self, "shape", extents)
        object.__setattr__(self, "dtype", space_arguments.admit_dtype(dtype))
        object.__setattr__(self, "axes", space_arguments.admit_names(axes, extents))
        object.__setattr__(self, "spacing", space_arguments.admit_spacing(spacing, extents))

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

    def complexify(self) -> Space:
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
        return norm(self, a)

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
        if not members:
            raise ShapeError("a product space takes one or more spaces, got none")
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

    def complexify(self) -> ProductSpace:
        """Every member complexified."""
        return ProductSpace([space.complexify() for space in self.spaces])

    def zeros(self, like: Array | None = None, *, batch: tuple[int, ...] = ()) -> tuple[Array, ...]:
        """The tuple of zero elements."""
        like = member_of(like)
        return tuple(space.zeros(like, batch=batch) for space in self.spaces)

    def ones(self, like: Array | None = None) -> tuple[Array, ...]:
        """The tuple of elements of ones."""
        like = member_of(like)
        return tuple(space.ones(like) for space in self.spaces)

    @arguments.checking("seed")
    def random(
        self, seed: int | np.random.Generator, like: Array | None = None
    ) -> tuple[Array, ...]:
        """Independent standard normal entries in every member."""
        like = member_of(like)
        generator = np.random.default_rng(seed)
        return tuple(space.random(generator, like) for space in self.spaces)

    def inner(self, a: tuple[Array, ...], b: tuple[Array, ...]) -> Any:
        """The sum of the members' inner products."""
        self.validate(a)
        self.validate(b)
        return inner_of_members(self, a, b)

    def norm(self, a: tuple[Array, ...]) -> Any:
        """The Euclidean norm over all members."""
        return norm_of_members(self, a)

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
        pairs = zip(self.spaces, x, strict=True)
        if self.home is LOCAL or not any(space.home.holds(part) for space, part in pairs):
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


arguments.declare(
    "Space",
    Kind(
        "a plain Space",
        (Space,),
        advice=member_advice,
        error=lambda value: ShapeError if isinstance(value, ProductSpace) else DTypeError,
    ),
)
arguments.declare(
    "_Member",
    Kind(
        "a plain Space",
        (Space,),
        advice=lambda value: "products do not nest: list members flat, each a linops.Space(shape)",
        error=lambda value: ShapeError,
    ),
)
arguments.declare("ProductSpace", Kind("a ProductSpace", (ProductSpace,), advice=space_advice))
arguments.declare(
    "AnySpace", Kind("a Space or a ProductSpace", (Space, ProductSpace), advice=space_advice)
)
