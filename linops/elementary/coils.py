"""Coil sensitivities: one image as every receiver coil of an MRI scanner sees it."""

from __future__ import annotations

from typing import ClassVar

from linops import arrays
from linops.arrays import Array
from linops.elementary.axes import numbered
from linops.errors import ShapeError
from linops.linear_operator import LinearOperator
from linops.precision import complex_of
from linops.rule import Axis, Rule
from linops.space import Space

__all__ = ["Coils"]


class Coils(LinearOperator):
    """`maps[c] * x` for each coil c, along a new first axis; adjoint `sum_c conj(maps[c]) y[c]`.

    Parameters
    ----------
    maps
        Sensitivities, `(coil, *shape)`; a NumPy array is copied.
    space
        The domain, complex; by default that of one map.
    mask
        Where the object may be, of the domain's shape: maps are multiplied by it.

    Raises
    ------
    ShapeError
        Where maps, space and mask do not fit.

    Notes
    -----
    A scan of many coils, sampled where `sampled` is 1:

    >>> import numpy as np
    >>> import linops as lo
    >>> maps, sampled = np.ones((4, 8, 8), "complex64"), np.eye(8, dtype="float32")
    >>> image = lo.Space((8, 8), "complex64", axes=("y", "x"))
    >>> S = lo.Coils(maps, image)
    >>> F = lo.FFT(image)
    >>> A = lo.Repeat(lo.Diagonal(sampled, F.codomain) @ F, 4, axis="coil") @ S
    >>> A.codomain.shape, str(A.rule)
    ((4, 8, 8), 'y! x! -> coil ky! kx!')
    """

    batched = True
    blockwise = True
    _serves_complex: ClassVar[bool] = True
    _exact: ClassVar[bool] = True
    domain: Space

    def __init__(
        self, maps: Array, space: Space | None = None, *, mask: Array | None = None
    ) -> None:
        maps = arrays.asarray(maps, "Coils", "maps")
        if maps.ndim < 1:
            raise ShapeError("Coils: maps have a first axis of coils, got a scalar")
        shape = tuple(int(n) for n in maps.shape)
        if space is None:
            space = Space(shape[1:], complex_of(arrays.dtype_of(maps)))
        if space.shape != shape[1:] or not space.is_complex:
            raise ShapeError(
                f"Coils: maps of shape {shape} act on complex arrays of shape {shape[1:]}, got "
                f"{space}"
            )
        if mask is not None:
            mask = arrays.asarray(mask, "Coils", "mask")
            if tuple(mask.shape) != space.shape:
                raise ShapeError(
                    f"Coils: the mask has the shape {space.shape} of the domain, got "
                    f"{tuple(mask.shape)}"
                )
            maps = maps * arrays.convert(mask, maps)
        names = space.axes or tuple(numbered(space.ndim))
        coil = "coil" if "coil" not in names else "coil_receiver"
        spacing = space.spacing and (1.0, *space.spacing)
        axes = space.axes and (coil, *space.axes)
        row = tuple(map(Axis, names))
        every = (Axis(coil), *row)
        super().__init__(
            space, Space(shape, space.dtype, axes, spacing), Rule((row,), (every,), (every,))
        )
        self.maps = arrays.own(maps, space.dtype)

    def _apply(self, x: Array) -> Array:
        xp = arrays.namespace(x)
        return self._beside("maps", x) * xp.expand_dims(x, axis=-self.domain.ndim - 1)

    def _apply_adjoint(self, y: Array) -> Array:
        products = arrays.conj(self._beside("maps", y)) * y
        return arrays.namespace(y).sum(products, axis=-self.domain.ndim - 1)

    def _gram_diagonal(self, weights: Array | None) -> Array:
        square = abs(self._beside("maps", self.maps)) ** 2
        if weights is not None:
            square = square * arrays.convert(weights, square)
        return arrays.namespace(square).sum(square, axis=0)
