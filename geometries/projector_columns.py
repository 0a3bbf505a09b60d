"""`ProjectorColumns`: a projector on part of the plane, what `A.columns(index)` gives.

At a cost in proportion to the positions, by the compiled kernels; the projector itself is in
`geometries/projector.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.compiled.hosted import apply_on_host
from linops.cost import Cost
from linops.linear_operator import LinearOperator
from linops.space import Space

if TYPE_CHECKING:
    from geometries.projector import Projector

__all__ = ["ProjectorColumns"]


class ProjectorColumns(LinearOperator):
    """A projector on a subset of in-plane positions with all their slices.

    The domain is `(s,)` for images and `(z, s)` for volumes; the cost is in proportion to s.
    """

    batched = True
    _exact: ClassVar[bool] = True

    def __init__(self, base: Projector, index: Array) -> None:
        slices = base.domain.shape[:-2]
        names = ("z", "s") if slices else ("s",)
        domain = Space((*slices, int(index.shape[0])), base.domain.dtype, names)
        right = " ".join(axis.name for axis in base.rule.codomain[0])
        super().__init__(
            domain,
            base.codomain,
            f"{' '.join(names)} -> {right}",
            precision=base.precision,
            name="Projector.columns",
            tags=("nonnegative",),
        )
        self.base = base
        self.index = arrays.snapshot(index)

    def _apply(self, x: Array) -> Array:
        return apply_on_host(self, x)

    def _apply_adjoint(self, y: Array) -> Array:
        return apply_on_host(self, y, adjoint=True)

    def _make_conjugate(self) -> LinearOperator:
        return self

    def _gram_diagonal(self, weights: Array | None) -> Array:
        from linops.elementary.select import Restriction

        return Restriction(self.base.domain, self.index)(self.base._gram_diagonal(weights))

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator | None:
        if axis == "s":
            return None if padded else ProjectorColumns(self.base, self.index[start:stop])
        if padded and self.base.grid.dims == 2:
            # The planar kernels for lists of cells know no planes that are inert.
            return None
        block = self.base._block(axis, start, stop, padded)
        return block.columns(self.index)

    def _cost(self) -> Cost:
        whole = self.base.cost()
        share = self.domain.size / max(self.base.domain.size, 1)
        return Cost(whole.flops * share, whole.read * share, whole.written, 0.0)

    @property
    def _host_orders(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:  # type: ignore[override]
        return None if self.base.grid.dims == 2 else ((1, 0), (0, 2, 1))

    def _forward_host(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.base._runner.forward_columns(x, arrays.to_numpy(self.index)))

    def _adjoint_host(self, y: np.ndarray) -> np.ndarray:
        return np.asarray(self.base._runner.adjoint_columns(y, arrays.to_numpy(self.index)))
