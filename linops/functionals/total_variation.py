"""Smoothed isotropic total variation, the prior of images that are flat in patches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.functionals.differences import DifferenceSurrogate, compilable, passes, volume
from linops.functionals.functional import Functional
from linops.operator import LinearOperator
from linops.space import Space
from linops.stencils.gradient import Gradient

__all__ = ["TotalVariation"]


class TotalVariation(Functional):
    """Sum (or mean) over voxels of `sqrt(sum over axes (difference / pitch)^2 + eps)`.

    Differences are forward ones and zero past the end of each axis.

    Parameters
    ----------
    space
        The domain, real, one or more axes.
    spacing
        Pitch of each axis, or one for all; by default the space's, 1 where it has none.
    eps
        Smoothing under the root, > 0, in squared units of the gradient; a constant volume has
        `sqrt(eps)` a voxel.
    reduction
        `"mean"` divides by the number of voxels, `"sum"` does not.

    Raises
    ------
    ValueError
        For eps that is not positive, a spacing that is not, or another reduction.
    """

    def __init__(
        self,
        space: Space,
        spacing: float | Sequence[float] | None = None,
        eps: float = 1e-6,
        reduction: Literal["mean", "sum"] = "mean",
    ) -> None:
        if not (math.isfinite(eps) and eps > 0):
            raise ValueError(f"eps is {eps}; it is a finite number > 0: at 0 there is no gradient")
        if reduction not in ("mean", "sum"):
            raise ValueError(f"reduction is {reduction!r}; it is 'mean' or 'sum'")
        if space.ndim == 0 or space.is_complex:
            raise ValueError(
                f"total variation takes a real space with one or more axes, got {space}"
            )
        if spacing is not None:
            space = Space(space.shape, space.dtype, space.axes, spacing)
        super().__init__(space)
        self.spacing = space.spacing or (1.0,) * space.ndim
        self.eps = float(eps)
        self.reduction = reduction
        self.differences = Gradient(space)

    @property
    def scale(self) -> float:
        """The factor in front of the sum over voxels."""
        return 1.0 / max(self.domain.size, 1) if self.reduction == "mean" else 1.0

    def surrogate(self, x: Array) -> LinearOperator:
        """`scale * G.H diag(1 / |G x|) G`, with `|G x|` smoothed as in the value."""
        return DifferenceSurrogate(self, self._admit(x))

    def _value(self, x: Array) -> Any:
        if compilable(self.domain, x):
            x3, steps, eps, _ = self._compiled(x)
            return float(passes().tv_value(x3, *steps, eps)) * self.scale
        lengths = self._lengths(x)
        return self.domain.inner(lengths, arrays.namespace(x).ones_like(lengths)) * self.scale

    def _gradient(self, x: Array) -> Array:
        return self._form(x, x)

    def _form(self, x: Array, v: Array) -> Array:
        if compilable(self.domain, x, v):
            x3, steps, eps, scale = self._compiled(x)
            v3 = x3 if v is x else volume(v)
            out = np.zeros_like(x3)
            passes().tv_form(x3, v3, *steps, eps, scale, out)
            return arrays.convert(out.reshape(self.domain.shape), v)
        lengths = self._lengths(x)
        xp = arrays.namespace(v)
        weights = xp.expand_dims(self.scale / lengths, axis=-self.domain.ndim - 1)
        return self.differences.H @ (weights * (self.differences @ v))

    def _form_diagonal(self, x: Array) -> Array:
        if compilable(self.domain, x):
            x3, steps, eps, scale = self._compiled(x)
            out = np.zeros_like(x3)
            passes().tv_diagonal(x3, *steps, eps, scale, out)
            return arrays.convert(out.reshape(self.domain.shape), x)
        weights = self.scale / self._lengths(x)
        n = self.domain.ndim
        total = None
        for a in range(n):
            count = self.domain.shape[a] - 1
            part = arrays.narrow(weights, a - n, 0, count) * (1.0 / self.spacing[a] ** 2)
            part = arrays.widen(part, a - n, 0, 1) + arrays.widen(part, a - n, 1, 0)
            total = part if total is None else total + part
        return total

    def _lengths(self, x: Array) -> Array:
        xp = arrays.namespace(x)
        d = self.differences @ x
        return xp.sqrt(xp.sum(d * d, axis=-self.domain.ndim - 1) + self.eps)

    def _compiled(self, x: Array) -> tuple[np.ndarray, tuple[Any, ...], Any, Any]:
        kind = self.domain.dtype.type
        steps = (1.0,) * (3 - self.domain.ndim) + tuple(1.0 / h for h in self.spacing)
        return volume(x), tuple(kind(h) for h in steps), kind(self.eps), kind(self.scale)
