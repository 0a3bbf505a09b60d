"""`jax.export` of operators that are array code: forwards, derivatives and batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import linops as lo
from geometries import RampFilter

jax = pytest.importorskip("jax")

REAL, COMPLEX = lo.Space((3, 4)), lo.Space((3, 4), "complex64")
OPERATORS = {
    "half spectrum": lambda: lo.FFT(REAL),
    "full spectrum": lambda: lo.FFT(REAL, real="full"),
    "complex": lambda: lo.FFT(COMPLEX, axes=0),
    "there and back": lambda: lo.FFT(REAL).H @ lo.FFT(REAL),
    "spectral convolution": lambda: lo.Convolve(lo.Space((20, 20)), np.ones((9, 9), "float32")),
    "ramp filter": lambda: RampFilter(lo.Space((4, 9), axes=("view", "col"))),
    "prior of a spectrum": lambda: lo.LeastSquares(lo.FFT(REAL).codomain) @ lo.FFT(REAL),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_exported_is_jitted(name: str) -> None:
    from jax import export

    A: Any = OPERATORS[name]()
    space = A.domain

    def pull(x: Any) -> Any:
        y, back = jax.vjp(lambda u: A(u), x)
        return back(y)[0]

    def several(x: Any) -> Any:
        return jax.vmap(lambda u: A(u), in_axes=1)(jax.numpy.stack([x, 2 * x], 1))

    x = jax.numpy.asarray(space.random(0))
    for function in (lambda x: A(x), pull, several):
        stored = export.export(jax.jit(function))(jax.ShapeDtypeStruct(space.shape, space.dtype))
        np.testing.assert_allclose(stored.call(x), function(x), rtol=1e-4, atol=1e-4)
