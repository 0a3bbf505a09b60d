"""Ranges of planes as operators: `Crop` keeps one, `Pad` puts zeros, or mirrors, around one.

With zeros each is the other's adjoint. Ranges that are data are `plane_windows`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from linops import arguments, arrays
from linops.arrays import Array
from linops.cost import Cost
from linops.elementary.axes import (
    Cut,
    axis_number,
    cuts_named,
    map_members,
    resized,
    resized_one,
    window_rule,
)
from linops.errors import ShapeError
from linops.linear_operator import LinearOperator
from linops.rule import Member, Rule
from linops.space import AnySpace, Space

__all__ = ["Crop", "Pad"]

Pairs = Mapping[str | int, tuple[int, int]] | Sequence[tuple[int, int]]
"""Two numbers for some axes by name or number, or for each axis in order."""


class Crop(LinearOperator):
    """A range of planes along some axes.

    Parameters
    ----------
    space
        What is cropped.
    ranges
        `{axis: (start, stop)}`, axes by name or number; or one pair for each axis.
    """

    batched = True
    _serves_complex: ClassVar[bool] = True
    _exact: ClassVar[bool] = True
    _aliases = True

    def __init__(self, space: Space, ranges: Pairs) -> None:
        cuts, small = [], space
        for axis, (start, stop) in _by_axis(space, ranges, "Crop", "(start, stop)").items():
            number = axis_number(space, axis)
            if not 0 <= start <= stop <= space.shape[number]:
                raise ShapeError(
                    f"Crop: planes {start} to {stop} of axis {axis!r} are outside its "
                    f"{space.shape[number]} planes"
                )
            cuts.append((0, number, int(start)))
            small = resized_one(small, number, stop - start)
        super().__init__(space, small, window_rule(space, cuts))
        self._cuts = tuple(cuts)

    @classmethod
    def along(
        cls,
        space: AnySpace,
        cuts: Sequence[Cut],
        start: int,
        stop: int,
        members: tuple[Member, ...] | None = None,
    ) -> Crop:
        """The crop of several members of `space` to one range of planes; `members` as for
        `PlaneMask`."""
        small = resized(space, cuts, stop - start)
        return _make(Crop, space, small, [(*c, start) for c in cuts], members)

    def _apply(self, x: Any) -> Any:
        return _crop(x, self.codomain, self._cuts)

    def _apply_adjoint(self, y: Any) -> Any:
        return _pad(y, self.domain, self._cuts)

    def _make_adjoint(self) -> LinearOperator:
        return _make(Pad, self.codomain, self.domain, self._cuts, self.rule.domain)

    def _input_range(self, axis: str, start: int, stop: int) -> tuple[int, int]:
        shift = _shift(self.rule, self._cuts, axis)
        return start + shift, stop + shift

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator | None:
        if padded:
            return None
        cuts = cuts_named(self.rule, axis)
        kept = [cut for cut in self._cuts if cut[:2] not in cuts]
        lo, hi = self._input_range(axis, start, stop)
        source = resized(self.domain, cuts, hi - lo)
        target = resized(self.codomain, cuts, stop - start)
        return _make(Crop, source, target, kept, self.rule.domain)

    def _cost(self) -> Cost:
        return Cost.streaming(self.codomain, self.codomain, 0.0)


class Pad(LinearOperator):
    """Planes put around a range of planes; with zeros the adjoint of `Crop`.

    Parameters
    ----------
    space
        What is padded.
    widths
        `{axis: (before, after)}`, planes to add, axes by name or number; or one pair for each
        axis, as NumPy takes them.
    mode
        What stands in them, by NumPy's names: `"zeros"`; `"edge"`, the last plane; `"reflect"`,
        the mirror about it; `"symmetric"`, the mirror with the last plane twice; `"wrap"`, the
        planes of the other end. With another mode than zeros it is an
        `linops.stencils.Extension`, whose adjoint adds every plane to the one it was read from.

    Raises
    ------
    ShapeError
        Where an axis is not there, or a width is negative.
    ValueError
        For another mode.
    """

    batched = True
    _serves_complex: ClassVar[bool] = True
    _exact: ClassVar[bool] = True

    def __new__(cls, space: Any = None, widths: Any = None, *, mode: str = "zeros") -> Any:
        # Without arguments it is unpickled.
        return object.__new__(cls) if mode == "zeros" else _extended(space, widths, mode=mode)

    def __init__(self, space: Space, widths: Pairs, *, mode: str = "zeros") -> None:
        cuts, large = [], space
        for number, (before, after) in _widths(space, widths).items():
            cuts.append((0, number, before))
            large = resized_one(large, number, space.shape[number] + before + after)
        super().__init__(space, large, window_rule(space, cuts))
        self._cuts = tuple(cuts)

    @cached_property
    def _aliases(self) -> bool:  # type: ignore[override]
        # Without planes to add an array is handed on as it is.
        pairs = zip(self.domain.members, self.codomain.members, strict=True)
        return any(small.shape == large.shape for small, large in pairs)

    @classmethod
    def along(
        cls,
        space: AnySpace,
        cuts: Sequence[Cut],
        start: int,
        stop: int,
        members: tuple[Member, ...] | None = None,
    ) -> Pad:
        """From planes `start` to `stop` into several members of `space`; `members` as for
        `PlaneMask`."""
        small = resized(space, cuts, stop - start)
        return _make(Pad, small, space, [(*c, start) for c in cuts], members)

    def _apply(self, x: Any) -> Any:
        return _pad(x, self.codomain, self._cuts)

    def _apply_adjoint(self, y: Any) -> Any:
        return _crop(y, self.domain, self._cuts)

    def _make_adjoint(self) -> LinearOperator:
        return _make(Crop, self.codomain, self.domain, self._cuts, self.rule.domain)

    def _input_range(self, axis: str, start: int, stop: int) -> tuple[int, int]:
        shift = _shift(self.rule, self._cuts, axis)
        return start - shift, stop - shift

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator | None:
        if padded:
            return None
        cuts = cuts_named(self.rule, axis)
        extent = self.domain.members[cuts[0][0]].shape[cuts[0][1]]
        lo, hi = self._input_range(axis, start, stop)
        first = min(max(lo, 0), extent)
        last = max(min(hi, extent), first)
        kept = [cut for cut in self._cuts if cut[:2] not in cuts]
        shifted = [(*cut, min(max(first - lo, 0), stop - start)) for cut in cuts]
        source = resized(self.domain, cuts, last - first)
        target = resized(self.codomain, cuts, stop - start)
        return _make(Pad, source, target, kept + shifted, self.rule.domain)

    def _cost(self) -> Cost:
        return Cost.streaming(self.domain, self.codomain, 0.0)


@arguments.checked
def _extended(space: Space, widths: Pairs, *, mode: str) -> LinearOperator:
    from linops.stencils.extension import Extension

    kinds = {"edge": "edge", "symmetric": "even", "reflect": "reflect", "wrap": "periodic"}
    if mode not in kinds:
        raise ValueError(f"Pad: mode is 'zeros' or one of {tuple(kinds)}, got {mode!r}")
    return Extension._of_widths(space, _widths(space, widths), kinds[mode])


def _widths(space: Space, given: Pairs) -> dict[int, tuple[int, int]]:
    """Planes to add before and after each axis, by its number."""
    found = {}
    for axis, (before, after) in _by_axis(space, given, "Pad", "(before, after)").items():
        if before < 0 or after < 0:
            raise ShapeError(
                f"Pad: widths of axis {axis!r} are {before} and {after}; they are not negative "
                "(Crop takes planes away)"
            )
        found[axis_number(space, axis)] = int(before), int(after)
    return found


def _by_axis(
    space: Space, given: Pairs, owner: str, pair: str
) -> Mapping[str | int, tuple[int, int]]:
    named = given if isinstance(given, Mapping) else None
    if named is None and isinstance(given, Sequence) and len(given) == space.ndim:
        named = dict(enumerate(given))
    if named is None or not all(
        isinstance(two, Sequence) and not isinstance(two, str) and len(two) == 2
        for two in named.values()
    ):
        raise ShapeError(
            f"{owner} of {space} takes {{axis: {pair}}}, or one such pair for each of its "
            f"{space.ndim} axes, got {given!r}"
        )
    return named


_Window = TypeVar("_Window", Crop, Pad)


def _make(
    cls: type[_Window],
    domain: AnySpace,
    codomain: AnySpace,
    cuts: Any,
    members: tuple[Member, ...] | None = None,
) -> _Window:
    # Crop and Pad from their parts; the public constructors derive one space from the other.
    rule = window_rule(domain, cuts, members=members)
    return cls._made(domain, codomain, rule, _cuts=tuple(cuts))


def _shift(rule: Rule, cuts: Sequence[tuple[int, int, int]], name: str) -> int:
    where = cuts_named(rule, name)
    return next((start for m, p, start in cuts if (m, p) in where), 0)


def _crop(x: Any, target: AnySpace, cuts: Sequence[tuple[int, int, int]]) -> Any:
    def crop(part: Array, number: int, member: Space) -> Array:
        for m, position, start in cuts:
            if m == number:
                stop = start + member.shape[position]
                part = arrays.narrow(part, position - member.ndim, start, stop)
        return part

    return map_members(crop, x, target)


def _pad(x: Any, target: AnySpace, cuts: Sequence[tuple[int, int, int]]) -> Any:
    def pad(part: Array, number: int, member: Space) -> Array:
        for m, position, start in cuts:
            if m == number:
                axis = position - member.ndim
                after = member.shape[position] - start - part.shape[axis]
                part = arrays.widen(part, axis, start, after)
        return part

    return map_members(pad, x, target)
