"""Arrays that hold no numbers, masks of a single number, and writes into what a callback got."""

from __future__ import annotations

import numpy as np
import pytest

import linops as lo
from linops.errors import DTypeError
from solvers import automatic_regularization, cgls

SPACE = lo.Space(3, "float64")
A = lo.Diagonal(np.array([1.0, 2.0, 4.0]), SPACE)
NO_NUMBERS = {
    "text": np.array(["1", "2", "3"]),
    "dates": np.array([1, 2, 3], "M8[s]"),
    "objects": np.array([1.0, 2.0, 3.0], object),
    "records": np.zeros(3, [("a", "f8")]),
}


@pytest.mark.parametrize("kind", NO_NUMBERS)
def test_what_is_no_number_is_refused_by_name(kind):
    bad = NO_NUMBERS[kind]
    with pytest.raises(DTypeError, match="y has dtype"):
        cgls(A, bad, iterations=1)
    with pytest.raises(DTypeError, match="x0 has dtype"):
        cgls(A, np.ones(3), iterations=1, x0=bad)
    with pytest.raises(DTypeError, match="target has dtype"):
        lo.LeastSquares(SPACE, target=bad)
    with pytest.raises(DTypeError, match="lower has dtype"):
        lo.Box(SPACE, lower=bad)
    with pytest.raises(ValueError, match="weights are finite real numbers"):
        lo.L1(SPACE, weights=bad)


def test_regularization_drops_no_imaginary_part():
    with pytest.raises(DTypeError, match="complex128.*real"):
        automatic_regularization(
            lo.Matrix(np.ones((2, 3))),
            np.ones(2) + 1j,
            pitch=1.0,
            plane=(1, 3),
            spacing=1.0,
            magnification=1.0,
        )


def test_the_masked_number_is_no_factor():
    with pytest.raises(TypeError, match="takes a scalar, got Masked"):
        np.ma.masked * A
    with pytest.raises(TypeError, match="takes a scalar, got Masked"):
        A * np.ma.masked


def test_a_view_of_a_solve_cannot_be_made_writeable():
    def write(iteration, residual, x):
        with pytest.raises(ValueError, match="WRITEABLE"):
            x.flags.writeable = True

    y = np.array([1.0, 2.0, 3.0])
    found = cgls(A, y, iterations=4, callback=write)
    np.testing.assert_allclose(found.solution, [1.0, 1.0, 0.75], rtol=1e-12)


@pytest.mark.parametrize("step", [1e-3, 1.0, 1e7, 1e9])
def test_the_proximal_map_of_huber_cancels_at_no_step(step):
    """Between its kinks `x / (1 + step)`: of float32 numbers to their last digits."""
    x = np.array([0.5, -1.25, 0.0], "float32")
    huber = lo.Huber(SPACE.with_dtype("float32"), delta=2.0)
    np.testing.assert_allclose(huber.prox(x, step), x / (1 + step), rtol=1e-6)


@pytest.mark.parametrize("scale", [2.0**-100, 2.0**90])
def test_the_gradient_of_qggmrf_in_any_units(scale):
    """`rho'` is in units of 1 / x: compiled code takes no curvature that float32 does not hold."""
    space = lo.Space((2, 3), "float32")
    x = np.array([[0.0, 1.0, 3.0], [2.0, 2.0, -1.0]], "float32")
    plain = lo.QGGMRF(space, sigma_x=1.5).gradient(x)
    scaled = lo.QGGMRF(space, sigma_x=1.5 * scale).gradient(x * np.float32(scale))
    np.testing.assert_allclose(scaled * np.float32(scale), plain, rtol=1e-5)
