"""The Fourier transform at any frequencies, by FINUFFT on the CPU.

Both directions run with one kernel and one oversampling, so that each is the transpose of the
other to rounding, whatever the accuracy of the transform itself.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from linops import arguments, arrays
from linops.arrays import Array
from linops.compiled.hosted import apply_on_host
from linops.cost import Cost, bytes_of
from linops.elementary.axes import axis_numbers, numbered
from linops.errors import ShapeError
from linops.linear_operator import LinearOperator
from linops.precision import complex_of, real_of
from linops.rule import Axis, Rule
from linops.space import Space

__all__ = ["NUFFT"]

_SCALES = {"ortho": 0.5, "backward": 0.0, "forward": 1.0}  # powers of 1 / N
_SMALL = 1 << 16  # below so many values threads cost more than they save


class NUFFT(LinearOperator):
    """`X[j] = s * sum_n x[n] exp(-2 pi i k_j (n - origin))` along one, two or three axes.

    Parameters
    ----------
    space
        The domain, real or complex, float32 or float64.
    points
        Frequencies k in cycles a plane, `(d, count)`: coordinate a of every point along the a-th of
        `axes`. At `numpy.fft.fftfreq(n)` the values are those of `FFT`.
    axes
        By name or number; the last d by default. The codomain is the other axes, then the points.
    norm
        As for `FFT`: `"ortho"` divides by the root of the number of planes, `"forward"` by the
        number, `"backward"` by nothing.
    origin
        The plane that is position 0, one for each axis; the first by default. `n // 2` where an
        image's middle is.
    tolerance
        Relative error of the sums, by default 1e-6 in single and 1e-12 in double precision.

    Raises
    ------
    ImportError
        Where FINUFFT is not installed: `pip install 'linops[nufft]'`.
    ShapeError
        Where points, axes and origin do not fit.

    Notes
    -----
    Plans cut the points, and axes that are not transformed (coils, slices, time). `A.H` is the
    exact adjoint, no inverse; density weights are a `Diagonal`.
    """

    batched = True
    blockwise = True
    _exact: ClassVar[bool] = True
    _host_arrays: ClassVar[Mapping[str, str]] = {"points": "float64"}
    domain: Space
    codomain: Space

    @arguments.checked
    def __init__(
        self,
        space: Space,
        points: Array,
        axes: str | int | Sequence[str | int] | None = None,
        *,
        norm: str = "ortho",
        origin: Sequence[float] | None = None,
        tolerance: float | None = None,
    ) -> None:
        _finufft()
        if norm not in _SCALES:
            raise ValueError(f"NUFFT: norm is one of {tuple(_SCALES)}, got {norm!r}")
        given = np.array(arrays.to_numpy(arrays.asarray(points, "NUFFT", "points")), "float64")
        d = int(given.shape[0]) if given.ndim == 2 else 0
        last = range(max(space.ndim - d, 0), space.ndim)
        numbers = axis_numbers(space, last if axes is None else axes, "NUFFT")
        if d not in (1, 2, 3) or len(numbers) != d or not np.isfinite(given).all():
            raise ShapeError(
                f"NUFFT: points are finite, (d, count), with d one to three and one of the axes "
                f"{numbers} of {space} for each coordinate, got shape {given.shape}"
            )
        middle = (0.0,) * d if origin is None else tuple(map(float, origin))
        if len(middle) != d:
            raise ShapeError(f"NUFFT: the origin has {d} coordinates, got {len(middle)}")
        single = real_of(space.dtype).itemsize < 8
        names = list(space.axes or numbered(space.ndim))
        others = [i for i in range(space.ndim) if i not in numbers]
        point = "point" if "point" not in names else "frequency"
        left = tuple(Axis(name, splits=i not in numbers) for i, name in enumerate(names))
        right = (*(left[i] for i in others), Axis(point))
        codomain = Space(
            (*(space.shape[i] for i in others), given.shape[1]),
            complex_of(space.dtype),
            [axis.name for axis in right] if space.axes else None,
        )
        coordinate = "coordinate" if "coordinate" not in names else "coordinate_k"
        own = (Axis(coordinate, splits=False), Axis(point))
        super().__init__(space, codomain, Rule((left,), (right,), (own,)))
        given.setflags(write=False)
        self.points = given
        self._numbers, self._origin, self._norm = numbers, middle, norm
        self._tolerance = tolerance or (1e-6 if single else 1e-12)

    def points_operator(self, x: Array) -> LinearOperator:
        """The derivative of `A @ x` in the points: from changes `(d, count)`, real, to changes of
        the result.

        `A.points_operator(x).H @ r` is the gradient of half the squared residual r, up to its sign.
        """
        from linops.elementary.diagonal import Diagonal
        from linops.elementary.reduce import SumOver

        host = arrays.to_numpy(x)
        parts = []
        for axis, middle in zip(self._numbers, self._origin, strict=True):
            shape = [1] * self.domain.ndim
            shape[axis] = -1
            place = (np.arange(self.domain.shape[axis]) - middle).reshape(shape)
            parts.append(-2j * np.pi * self._forward_host(np.asarray(host * place, host.dtype)))
        slopes = np.stack(parts, axis=-2).astype(self.codomain.dtype)
        dtype = real_of(self.domain.dtype)
        every = Space(slopes.shape, dtype)
        spread = SumOver(every, range(slopes.ndim - 2)).H
        moved: LinearOperator = (
            SumOver(every.complexify(), slopes.ndim - 2) @ Diagonal(slopes, every) @ spread
        )
        return moved

    def _apply(self, x: Array) -> Array:
        return apply_on_host(self, x)

    def _apply_adjoint(self, y: Array) -> Array:
        return apply_on_host(self, y, adjoint=True)

    def _forward_host(self, x: np.ndarray) -> np.ndarray:
        d, lead = len(self._numbers), x.ndim - self.domain.ndim
        moved = np.moveaxis(x, [lead + i for i in self._numbers], range(-d, 0))
        y = self._run(2, moved.astype(self.codomain.dtype), moved.shape[-d:])
        return np.asarray(y * self._phases())

    def _adjoint_host(self, y: np.ndarray) -> np.ndarray:
        d, lead = len(self._numbers), y.ndim - self.codomain.ndim
        extents = tuple(self.domain.shape[i] for i in self._numbers)
        x = self._run(1, y * self._phases().conj(), extents)
        x = np.moveaxis(x, range(-d, 0), [lead + i for i in self._numbers])
        return np.ascontiguousarray(x if self.domain.is_complex else x.real)

    def _run(self, kind: int, values: np.ndarray, extents: tuple[int, ...]) -> np.ndarray:
        """FINUFFT's sums of type 1 (points to planes) or 2 (planes to points), batches in front."""
        d, count = len(extents), self.points.shape[1]
        own, target = (1, extents) if kind == 1 else (d, (count,))
        batch = values.shape[: values.ndim - own]
        if 0 in values.shape or 0 in target:
            return np.zeros((*batch, *target), values.dtype)
        flat = np.ascontiguousarray(values).reshape(-1, *values.shape[values.ndim - own :])
        many = flat.size + count > _SMALL
        options = {"upsampfac": 2.0, "nthreads": 0 if many else 1}
        sign, name = -1 if kind == 2 else 1, values.dtype.name
        plan = _finufft().Plan(
            kind, extents, len(flat), self._tolerance, sign, dtype=name, **options
        )
        where = (2 * np.pi * self.points).astype(real_of(values.dtype))
        plan.setpts(*where)
        found = plan.execute(flat if len(flat) > 1 else flat[0])
        return np.asarray(found).reshape(*batch, *target)

    def _phases(self) -> np.ndarray:
        """For each point the scale, and the turn from FINUFFT's origin, plane `n // 2`, to ours."""
        extents = [self.domain.shape[i] for i in self._numbers]
        away = [n // 2 - middle for n, middle in zip(extents, self._origin, strict=True)]
        turns = np.asarray(away) @ self.points
        scale = float(max(math.prod(extents), 1)) ** -_SCALES[self._norm]
        return np.asarray(scale * np.exp(-2j * np.pi * turns), self.codomain.dtype)

    def _gram_diagonal(self, weights: Array | None) -> Array:
        extents = [self.domain.shape[i] for i in self._numbers]
        square = float(max(math.prod(extents), 1)) ** (-2 * _SCALES[self._norm])
        dtype = real_of(self.domain.dtype)
        w = np.ones(self.codomain.shape, dtype) if weights is None else arrays.to_numpy(weights)
        total = square * w.sum(axis=-1)
        for axis in sorted(self._numbers):
            total = np.expand_dims(total, axis)
        return np.array(np.broadcast_to(total, self.domain.shape), dtype)

    def _cost(self) -> Cost:
        # An oversampled FFT, and a spreading of as many planes an axis as there are digits.
        d, n = len(self._numbers), float(math.prod(self.domain.shape[i] for i in self._numbers))
        runs = self.domain.size / max(n, 1.0)
        fine = 2.0**d * n
        taps = (math.ceil(-math.log10(self._tolerance)) + 1.0) ** d
        flops = runs * (5 * fine * math.log2(max(fine, 2)) + 8 * taps * self.points.shape[1])
        held = runs * fine * self.codomain.dtype.itemsize + bytes_of(self.codomain)
        streaming = Cost.streaming(self.domain, self.codomain, flops)
        return Cost(flops, streaming.read + self.points.nbytes, streaming.written, held)


@functools.cache
def _finufft() -> Any:
    try:
        return importlib.import_module("finufft")
    except ImportError as error:
        raise ImportError("NUFFT needs FINUFFT: pip install 'linops[nufft]'") from error
