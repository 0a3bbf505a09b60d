"""Stencils with a constant value outside: affine maps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.cost import Cost
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.rule import Rule
from linops.stencils import slices
from linops.stencils.boundary import sides
from linops.stencils.stencil import Stencil

__all__ = ["AffineStencil", "affine"]


def affine(cls: type, arguments: Mapping[str, Any]) -> Operator:
    """The map of a declaration some of whose boundaries are constants other than 0."""
    own = dict(arguments)
    space, boundary = own["space"], own.pop("boundary")
    components = own.get("components")
    led = 1 if components and components[1] is not None else 0
    ndim = space.ndim - led
    inputs = space.shape[0] if led else 1
    listed = boundary if isinstance(boundary, list) and led and inputs > 1 else [boundary] * inputs
    pairs = [sides(one, ndim, cls.__name__) for one in listed]
    named = [
        [tuple(side if isinstance(side, str) else "zero" for side in pair) for pair in row]
        for row in pairs
    ]
    linear = cls(**own, boundary=named if isinstance(boundary, list) and led else named[0])
    values = np.array(
        [[[side if not isinstance(side, str) else np.nan for side in pair] for pair in row]
         for row in pairs],
        linear.codomain.with_dtype(linear.domain.dtype).dtype,
    )  # fmt: skip
    known = tuple(
        tuple(tuple(not isinstance(side, str) for side in pair) for pair in row) for row in pairs
    )
    return AffineStencil(linear, np.where(np.isnan(values), 0, values), known)


class AffineStencil(Operator):
    """`A x + b`: a stencil whose boundary is a constant value, in which it is differentiable.

    `stencil` is the one with zeros outside, which is its Jacobian everywhere. It has no adjoint.
    """

    batched = True
    _exact: ClassVar[bool] = True

    def __init__(self, stencil: Stencil, values: Array, known: Any) -> None:
        super().__init__(stencil.domain, stencil.codomain, stencil.rule, name=stencil.name)
        self.stencil = stencil
        self.values = arrays.snapshot(values)
        self._known = known

    @property
    def H(self) -> LinearOperator:
        """An affine map has no adjoint; that of its linear part is `jacobian(x).H`."""
        raise TypeError(
            f"{self.name} with a constant boundary is affine and has no adjoint; its linear part "
            "has: use .jacobian(x).H, or boundary='zero'"
        )

    T = H

    def _apply(self, x: Array) -> Array:
        base = self.stencil
        wide = slices.wide(x)
        held = arrays.convert(self.values, wide)
        d = len(base._lines[0])
        values = [
            [
                [
                    arrays.cast(held[c, a, s], arrays.dtype_of(wide)) if known else None
                    for s, known in enumerate(pair)
                ]
                for a, pair in enumerate(row)
            ]
            for c, row in enumerate(self._known)
        ]
        parts = slices.forward(
            slices.components(wide, d, base.domain.ndim > d),
            base._lines, base._taps, base._fields(wide), base._count, base.starts, values,
        )  # fmt: skip
        return arrays.cast(slices.joined(parts, d, base._outputs is not None), arrays.dtype_of(x))

    def _jacobian(self, x: Any) -> LinearOperator:
        return self.stencil

    def _input_range(self, axis: str, start: int, stop: int) -> tuple[int, int]:
        return self.stencil._input_range(axis, start, stop)

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> Operator | None:
        if padded:
            return None
        inner = self.stencil._block(axis, start, stop, padded)
        if inner is None:
            return None
        assert isinstance(inner, Stencil)
        return AffineStencil(inner, self.values, self._known)

    def _derive_rule(self) -> Rule:
        return self.stencil.rule

    def _cost(self) -> Cost:
        return self.stencil.cost()
