"""The conformance suite over this folder's operators, alone and composed, and under `jax.jit`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import linops as lo
from linops.testing import check_operator

_generator = np.random.default_rng(7)
_KERNEL = _generator.standard_normal((3, 2))
_POINTS = _generator.uniform(-1.5, 4.5, (2, 7))
_FIELD = _generator.standard_normal((2, 3, 4))

OPERATORS: dict[str, Callable[[], lo.LinearOperator]] = {
    "reshape": lambda: lo.Reshape(lo.Space((2, 3, 4)), (2, 12)),
    "transpose": lambda: lo.Transpose(lo.Space((2, 3, 2), "complex64"), (2, 0, 1)),
    "sum": lambda: lo.SumOver(lo.Space((2, 3, 4), axes=("z", "y", "x")), ("z", "x")),
    "real fft": lambda: lo.FFT(lo.Space((3, 4)), axes=1),
    "full fft": lambda: lo.FFT(lo.Space((3, 5), "float64"), real="full", norm="backward"),
    "complex fft": lambda: lo.FFT(lo.Space((3, 5), "complex64"), axes=0),
    "direct": lambda: lo.Convolve(lo.Space((4, 5)), _KERNEL),
    "ring": lambda: lo.Convolve(lo.Space((4, 5)), _KERNEL, boundary="periodic", method="fft"),
    "complex kernel": lambda: lo.Convolve(lo.Space((4, 3)), _KERNEL * (1 + 2j)),
    "points": lambda: lo.Interpolate(lo.Space((2, 3, 4)), _POINTS),
    "field": lambda: lo.Interpolate(lo.Space((3, 4), axes=("y", "x")), displacement=_FIELD),
    "reach": lambda: lo.Interpolate(lo.Space((3, 4)), displacement=np.clip(_FIELD, -2, 2), reach=2),
    "filter": lambda: _filter(lo.Space((3, 6), axes=("view", "col"))),
}


def _filter(space: lo.Space) -> lo.LinearOperator:
    F = lo.FFT(space, "col")
    weights = np.linspace(0, 1, F.codomain.size).reshape(F.codomain.shape)
    return F.H @ lo.Diagonal(weights, F.codomain) @ F


@pytest.mark.slow
@pytest.mark.parametrize("name", list(OPERATORS))
def test_it_passes_every_check(name: str) -> None:
    check_operator(OPERATORS[name]())


@pytest.mark.slow
@pytest.mark.parametrize("name", list(OPERATORS))
def test_it_runs_inside_jit(name: str) -> None:
    jax = pytest.importorskip("jax")
    A = OPERATORS[name]()
    if A.dtype.itemsize // (2 if A.dtype.kind == "c" else 1) > 4:
        pytest.skip("JAX runs without x64")
    x, y = A.domain.random(0), A.codomain.random(1)
    for B, v in ((A, x), (A.H, y)):
        found = np.asarray(jax.jit(lambda v, B=B: B @ v)(jax.numpy.asarray(v)))
        wanted = B @ v
        assert found.dtype == wanted.dtype
        assert np.abs(found - wanted).max() <= 1e-5 * max(1.0, np.abs(wanted).max())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["direct", "points", "ring"])
def test_a_block_of_an_operator_that_is_an_argument_of_jit(name: str) -> None:
    jax = pytest.importorskip("jax")
    lo.register_jax()
    A = OPERATORS[name]()
    axis = A.rule.domain[0][-1].name
    h = A.rule.halo(axis)
    block = A.block(axis, 1, 3, padded=True)
    part = block.domain.random(0)
    found = jax.jit(lambda A, v: A.block(axis, 1, 3, padded=True) @ v)(A, jax.numpy.asarray(part))
    assert part.shape[-1] == 2 + 2 * h
    assert np.abs(np.asarray(found) - block @ part).max() < 1e-5
