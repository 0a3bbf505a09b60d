"""`Stencil`: taps, reach, boundary, coefficient fields and locations, declared once.

Forward, adjoint, rule, blocks, diagonal and cost follow from the declaration. How a stencil is
applied is in `linops/stencils/slices.py` (any namespace) and `linops/stencils/rows.py` (compiled);
operators with a name are declarations in files of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.compiled.pallas import PallasOptions
from linops.cost import Cost
from linops.errors import ShapeError
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.relations import fresh_name
from linops.rule import Axis, Rule
from linops.space import Space
from linops.stencils import boundary as boundaries
from linops.stencils import pallas_windows, slices
from linops.stencils.declaration import (
    count_planes,
    list_taps,
    read_boundaries,
    read_locations,
)
from linops.stencils.line import Line
from linops.stencils.rows import Rows, servable
from linops.stencils.slices import Tap
from linops.stencils.symmetry import is_symmetric, shift_diagonal

__all__ = ["Stencil"]

Table = Mapping[Any, Any]


class Stencil(LinearOperator):
    """`y[i] = sum_o w[o] x[i + o]` on a grid, with a boundary for what is beyond its ends.

    Parameters
    ----------
    space
        The domain.
    taps
        A table `{offset: weight}`; an offset is a number in one dimension, else one number an
        axis. A weight is a number, or an array of the output's shape (a coefficient field, in which
        the operator is differentiable), or a pair of both, their product. Or a function of
        shifted views, such as
        `lambda u: u(0, 1) - 2 * u(0, 0) + u(0, -1)`: a function that is not linear gives an
        `Operator` with a Jacobian. With `components`: a table of tables, `{(output, input): taps}`.
    boundary
        `"periodic"`, `"zero"`, `"even"`, `"odd"`, `"edge"` or a number, the constant value
        outside; one for all axes, one an axis, or a pair an axis for its lower and upper side.
        With `components` a list gives one such boundary for each input component. A constant
        other than 0 makes the map affine: an `Operator` whose Jacobian is the stencil with zeros.
    source, target
        Where input and output stand: `"cell"`, or `"face"` (face f is the left one of cell f), one
        for all axes or one an axis; `"vertex"` is faces along all axes. An axis of n cells has
        n + 1 faces, n if periodic.
    components
        `(outputs, inputs)`: both sides have a first axis of components; a side with None has none.

    Raises
    ------
    ShapeError
        Where offsets, fields or components do not fit the space.
    ValueError
        For an unknown boundary or location.

    Notes
    -----
    In float16 sums run in float32.

    >>> import numpy as np
    >>> A = Stencil(Space(4), {-1: 1.0, 0: -2.0, 1: 1.0}, boundary="even")
    >>> A @ np.array([1, 0, 0, 2], "float32")
    array([-1.,  1.,  2., -2.], dtype=float32)
    """

    batched = True
    _exact: ClassVar[bool] = True
    domain: Space
    codomain: Space

    def __new__(cls, *args: Any, **options: Any) -> Any:
        if args or options:
            other = _another(cls, args, options)
            if other is not None:
                return other
        return object.__new__(cls)

    def __init__(
        self,
        space: Space,
        taps: Table | Callable[..., Any],
        boundary: Any = "zero",
        *,
        source: str | Sequence[str] = "cell",
        target: str | Sequence[str] = "cell",
        components: tuple[int | None, int | None] | None = None,
        name: str | None = None,
        tags: Sequence[str] = (),
    ) -> None:
        owner = name or type(self).__name__
        if not isinstance(space, Space):
            raise ShapeError(f"{owner} takes one array: pick a member of the product space first")
        outputs, inputs = components or (None, None)
        led = 0 if inputs is None else 1
        if inputs is not None and (space.ndim < 2 or space.shape[0] != inputs):
            raise ShapeError(
                f"{owner}: the first axis of {space} holds the {inputs} input components"
            )
        grid = space.shape[led:]
        if not grid:
            raise ShapeError(f"{owner} takes a space with one or more axes, got {space}")
        if callable(taps):
            from linops.stencils.views import linear_taps

            taps = linear_taps(taps, len(grid)) or {}
        pairs = read_boundaries(boundary, len(grid), inputs or 1, owner)
        faces = read_locations(source, len(grid), owner), read_locations(target, len(grid), owner)
        tables = taps if components else {(0, 0): taps}
        counts = count_planes(grid, pairs[0], *faces)
        listed, fields = list_taps(tables, (outputs or 1, inputs or 1), counts, space, owner)
        reach = [
            (
                max(0, *(-tap.offset[a] for tap in listed)),
                max(0, *(tap.offset[a] for tap in listed)),
            )
            if listed
            else (0, 0)
            for a in range(len(grid))
        ]
        lines = tuple(
            tuple(
                Line(n, count, 0, low, high, pair, face, closing=count > n)
                for n, count, (low, high), pair, face in zip(
                    grid, counts, reach, row, faces[0], strict=True
                )
            )
            for row in pairs
        )
        self._set_up(
            space, lines, listed, fields, outputs, np.zeros(len(grid), np.int32), owner, tuple(tags)
        )

    def _set_up(
        self,
        domain: Space,
        lines: tuple[tuple[Line, ...], ...],
        taps: tuple[Tap, ...],
        fields: tuple[Array, ...],
        outputs: int | None,
        starts: Array,
        name: str,
        tags: tuple[str, ...] = (),
        sliced: bool = False,
        pallas: PallasOptions | None = None,
    ) -> None:
        # lines: one row for each input component; starts: of padded blocks, their first plane.
        first = lines[0]
        led = domain.ndim - len(first)
        names = (domain.axes or tuple(f"axis{i}" for i in range(domain.ndim)))[led:]
        spacing = domain.spacing[led:] if domain.spacing else None
        own = None if led == 0 else (domain.axes[0] if domain.axes else None)
        component = own or fresh_name("component", set(names))
        left = [
            Axis(n, line.halo, line.ring and line.halo > 0, splits=line.splits)
            for n, line in zip(names, first, strict=True)
        ]
        right = [Axis(a.name, splits=a.splits) for a in left]
        shape = tuple(line.count for line in first)
        axes = None if domain.axes is None else names
        if led:
            left.insert(0, Axis(component, splits=False))
        if outputs is not None:
            # Components that are mixed are neither aligned nor summed part by part.
            name_out = fresh_name("component_out", {component, *names}) if led else component
            right.insert(0, Axis(name_out, splits=not led))
            shape, spacing = (outputs, *shape), None
            axes = None if axes is None else (component, *axes)
        fields_rule = tuple(tuple(map(Axis, names)) for _ in fields)
        rule = Rule((tuple(left),), (tuple(right),), fields_rule)
        codomain = Space(shape, domain.dtype, axes, spacing)
        LinearOperator.__init__(self, domain, codomain, rule, name=name, tags=tags)
        self.coefficients = fields
        self.starts = arrays.snapshot(starts)
        self._lines, self._taps, self._outputs = lines, taps, outputs
        self._sliced, self._pallas = sliced, pallas

    # --- what it does ---------------------------------------------------------------------

    def _apply(self, x: Array) -> Array:
        if type(x) is np.ndarray and self._compiled is None:
            return self._by_rows(x, False)
        d = len(self._lines[0])
        wide = slices.wide(x)
        parts = self._engine(x).forward(
            slices.components(wide, d, self.domain.ndim > d),
            self._lines, self._taps, self._fields(wide), self._count, self.starts, *self._told(x),
        )  # fmt: skip
        return arrays.cast(slices.joined(parts, d, self._outputs is not None), arrays.dtype_of(x))

    def _apply_adjoint(self, y: Array) -> Array:
        if type(y) is np.ndarray and self._compiled is None:
            return self._by_rows(y, True)
        d = len(self._lines[0])
        wide = slices.wide(y)
        parts = self._engine(y).adjoint(
            slices.components(wide, d, self._outputs is not None),
            self._lines, self._taps, self._fields(wide), self.starts, *self._told(y),
        )  # fmt: skip
        return arrays.cast(slices.joined(parts, d, self.domain.ndim > d), arrays.dtype_of(y))

    @property
    def backend(self) -> str:
        """What runs: on NumPy arrays `"rows"` (compiled passes) or `"slices"`, with the reason; on
        JAX arrays `"pallas"` where it was asked for. Other arrays are served by slices.
        """
        host = "rows" if self._compiled is None else f"slices ({self._compiled})"
        return host if self._pallas is None else f"pallas on JAX arrays, {host} on NumPy's"

    def with_backend(self, backend: str, **options: Any) -> Stencil:
        """The same stencil by a named engine.

        Parameters
        ----------
        backend
            `"rows"`, `"slices"`, `"pallas"`, or `"auto"`: rows on NumPy arrays, else slices.
        **options
            Of Pallas: `block_shape`, `num_warps`, `num_stages`, `use_triton`, `interpret`, as
            `linops.compiled.pallas.PallasOptions` documents them. On a CPU kernels of Pallas run
            with `interpret=True` alone, and never by choice of their own.

        Raises
        ------
        ValueError
            For an engine that there is not, or one that cannot serve this stencil, with the reason.
        """
        if backend not in ("auto", "rows", "slices", "pallas"):
            raise ValueError(
                f"{self.name}: the engine is 'auto', 'rows', 'slices' or 'pallas', got {backend!r}"
            )
        if options and backend != "pallas":
            raise ValueError(
                f"{self.name}: {', '.join(options)} are options of backend='pallas', "
                f"got {backend!r}"
            )
        if backend == "rows":
            reason = servable(self._lines, self._taps, self.coefficients, self.domain.dtype)
            if reason is not None:
                raise ValueError(f"{self.name}: the row engine cannot serve it: {reason}")
        told = None
        if backend == "pallas":
            told = PallasOptions(**options)
            reason = pallas_windows.unsupported(len(self._lines[0]), told)
            if reason is not None:
                raise ValueError(f"{self.name}: Pallas cannot serve it: {reason}")
        return self._rebuilt(sliced=backend == "slices", pallas=told)

    def _engine(self, x: Array) -> Any:
        return slices if self._pallas is None or not arrays.is_jax(x) else pallas_windows

    def _told(self, x: Array) -> tuple[PallasOptions, ...]:
        return () if self._pallas is None or not arrays.is_jax(x) else (self._pallas,)

    @cached_property
    def _compiled(self) -> str | None:
        """Why compiled passes do not run on NumPy arrays; None where they do."""
        if self._sliced:
            return "asked for"
        return servable(self._lines, self._taps, self.coefficients, self.domain.dtype)

    def _by_rows(self, x: np.ndarray, adjoint: bool) -> np.ndarray:
        led = self.domain.ndim > len(self._lines[0]) if adjoint else self._outputs is not None
        total: Any = None
        for number in sorted({tap.coefficient for tap in self._taps}) or [-1]:
            field = None if number < 0 else self.coefficients[number]
            source = x if field is None or not adjoint else x * slices.conjugate(field)
            part = self._passes_by_row(adjoint, number).apply(source, led)
            if field is not None and not adjoint:
                part *= field
            total = part if total is None else np.add(total, part, out=total)
        return np.asarray(total)

    def _passes_by_row(self, adjoint: bool, coefficient: int = -1) -> Rows:
        """The passes of the taps with one coefficient field, or of those without."""
        made: dict[tuple[bool, int], Rows] = self.__dict__.setdefault("_cache_rows", {})
        key = adjoint, coefficient
        if key not in made:
            led = self._outputs is not None if adjoint else self.domain.ndim > len(self._lines[0])
            taps = [tap for tap in self._taps if tap.coefficient == coefficient]
            made[key] = Rows(self._lines, taps, self._count, self.domain.dtype, adjoint, led)
        return made[key]

    @property
    def _count(self) -> int:
        return 1 if self._outputs is None else self._outputs

    def _fields(self, like: Array) -> tuple[Array, ...]:
        cache = self.__dict__.setdefault("_cache_resident", {})
        return tuple(
            arrays.resident(cache, f"coefficient{k}", field, like)
            for k, field in enumerate(self.coefficients)
        )

    # --- what follows ---------------------------------------------------------------------

    def _make_adjoint(self) -> LinearOperator:
        if "self_adjoint" in self.tags:
            return self
        first = self._lines[0]
        d = len(first)
        whole = all(
            line == replace(line, lead=0, whole=None) for row in self._lines for line in row
        )
        plain = {kind for row in self._lines for line in row for kind in line.pair}
        # Around a ring, and over zeros, the adjoint is the stencil of mirrored taps.
        if not whole or not plain <= {"periodic", "zero"} or self.coefficients:
            return super()._make_adjoint()
        if (
            any(line.extent != line.count for line in first)
            or self._outputs is not None
            or self.domain.ndim > d
        ):
            return super()._make_adjoint()
        taps = tuple(
            tap._replace(offset=tuple(-o for o in tap.offset), weight=slices.conjugated(tap.weight))
            for tap in self._taps
        )
        lines = (tuple(replace(line, low=line.high, high=line.low) for line in first),)
        return self._rebuilt(lines=lines, taps=taps, name=f"{self.name}.H", tags=())

    def _make_conjugate(self) -> LinearOperator:
        if not self.domain.is_complex:
            return super()._make_conjugate()
        held = [arrays.dtype_of(field).kind for field in self.coefficients]
        if "c" not in held and not any(isinstance(tap.weight, complex) for tap in self._taps):
            return self
        taps = tuple(tap._replace(weight=slices.conjugated(tap.weight)) for tap in self._taps)
        fields = tuple(slices.conjugate(field) for field in self.coefficients)
        return self._rebuilt(taps=taps, fields=fields)

    def _complexified(self) -> LinearOperator | None:
        return self._rebuilt(domain=self.domain.complexify())

    def _derive_tags(self) -> frozenset[str]:
        tags = set(super()._derive_tags())
        if is_symmetric(self._lines, self._taps, self.coefficients, self.domain, self._outputs):
            tags.add("self_adjoint")
        return frozenset(tags)

    def _diagonal(self) -> Array | None:
        if len(self._lines) > 1 or self._outputs is not None or self.domain != self.codomain:
            return None
        lines = self._lines[0]
        if any(line.whole or line.lead for line in lines):
            return None
        total: Any = 0
        own = self._fields(self.starts if not self.coefficients else self.coefficients[0])
        for tap in self._taps:
            rows = [shift_diagonal(line, o) for line, o in zip(lines, tap.offset, strict=True)]
            part = np.asarray(
                tap.weight * math.prod(np.ix_(*rows)), np.result_type(self.domain.dtype)
            )
            if tap.coefficient >= 0:
                field = own[tap.coefficient]
                total = total + arrays.convert(part, field) * field
            else:
                total = total + part
        return arrays.cast(total, self.domain.dtype) if arrays.is_array(total) else None

    def _input_range(self, axis: str, start: int, stop: int) -> tuple[int, int]:
        line = self._lines[0][self._position(axis)]
        return start + line.lead - line.halo, stop + line.lead + line.halo

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator | None:
        names = [a.name for a in self.rule.codomain[0]]
        if self._outputs is not None and axis == names[0]:
            return self._component_block(start, stop) if stop > start and not padded else None
        k = self._position(axis)
        blocks = [row[k].block(start, stop, padded) for row in self._lines]
        found = blocks[0]
        if found is None:
            return None
        d = len(self._lines[0])
        lines = tuple(
            (*row[:k], block[0], *row[k + 1 :])
            for row, block in zip(self._lines, blocks, strict=True)
            if block is not None
        )
        shape = list(self.domain.shape)
        shape[self.domain.ndim - d + k] = found[2] - found[1]
        fields = tuple(_cut(field, k - d, start, stop, padded) for field in self.coefficients)
        starts = np.array(arrays.to_numpy(self.starts))
        starts[k] = start if padded else 0
        domain = Space(tuple(shape), self.domain.dtype, self.domain.axes, self.domain.spacing)
        return self._rebuilt(domain=domain, lines=lines, fields=fields, starts=starts, tags=())

    def _component_block(self, start: int, stop: int) -> LinearOperator | None:
        taps = tuple(
            tap._replace(output=tap.output - start)
            for tap in self._taps
            if start <= tap.output < stop
        )
        return self._rebuilt(taps=taps, outputs=stop - start, tags=())

    def _cost(self) -> Cost:
        size = self.codomain.size / max(self._count, 1)
        flops = 2.0 * size * len(self._taps)
        streaming = Cost.streaming(self.domain, self.codomain, flops)
        held = sum(
            float(math.prod(field.shape)) * arrays.dtype_of(field).itemsize
            for field in self.coefficients
        )
        item = self.domain.dtype.itemsize
        forward = math.prod(line.before + line.extent + line.after for line in self._lines[0])
        back = math.prod(
            line.count + 2 * (line.low + line.high + line.before + line.after)
            for line in self._lines[0]
        )
        work = 3.0 * item * (forward * len(self._lines) + size)
        away = 3.0 * item * (back * self._count + forward * len(self._lines))
        return Cost(flops, streaming.read + held, streaming.written, work, away)

    def _rebuilt(self, **changes: Any) -> Stencil:
        parts = {
            "domain": self.domain,
            "lines": self._lines,
            "taps": self._taps,
            "fields": self.coefficients,
            "outputs": self._outputs,
            "starts": self.starts,
            "name": self.name,
            "tags": tuple(sorted(self._declared_tags)),
            "sliced": self._sliced,
            "pallas": self._pallas,
        }
        return Stencil._opened(lambda made: made._set_up(**{**parts, **changes}))

    def _position(self, axis: str) -> int:
        names = [a.name for a in self.rule.domain[0]]
        return names.index(axis) - (self.domain.ndim - len(self._lines[0]))


def _another(cls: type, args: tuple[Any, ...], options: Mapping[str, Any]) -> Operator | None:
    """What is made instead, where the declaration is no linear map."""
    import inspect

    if (
        "boundary" not in options
        and not any(callable(a) or isinstance(a, (int, float, tuple, list)) for a in args[1:])
        and not callable(options.get("taps"))
    ):
        return None
    bound = inspect.signature(cls.__init__).bind(None, *args, **options).arguments  # type: ignore[misc]
    bound.pop("self", None)
    taps, boundary = bound.get("taps"), bound.get("boundary")
    space = bound.get("space")
    if cls is Stencil and callable(taps) and isinstance(space, Space):
        from linops.stencils.views import NonlinearStencil, linear_taps

        if linear_taps(taps, space.ndim, strict=False) is None:
            return NonlinearStencil(space, taps, bound.get("boundary", "zero"), bound.get("name"))
    if boundary is not None and boundaries.constants(boundary):
        from linops.stencils.affine import affine

        return affine(cls, bound)
    return None


def _cut(field: Array, axis: int, start: int, stop: int, padded: bool) -> Array:
    n = field.shape[axis]
    lo, hi = min(max(start, 0), n), max(min(stop, n), 0)
    hi = max(hi, lo)
    part = arrays.narrow(field, axis, lo, hi)
    if not padded:
        return part
    before = min(max(lo - start, 0), stop - start)
    return arrays.widen(part, axis, before, stop - start - before - (hi - lo))
