"""What leaves say that they hold beside input and result, against what NumPy allocates."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

import linops as lo
from linops.compiled import pool
from linops.cost import bytes_of

_N = 64
_SPACE = lo.Space((_N, _N, _N), "float32", ("z", "y", "x"))
_generator = np.random.default_rng(0)


def _smooth(size: int, **options: str) -> lo.LinearOperator:
    return lo.Convolve(_SPACE, np.ones((size,) * 3, "float32"), **options)


LEAVES: dict[str, Callable[[], lo.LinearOperator]] = {
    "real fft": lambda: lo.FFT(_SPACE),
    "real fft of a row": lambda: lo.FFT(_SPACE, axes="x"),
    "full fft": lambda: lo.FFT(_SPACE, real="full"),
    "complex fft": lambda: lo.FFT(_SPACE.with_dtype("complex64")),
    "unscaled fft": lambda: lo.FFT(_SPACE, norm="backward"),
    "direct convolution": lambda: _smooth(3),
    "spectral convolution": lambda: _smooth(9, method="fft"),
    "spectral ring": lambda: _smooth(9, method="fft", boundary="periodic"),
    "float64 convolution": lambda: lo.Convolve(
        _SPACE.with_dtype("float64"), np.ones((9, 9, 9)), method="fft"
    ),
    "interpolation": lambda: lo.Interpolate(
        _SPACE, displacement=_generator.uniform(-1, 1, (3, _N, _N, _N))
    ),
    "sum": lambda: lo.SumOver(_SPACE, "z"),
    "gradient": lambda: lo.Gradient(_SPACE),
    "diagonal": lambda: lo.Diagonal(_SPACE.random(1), _SPACE),
    "pad": lambda: lo.Pad(_SPACE, {"z": (4, 4)}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LEAVES)
def test_workspace_is_stated(name: str) -> None:
    for adjoint in (False, True):
        A = LEAVES[name]()  # what it keeps is made by the first call
        B = A.H if adjoint else A
        x = B.domain.random(0)
        with pool.limit(1):
            LEAVES[name]() @ A.domain.zeros()  # what a process imports and compiles once
            tracemalloc.start()
            B @ x
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        stated = bytes_of(B.codomain) + B.cost().workspace
        slack = 1.2e5  # tables and buffers that do not grow with the arrays
        assert 0.8 * stated <= peak <= 1.05 * stated + slack, (adjoint, peak, stated)


def test_the_adjoint_s_cost_is_the_reversed_one() -> None:
    A = LEAVES["real fft"]()
    cost = A.cost()
    assert cost.adjoint is not None and cost.adjoint > cost.workspace
    assert A.H.cost().workspace == cost.adjoint
    assert A.H.H.cost() == cost
    assert cost.reversed.reversed == cost
    assert (2 * A).H.cost().workspace >= cost.adjoint
