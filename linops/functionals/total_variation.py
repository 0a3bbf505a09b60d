"""Smoothed isotropic total variation, the prior of images that are flat in patches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.functionals.differences import Differences, compilable, passes, volume
from linops.space import Space
from linops.stencils.gradient import Gradient

__all__ = ["TotalVariation"]


class TotalVariation(Differences):
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
        *,
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
        # Of the whole: a block divides by the same number.
        self.count = max(space.size, 1) if reduction == "mean" else 1

    _hessian_held: ClassVar[float] = 14.0
    _term_flops: ClassVar[float] = 8.0

    @property
    def scale(self) -> float:
        """The factor in front of the sum over voxels."""
        return 1.0 / self.count

    def _on(self, space: Any) -> dict[str, Any]:
        return {"differences": Gradient(space)}

    def _value(self, x: Array) -> Any:
        if self._compilable(x):
            real, window = self._trim()
            x3, steps, eps, _ = self._arguments(x[real])
            return float(passes().tv_value(x3, *steps, eps, window)) * self.scale
        x = self._clean(x)
        lengths = self._lengths(self._differences(x))
        counted = self._counted(x)
        if counted is not None:
            xp = arrays.namespace(x)
            lengths = xp.where(counted, lengths, xp.zeros_like(lengths))
        return self._sum(lengths) * self.scale

    def _gradient(self, x: Array) -> Array:
        return self._form(x, x)

    def _form(self, x: Array, v: Array) -> Array:
        if self._compilable(x, v) and self.window is None:
            real, _ = self._trim()
            x3, steps, eps, scale = self._arguments(x[real])
            v3 = x3 if v is x else volume(v[real])
            out = np.zeros_like(x3)
            passes().tv_form(x3, v3, *steps, eps, scale, out)
            return self._back(out, real, v)
        same = v is x
        x = self._clean(x)
        d = self._differences(x)
        along = d if same else self._differences(self._clean(v))
        return self.differences.H @ (self._weights(d) * along)

    def _form_diagonal(self, x: Array) -> Array:
        if self._compilable(x) and self.window is None:
            real, _ = self._trim()
            x3, steps, eps, scale = self._arguments(x[real])
            out = np.zeros_like(x3)
            passes().tv_diagonal(x3, *steps, eps, scale, out)
            return self._back(out, real, x)
        x = self._clean(x)
        weights = self._weights(self._differences(x))
        n = self._space.ndim
        xp = arrays.namespace(x)
        total = xp.zeros_like(x)
        for a in range(n):
            one = xp.squeeze(weights, axis=-n - 1)
            mask = self._counted(x, pairs=a)
            if mask is not None:
                one = xp.where(mask, one, xp.zeros_like(one))
            count = self._space.shape[a] - 1
            part = arrays.narrow(one, a - n, 0, count) * (1.0 / self.spacing[a] ** 2)
            total = total + arrays.widen(part, a - n, 0, 1) + arrays.widen(part, a - n, 1, 0)
        return total

    def _hessian_form(self, x: Array, v: Array) -> Array:
        """`scale * G.H (G v / L - G x <G x, G v> / L^3)`, voxel by voxel, with L = |G x|."""
        xp = arrays.namespace(v)
        axis = -self._space.ndim - 1
        d = self._differences(self._clean(x))
        e = self._differences(self._clean(v))
        square = xp.expand_dims(self._lengths(d), axis=axis) ** 2
        along = xp.sum(d * e, axis=axis, keepdims=True) / square
        return self.differences.H @ (self._weights(d) * (e - d * along))

    def _differences(self, x: Array) -> Array:
        d = self.differences @ x
        if self.real is None:
            return d
        xp = arrays.namespace(d)
        masks = [
            xp.broadcast_to(self._shape_mask(self._planes(a, 1, False), a, x), self._space.shape)
            for a in range(self._space.ndim)
        ]
        return xp.where(xp.stack(masks), d, xp.zeros_like(d))

    def _lengths(self, d: Array) -> Array:
        xp = arrays.namespace(d)
        return xp.sqrt(xp.sum(d * d, axis=-self._space.ndim - 1) + self.eps)

    def _weights(self, d: Array) -> Array:
        """`scale / |G x|` where a voxel counts, with an axis for the components."""
        xp = arrays.namespace(d)
        weights = self.scale / self._lengths(d)
        counted = self._counted(d)
        if counted is not None:
            weights = xp.where(counted, weights, xp.zeros_like(weights))
        return xp.expand_dims(weights, axis=-self._space.ndim - 1)

    def _compilable(self, *elements: Array) -> bool:
        concrete = isinstance(self.eps, float) and (self.real is None or arrays.is_numpy(self.real))
        return concrete and compilable(self._space, *elements)

    def _back(self, out: np.ndarray, real: tuple[slice, ...], like: Array) -> Array:
        if self.real is None:
            return arrays.convert(out.reshape(self._space.shape), like)
        whole = np.zeros(self._space.shape, out.dtype)
        whole[real] = out.reshape(whole[real].shape)
        return arrays.convert(whole, like)

    def _arguments(self, x: Array) -> tuple[np.ndarray, tuple[Any, ...], Any, Any]:
        kind = self.domain.dtype.type
        steps = (1.0,) * (3 - self._space.ndim) + tuple(1.0 / h for h in self.spacing)
        return volume(x), tuple(kind(h) for h in steps), kind(self.eps), kind(self.scale)
