"""Offsets of a `Surface` as a differentiable function of its parameters.

The sampler is differentiated by the library that its parameters belong to, JAX or torch, and runs
whole. What offsets do to rays is in `geometries/geometry_gradient.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from geometries.detector import Detector
from geometries.surfaces import Surface
from linops import arrays
from linops.arrays import Array
from linops.errors import GeometryError
from linops.linear_operator import LinearOperator
from linops.space import ProductSpace, Space
from linops.transforms.from_function import linearize

__all__ = ["SampledMoves", "parameter_spaces", "with_parameters"]


def parameter_spaces(surface: Surface | None) -> tuple[Space, ...]:
    """The space of each parameter, in its own dtype; none without a surface."""
    given = () if surface is None else surface.parameters
    return tuple(Space(tuple(p.shape), arrays.dtype_of(p)) for p in given)


def with_parameters(detector: Detector, parameters: Sequence[Array]) -> Detector:
    """The same cells on the same surface with other parameters, of its library or NumPy."""
    surface = detector.surface
    if surface is None or not parameters:
        return detector
    own = surface.parameters[0]
    given = [p if arrays.is_numpy(own) else arrays.convert(p, own) for p in parameters]
    return Detector(detector.shape, detector.pitch, detector.offset, surface.with_parameters(given))


class SampledMoves(LinearOperator):
    """Moves of frames and parameters to moves of frames, offsets and heights, linear at a point.

    Parameters
    ----------
    domain
        Frames, then parameters.
    codomain
        Frames, offsets `(views, rows, cols, 3)`, heights `(rows,)`, which stay.
    detector
        The cells, their surface at the point; its parameters belong to JAX or torch.
    sample
        The offsets of a detector.

    Raises
    ------
    GeometryError
        For parameters in NumPy, in which nobody differentiates.
    """

    def __init__(
        self,
        domain: ProductSpace,
        codomain: ProductSpace,
        detector: Detector,
        sample: Callable[[Detector], Array],
    ) -> None:
        super().__init__(domain, codomain, name="derivative of the sampler")
        surface = detector.surface
        assert surface is not None
        own = surface.parameters
        if all(map(arrays.is_numpy, own)):
            raise GeometryError(
                "a surface with NumPy parameters has no derivative in them; give the parameters as "
                "torch or JAX arrays, and write the sampler in that library"
            )
        self._count = len(codomain.members) - 2
        self._shapes = tuple(tuple(p.shape) for p in own)
        self._wide = np.result_type(*map(arrays.dtype_of, own))
        target = codomain.members[-2].dtype

        def offsets(packed: Array) -> Array:
            return arrays.cast(sample(with_parameters(detector, self._unpacked(packed))), target)

        self.at = self._packed(own)
        self._push, self._pull = linearize(offsets, self.at)

    def _apply(self, moves: tuple[Array, ...]) -> tuple[Array, ...]:
        own = arrays.convert(self._packed(moves[self._count :]), self.at)
        offsets = arrays.convert(self._push(own), moves[0])
        heights = self.codomain.members[-1]
        still = arrays.zeros(heights.shape, heights.dtype, offsets)
        return (*moves[: self._count], offsets, still)

    def _apply_adjoint(self, moves: tuple[Array, ...]) -> tuple[Array, ...]:
        packed = arrays.convert(self._pull(arrays.convert(moves[-2], self.at)), moves[0])
        spaces = self.domain.members[self._count :]
        own = zip(self._unpacked(packed), spaces, strict=True)
        return (*moves[: self._count], *(arrays.cast(part, s.dtype) for part, s in own))

    def _make_conjugate(self) -> LinearOperator:
        return self

    def _packed(self, parts: Sequence[Array]) -> Array:
        xp = arrays.namespace(parts[0])
        flat = [xp.reshape(arrays.cast(part, self._wide), (-1,)) for part in parts]
        return xp.concat(flat, axis=0)

    def _unpacked(self, packed: Array) -> list[Array]:
        xp = arrays.namespace(packed)
        found, start = [], 0
        for shape in self._shapes:
            size = math.prod(shape)
            found.append(xp.reshape(packed[start : start + size], shape))
            start += size
        return found
