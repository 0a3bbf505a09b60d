"""The inverse of `alpha - Laplacian` by fast transforms.

FFT, DCT and DST diagonalise the discrete Laplacian of every order, axis by axis:

    periodic        FFT       symbol at 2 pi k / n, k = 0 .. n-1
    even            DCT-II    symbol at pi k / n, k = 0 .. n-1
    odd             DST-II    symbol at pi k / n, k = 1 .. n
    even and odd    DCT-IV    symbol at pi (k + 1/2) / n, k = 0 .. n-1 (odd and even: DST-IV)
    zero            DST-I     symbol at pi k / (n + 1), k = 1 .. n; order 2 only
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.cost import Cost
from linops.linear_operator import LinearOperator
from linops.rule import Axis, Rule
from linops.space import Space
from linops.stencils.faces import named_sides
from linops.stencils.weights import checked_order, symbol

__all__ = ["PoissonSolve"]

_KINDS = {
    ("periodic", "periodic"): "fft",
    ("even", "even"): "dct2",
    ("odd", "odd"): "dst2",
    ("even", "odd"): "dct4",
    ("odd", "even"): "dst4",
    ("zero", "zero"): "dst1",
}


class PoissonSolve(LinearOperator):
    """`(alpha - Laplacian)^-1`, of the discrete Laplacian with the same order and boundary.

    Parameters
    ----------
    space, order, boundary, weights
        As for `Laplacian`; boundaries `"periodic"`, `"even"`, `"odd"`, `"zero"` (order 2), and
        even on one side with odd on the other.
    alpha
        The shift: any number >= 0, or a negative one that is no eigenvalue.

    Raises
    ------
    ValueError
        For another boundary, or a shift at which the operator has no inverse: solve these by
        conjugate gradients.

    Notes
    -----
    Where `alpha` is 0 and constants are in the null space, right sides are projected to mean zero
    and solutions have mean zero: the pseudo-inverse. Axes do not split.

    >>> import numpy as np
    >>> from linops.stencils import Laplacian
    >>> space = Space(4, "float64")
    >>> u = np.array([1.0, -1.0, 2.0, -2.0])
    >>> np.allclose(PoissonSolve(space, boundary="even") @ -(Laplacian(space, 2, "even") @ u), u)
    True
    """

    batched = True
    _exact: ClassVar[bool] = True
    domain: Space
    codomain: Space

    def __init__(
        self,
        space: Space,
        alpha: float = 0.0,
        order: int = 2,
        boundary: Any = "zero",
        weights: float | Sequence[float] = 1.0,
    ) -> None:
        order = checked_order(order, "PoissonSolve")
        pairs = named_sides(boundary, space, "PoissonSolve")
        kinds = []
        for pair in pairs:
            kind = _KINDS.get(pair)
            if kind is None or (kind == "dst1" and order > 2):
                raise ValueError(
                    f"PoissonSolve: no fast transform diagonalises the Laplacian of order {order} "
                    f"with the boundary {pair}; solve with solvers.cgls, or take 'odd' or 'even'"
                )
            kinds.append(kind)
        names = space.axes or tuple(f"axis{i}" for i in range(space.ndim))
        row = tuple(Axis(name, splits=False) for name in names)
        alpha = float(alpha)
        factors = np.broadcast_to(np.asarray(weights, float), (space.ndim,)).tolist()
        self._order, self._kinds, self._pairs = order, tuple(kinds), pairs
        self._alpha, self._factors = (alpha,), tuple(factors)
        values = _eigenvalues(space, self._kinds, order, self._factors) + alpha
        size = abs(values).max(initial=0.0)
        small = abs(values) <= 64 * np.finfo(float).eps * max(size, abs(alpha))
        singular = bool(small.any()) and alpha == 0.0
        if bool(small.any()) and alpha != 0.0:
            raise ValueError(
                f"PoissonSolve: alpha = {alpha:g} is minus an eigenvalue of the Laplacian, where "
                "alpha - Laplacian has no inverse; move the shift"
            )
        tags = {"self_adjoint"} | ({"psd"} if (values[~small] > 0).all() else set())
        super().__init__(space, space, Rule((row,), (row,)), tags=tags)
        self._singular = singular
        with np.errstate(divide="ignore"):
            inverse = np.where(small, 0.0, 1.0 / np.where(small, 1.0, values))
        self.inverse = arrays.snapshot(
            inverse.astype("float64" if space.dtype.itemsize * (1 + (not space.is_complex)) > 8
                           else "float32")
        )  # fmt: skip

    @property
    def singular(self) -> bool:
        """Whether constants are projected out."""
        return self._singular

    def _apply(self, x: Array) -> Array:
        d = len(self._kinds)
        real = arrays.dtype_of(x).kind != "c"
        wide = arrays.cast(x, np.dtype("float32")) if arrays.dtype_of(x).itemsize == 2 else x
        if arrays.is_numpy(wide):
            return arrays.cast(self._by_scipy(wide), arrays.dtype_of(x))
        held = arrays.resident(
            self.__dict__.setdefault("_cache_resident", {}), "inverse", self.inverse, wide
        )
        for axis, kind in enumerate(self._kinds):
            wide = _transform(wide, axis - d, kind, False)
        wide = wide * held
        for axis, kind in enumerate(self._kinds):
            wide = _transform(wide, axis - d, kind, True)
        if real and arrays.dtype_of(wide).kind == "c":
            wide = arrays.namespace(wide).real(wide)
        return arrays.cast(wide, arrays.dtype_of(x))

    def _apply_adjoint(self, y: Array) -> Array:
        return self._apply(y)

    def _by_scipy(self, x: np.ndarray) -> np.ndarray:
        fft: Any = importlib.import_module("scipy.fft")
        d = len(self._kinds)
        real = x.dtype.kind != "c"
        rings = [a - d for a, kind in enumerate(self._kinds) if kind == "fft"]
        for axis, kind in enumerate(self._kinds):
            if kind != "fft":
                x = _real_transform(fft, kind, False)(x, axis=axis - d)
        inverse = self.inverse
        if rings and real:
            last = rings[-1]
            lengths = [x.shape[a] for a in rings]
            x = fft.rfftn(x, axes=rings)
            inverse = arrays.narrow(inverse, last, 0, x.shape[last])
            x = fft.irfftn(x * inverse, s=lengths, axes=rings)
        elif rings:
            x = fft.ifftn(fft.fftn(x, axes=rings) * inverse, axes=rings)
        else:
            x = x * inverse
        for axis, kind in enumerate(self._kinds):
            if kind != "fft":
                x = _real_transform(fft, kind, True)(x, axis=axis - d)
        return np.asarray(x)

    def _make_conjugate(self) -> LinearOperator:
        return self

    def _complexified(self) -> LinearOperator:
        return PoissonSolve(
            self.domain.complexify(), self._alpha[0], self._order, self._pairs, self._factors
        )

    def _cost(self) -> Cost:
        size = float(self.domain.size)
        flops = 10.0 * size * math.log2(max(size, 2.0))
        streaming = Cost.streaming(self.domain, self.codomain, flops)
        held = size * self.inverse.dtype.itemsize
        # Spectra of the host's library, in double precision where it has no other.
        return Cost(flops, streaming.read + held, streaming.written, 64.0 * size)


def _eigenvalues(
    space: Space, kinds: Sequence[str], order: int, factors: Sequence[float]
) -> np.ndarray:
    """The eigenvalues of minus the Laplacian, shaped like the space."""
    steps = space.spacing or (1.0,) * space.ndim
    total = np.zeros(space.shape)
    for axis, (n, kind, h, k) in enumerate(zip(space.shape, kinds, steps, factors, strict=True)):
        index = np.arange(n, dtype=float)
        angle = {
            "fft": 2 * np.pi * index / max(n, 1),
            "dct2": np.pi * index / max(n, 1),
            "dst2": np.pi * (index + 1) / max(n, 1),
            "dct4": np.pi * (index + 0.5) / max(n, 1),
            "dst4": np.pi * (index + 0.5) / max(n, 1),
            "dst1": np.pi * (index + 1) / (n + 1),
        }[kind]
        row = -k * symbol(order, angle) / h**2
        row[abs(row) < 1e-14 * abs(k) / h**2] = 0.0
        total = total + row.reshape([-1 if a == axis else 1 for a in range(space.ndim)])
    return total


def _real_transform(fft: Any, kind: str, inverse: bool) -> Any:
    family = {"c": ("dct", "idct"), "s": ("dst", "idst")}[kind[1]]
    return functools.partial(getattr(fft, family[int(inverse)]), type=int(kind[3]), norm="ortho")


def _transform(x: Array, axis: int, kind: str, inverse: bool) -> Array:
    """One transform with the array library's own FFT, or with the matrix of the transform.

    Real transforms are products with an orthogonal matrix; libraries but SciPy have none of their
    own of all types, and a matrix is exact, differentiable and quick on devices.
    """
    xp = arrays.namespace(x)
    if kind == "fft":
        if arrays.dtype_of(x).kind != "c":
            wide = np.dtype("complex128" if arrays.dtype_of(x).itemsize == 8 else "complex64")
            x = arrays.cast(x, wide)
        x = arrays.row_major(x)
        run = xp.fft.ifft if inverse else xp.fft.fft
        return run(x, axis=x.ndim + axis)
    n = x.shape[axis]
    if n == 0:
        return x
    matrix = _matrix(kind, n)
    if inverse:
        matrix = matrix.T
    held = arrays.convert(np.ascontiguousarray(matrix.astype(arrays.dtype_of(x))), x)
    moved = xp.moveaxis(x, x.ndim + axis, x.ndim - 1)
    return xp.moveaxis(xp.matmul(moved, xp.matrix_transpose(held)), x.ndim - 1, x.ndim + axis)


@functools.lru_cache(maxsize=32)
def _matrix(kind: str, n: int) -> np.ndarray:
    """The orthonormal transform as a matrix, in float64."""
    fft: Any = importlib.import_module("scipy.fft")
    found: np.ndarray = _real_transform(fft, kind, False)(np.eye(n), axis=0)
    return found
