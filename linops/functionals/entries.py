"""What functionals of single entries share: tables, rule, and cutting along any axis.

Such a functional is a sum over entries (or over groups of them along one axis) of terms that see
nothing else. Its tables (targets, weights, bounds) have the shape of the domain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from linops import arguments, arrays, numeric
from linops.arrays import Array
from linops.cost import Cost, bytes_of
from linops.elementary.axes import resized
from linops.elementary.plane_windows import PlaneMask
from linops.errors import DTypeError, ShapeError
from linops.functionals.functional import Functional, named_axes, plain
from linops.operator import Operator
from linops.precision import real_of
from linops.reductions import summing
from linops.rule import Axis, Member, Rule
from linops.space import Space

__all__ = ["Entries", "cut_planes", "name_axes"]


class Entries(Functional):
    """A sum over entries.

    Parameters
    ----------
    space
        The domain, no product.
    whole
        Positions of axes that couple entries: they do not split.
    """

    batched = True
    _tables: ClassVar[Mapping[str, float]] = {}
    # Attributes, in alphabetical order, that are None, a number, or an array of the domain's
    # shape, each with the number that stands in planes outside the array: there the terms are 0.

    _constants: ClassVar[tuple[str, ...]] = ()
    # Those of them that, as a number, give terms other than 0 where x is 0.

    def __init__(self, space: Space, whole: Sequence[int] = ()) -> None:
        self._whole = tuple(whole)
        super().__init__(plain(space, type(self).__name__))

    def _derive_rule(self) -> Rule:
        row = name_axes(self._space, self._whole)
        tables = [name for name in self._tables if arrays.is_array(getattr(self, name))]
        return Rule((row,), ((),), (row,) * len(tables))

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> Operator:
        block, mask = self._cut(axis, start, stop, padded)
        return block @ mask if padded else block  # type: ignore[no-any-return]

    def _gradient_block(self, axis: str, start: int, stop: int, padded: bool) -> Operator:
        block, mask = self._cut(axis, start, stop, padded)
        return mask @ block.gradient if padded else block.gradient  # type: ignore[no-any-return]

    def _state_cost(self, flops: float, held: float, gradient: bool = False) -> Cost:
        """A cost: operations an entry, and bytes that a value or a gradient holds at most beside
        its argument, its result counted where that is a gradient."""
        read = bytes_of(self.domain)
        tables = [getattr(self, name) for name in self._tables]
        for table in filter(arrays.is_array, tables):
            read += self.domain.size * arrays.dtype_of(table).itemsize
        made = bytes_of(self.domain if gradient else self.codomain)
        held = max(0.0, held - made) if gradient else held
        return Cost(flops * self.domain.size, read, made, held)

    @property
    def _sizes(self) -> tuple[float, float, float, float]:
        """Bytes of an element, of real entries and of booleans of its shape, and of a sum."""
        size, real = float(self.domain.size), real_of(self.domain.dtype)
        return bytes_of(self.domain), size * real.itemsize, size, summing(self.domain)

    @property
    def _elides(self) -> bool:
        """Whether NumPy writes `number * temporary` over the temporary: in its own precision."""
        return bool(real_of(self.domain.dtype) == np.float64)

    def _rows(self, index: Any) -> tuple[Operator, Operator]:
        if self._whole:
            return super()._rows(index)
        from linops.functionals.entry_rows import EntryForm, EntryTerms

        return EntryTerms(self, index), EntryForm(self, index)

    def _cut(self, axis: str, start: int, stop: int, padded: bool) -> tuple[Any, Any]:
        space = self._space
        position = [one.name for one in self.rule.domain[0]].index(axis)
        cuts = [(0, position)]
        small = resized(space, cuts, stop - start)
        fields: dict[str, Any] = {}
        for name, outside in self._tables.items():
            table = getattr(self, name)
            counts = outside != 0 or name in self._constants
            if padded and counts and not arrays.is_array(table):
                table = np.full(space.shape, table, real_of(space.dtype))
            if arrays.is_array(table):
                table = cut_planes(table, position - space.ndim, start, stop, outside)
            fields[name] = table
        block = self._with(domain=small, **fields)
        if not padded:
            return block, None
        n = space.shape[position]
        return block, PlaneMask(small, cuts, -start, n - start, self.rule.domain)

    @property
    def _space(self) -> Space:
        assert isinstance(self.domain, Space)
        return self.domain

    @property
    def _tolerance(self) -> float:
        """What rounding may put outside a constraint, relative to its size."""
        return 64 * float(np.finfo(real_of(self.domain.dtype)).eps)

    def _barrier(self, inside: Array, value: Any = 0.0) -> Any:
        """`value` where all entries of `inside` hold, else infinite; for each member of a batch."""
        xp = arrays.namespace(inside)
        real = real_of(self.domain.dtype)
        outside = self._sum(arrays.cast(xp.logical_not(inside), real))
        if not arrays.is_array(outside):
            return math.inf if outside > 0 else value
        return xp.where(outside > 0, xp.zeros_like(outside) + math.inf, value + 0 * outside)

    def _admit_table(self, value: Any, name: str, dtype: np.dtype | None = None) -> Any:
        """A number, or an array of the domain's shape that nobody else can change."""
        if arrays.is_masked(value):
            raise arrays.masked_error(self.name, name)
        if not arrays.is_array(value) or (arrays.is_numpy(value) and not value.ndim):
            number = float(arguments.hold("float", value, self.name, name))
            if math.isnan(number):
                raise ValueError(f"{self.name}: {name} is {value}; it is a number")
            return number
        # Bounds may be infinite; nothing may be NaN.
        numeric.require_numbers(f"{self.name}: {name}", value)
        if arrays.dtype_of(value).kind not in "biufc":
            raise DTypeError(f"{self.name}: {name} has dtype {value.dtype}; it holds numbers")
        space = self._space
        if tuple(value.shape) != space.shape:
            raise ShapeError(
                f"{self.name}: {name} has shape {tuple(value.shape)}; it is one number, or has "
                f"the shape of the domain {space.describe_shape()}"
            )
        return arrays.own(value, dtype or real_of(space.dtype))

    def _admit_weights(self, value: Any) -> Any:
        if not arrays.is_array(value) or not (arrays.is_traced(value) or arrays.trainable(value)):
            host = np.asarray(arrays.to_numpy(value) if arrays.is_array(value) else value)
            if host.dtype.kind not in "biuf" or not (np.isfinite(host).all() and (host >= 0).all()):
                raise ValueError(f"{self.name}: weights are finite real numbers >= 0")
        return self._admit_table(value, "weights")

    def _admit_field(self, name: str, value: Any) -> Any:
        if name == "weights":
            return self._admit_weights(value)
        held = super()._admit_field(name, value)
        return self._admit_table(held, name) if name in self._tables else held

    def _table(self, name: str, like: Array) -> Any:
        table = getattr(self, name)
        if not arrays.is_array(table):
            return table
        cache = self.__dict__.setdefault("_cache_resident", {})
        is_complex = arrays.dtype_of(table).kind == "c"
        dtype = self._space.dtype if is_complex else real_of(self._space.dtype)
        return arrays.resident(cache, name, table, like, dtype)

    def _filled(self, value: Any) -> Array:
        """A number or an array as an array of the domain's shape."""
        if arrays.is_array(value) and value.ndim:
            return value
        return np.full(self._space.shape, float(value), real_of(self._space.dtype))


def name_axes(space: Space, whole: Sequence[int] = ()) -> Member:
    """The axes of a space as they stand in a rule."""
    return tuple(
        Axis(name, splits=number not in whole) for number, name in enumerate(named_axes(space)[0])
    )


def cut_planes(table: Array, axis: int, start: int, stop: int, outside: float = 0.0) -> Array:
    """Planes `start` to `stop` along a negative axis, `outside` where there are none."""
    n = table.shape[axis]
    lo = min(max(start, 0), n)
    hi = max(min(stop, n), lo)
    part = arrays.narrow(table, axis, lo, hi)
    before = min(max(-start, 0), stop - start)
    after = stop - start - before - (hi - lo)
    if not before and not after:
        return part
    if outside == 0:
        return arrays.widen(part, axis, before, after)
    xp = arrays.namespace(part)
    parts = [part]
    for place, planes in ((0, before), (len(parts) + 1, after)):
        shape = list(part.shape)
        shape[axis] = planes
        filler = arrays.zeros(tuple(shape), arrays.dtype_of(part), part) + outside
        parts.insert(place, filler)
    return xp.concat(parts, axis=axis)
