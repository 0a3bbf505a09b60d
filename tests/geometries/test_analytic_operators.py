"""Filtered backprojection as operators: adjoints, blocks, libraries, refusals, derivatives."""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from geometries import Detector, FanBeam, Grid, ParallelBeam
from geometries.analytic.coverage import angular_weights
from geometries.analytic.gather import Gather
from geometries.analytic.ramp import RampFilter, ramp_response
from geometries.analytic.reconstruct import fbp, fbp_operator
from geometries.analytic.weights import AngularWeights, CosineWeights, ParkerWeights
from linops.errors import GeometryError, ShapeError
from linops.space import Space
from linops.testing import check_operator

from .planar_scans import TURN, geometries, scan, wave

# --- operators -------------------------------------------------------------------------------


@functools.cache
def operators(precision: str) -> dict[str, Any]:
    dtype = "float64" if precision == "float64" else "float32"
    found: dict[str, Any] = {}
    for name, beam in geometries().items():
        grid = Grid((7, 6), (1.1, 0.7), (0.2, -0.3))
        found[f"gather {name}"] = Gather(beam, grid, precision=precision)
        found[f"angular {name}"] = AngularWeights(beam, dtype=dtype)
        found[f"fbp {name}"] = fbp_operator(scan(beam, grid, precision))
        if name != "parallel":
            found[f"cosine {name}"] = CosineWeights(beam, dtype)
    found["parker"] = ParkerWeights(geometries()["short"], dtype=dtype)
    found["ramp"] = RampFilter(Space((2, 3, 7), dtype, ("view", "row", "col")), 0.6)
    aligned = ParallelBeam(np.pi * np.arange(6) / 6, Detector((2, 7)))
    found["gather volume"] = Gather(aligned, Grid((2, 5, 4)), precision=precision)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("name", operators("float64"))
def test_adjoints_to_rounding(name: str, precision: str) -> None:
    A = operators(precision)[name]
    eps = np.finfo(A.dtype).eps
    generator = np.random.default_rng(5)

    def residual(x: np.ndarray, y: np.ndarray) -> float:
        Ax, Ay = (A @ x).astype(float), (A.H @ y).astype(float)
        left, right = (Ax * y).sum(dtype=float), (x * Ay).sum(dtype=float)
        scale = np.linalg.norm(Ax) * np.linalg.norm(y.astype(float))
        scale += np.linalg.norm(x.astype(float)) * np.linalg.norm(Ay)
        return 0.0 if scale == 0 else abs(left - right) / scale / eps

    for _ in range(3):
        x = generator.standard_normal(A.domain.shape).astype(A.dtype)
        y = generator.standard_normal(A.codomain.shape).astype(A.dtype)
        assert residual(x, y) <= 16
        assert residual(x, A @ x) <= 16
    for i in range(A.domain.size):
        e = np.zeros(A.domain.size, A.dtype)
        e[i] = 1
        e = e.reshape(A.domain.shape)
        assert residual(e, A @ e) <= 16
    for i in range(A.codomain.size):
        e = np.zeros(A.codomain.size, A.dtype)
        e[i] = 1
        e = e.reshape(A.codomain.shape)
        assert residual(A.H @ e, e) <= 16


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["gather fan", "gather volume", "fbp equiangular", "cosine frames", "parker", "ramp"]
)
def test_laws_of_operators(name: str) -> None:
    check_operator(operators("float32")[name])


@pytest.mark.parametrize("name", operators("float64"))
def test_blocks_obey_the_law(name: str) -> None:
    A = operators("float64")[name]
    x = wave(A.domain.shape)
    whole = A @ x
    for axis in A.rule.names:
        relation = str(A.rule.relation(axis))
        if relation == "whole":
            continue
        left = [a.name for a in A.rule.domain[0]]
        right = [a.name for a in A.rule.codomain[0]]
        n = (
            A.codomain.shape[right.index(axis)]
            if axis in right
            else (A.domain.shape[left.index(axis)])
        )
        for padded, cuts in ((False, (0, n // 3, n // 3, n)), (True, (-1, 1, n, n + 3))):
            total = []
            for start, stop in pairwise(cuts):
                block = A.block(axis, start, stop, padded=padded)
                part = x
                if axis in left:
                    k, planes = left.index(axis), np.arange(start, stop)
                    part = np.take(x, np.clip(planes, 0, n - 1), k)
                    inert = np.expand_dims(
                        (planes < 0) | (planes >= n), [i for i in range(x.ndim) if i != k]
                    )
                    part = np.where(inert, np.nan, part)
                total.append(block @ part)
            if axis in right:
                k = right.index(axis)
                joined = np.concatenate(total, axis=k)
                if padded:
                    outside = np.take(joined, [0, -1, -2, -3], k)
                    np.testing.assert_array_equal(outside, 0)
                    joined = np.take(joined, np.arange(1, n + 1), k)
            else:
                joined = sum(total)
            if relation == "contracted" or "fbp" in name:
                np.testing.assert_allclose(joined, whole, rtol=1e-12, atol=1e-13)
            else:
                np.testing.assert_array_equal(joined, whole)


def test_batches_strides_and_libraries() -> None:
    beam = geometries()["fan"]
    A = fbp_operator(scan(beam, Grid((7, 6))))
    y = wave((2, 3, 11, 9))
    images = A @ y
    assert images.shape == (2, 3, 7, 6)
    np.testing.assert_array_equal(images[1, 2], A @ y[1, 2])
    assert (A @ np.zeros((0, 11, 9))).shape == (0, 7, 6)
    assert (A.H @ np.zeros((0, 7, 6))).shape == (0, 11, 9)
    turned = np.ascontiguousarray(y[0, 0].T[::-1]).T[:, ::-1]
    np.testing.assert_array_equal(A @ turned, A @ y[0, 0])
    torch = pytest.importorskip("torch")
    again = A @ torch.tensor(y)
    assert isinstance(again, torch.Tensor)
    np.testing.assert_allclose(again.numpy(), images, atol=1e-14)


def test_views_in_any_order_give_the_same_image() -> None:
    beam = geometries()["fan"]
    y = wave((11, 9))
    order = np.random.default_rng(1).permutation(11)
    image = fbp(scan(beam, Grid((7, 6))), y)
    again = fbp(scan(beam[order], Grid((7, 6))), y[order])
    np.testing.assert_allclose(again, image, rtol=1e-12, atol=1e-14)


def test_threads_change_no_bit() -> None:
    from linops.compiled import pool

    beam = geometries(33, 20)["fan"]
    A = Gather(beam, Grid((40, 30)))
    y = wave((20, 33)).astype("float32")
    results = []
    for count in (1, 2, 3):
        with pool.limit(count, exceed=True):
            results.append(((A @ y).tobytes(), (A.H @ (A @ y)).tobytes()))
    assert len(set(results)) == 1


@given(st.integers(2, 33))
def test_the_image_has_the_shape_of_the_grid(size: int) -> None:
    beam = ParallelBeam(np.pi * np.arange(5) / 5, Detector(size))
    assert fbp(scan(beam, Grid((size, size))), wave((5, size))).shape == (size, size)


def test_axes_of_length_one_are_kept() -> None:
    beam = ParallelBeam([0.3], Detector((1, 2)))
    assert fbp(scan(beam, Grid((1, 1, 1))), np.ones((1, 1, 2))).shape == (1, 1, 1)


def test_nan_beside_the_field_of_view_stays_there() -> None:
    beam = ParallelBeam([0.0], Detector(9))
    y = np.ones((1, 9))
    y[0, -1] = np.nan
    image = Gather(beam, Grid((1, 30)), precision="float64") @ y
    assert np.isnan(image[0, 18]).all()
    np.testing.assert_array_equal(image[0, 20:], 0)


def test_responses_and_weights_can_be_replaced() -> None:
    beam = geometries()["fan"]
    y = wave((11, 9))
    A = scan(beam, Grid((7, 6)))
    image = fbp(A, y)
    same = fbp(A, y, filter_response=ramp_response(9, 1.4),
               angular_weights=angular_weights(beam.angles, TURN),
               projection_weights=np.ones((11, 9)), angles=beam.angles)  # fmt: skip
    np.testing.assert_allclose(same, image, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(fbp(A, y, projection_weights=np.full((11, 9), 2.0)), 2 * image)
    assert np.isfinite(fbp(A, y, angular_weights=np.zeros(11))).all()


# --- refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pad": 1}, "pad"),
        ({"pad": 2.5}, "pad"),
        ({"pad": True}, "pad"),
        ({"window": "blackman"}, "window"),
        ({"filter_response": np.ones(9)}, "filter_response"),
        ({"angular_weights": np.ones(10)}, "AngularWeights"),
        ({"projection_weights": np.ones(9)}, "projection_weights"),
        ({"angles": np.zeros(3)}, "angles"),
        ({"short_scan": "yes"}, "short_scan"),
        ({"short_scan": None}, "short_scan"),
        ({"isocenter": (0, 0, 0)}, "isocenter"),
        ({"isocenter": (0, np.nan)}, "isocenter"),
        ({"isocenter": (0, 100.0)}, "view"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    A = scan(geometries()["fan"], Grid((7, 6)))
    with pytest.raises((GeometryError, ShapeError), match=message):
        fbp(A, wave((11, 9)), **options)


def test_a_single_column_is_refused() -> None:
    beam = ParallelBeam([0.0, 1.0], Detector(1))
    with pytest.raises(GeometryError, match="at least two detector bins"):
        fbp(scan(beam, Grid((2, 2))), np.ones((2, 1)))


def test_short_scans_that_parker_does_not_cover_are_refused() -> None:
    t = np.linspace(0, 4.0, 40)
    parallel = ParallelBeam(t, Detector(9))
    with pytest.raises(GeometryError, match="parallel"):
        fbp(scan(parallel, Grid((3, 3))), np.ones((40, 9)), short_scan=True)
    narrow = FanBeam(np.linspace(0, 3.0, 40), Detector(9), 20, 40)
    with pytest.raises(GeometryError, match=r"171\.89 degrees.*need 1"):
        fbp(scan(narrow, Grid((3, 3))), np.ones((40, 9)), short_scan=True)
    for a, d, word in (
        (20 + np.linspace(0, 0.6, 40), 40 + np.linspace(0, 0.6, 40), "radius|distance"),
        (20.0, 40 + np.linspace(0, 50, 40), "distance"),
    ):
        with pytest.raises(GeometryError, match=word):
            fbp(scan(FanBeam(t, Detector(9), a, d), Grid((3, 3))), np.ones((40, 9)),
                short_scan=True)  # fmt: skip


def test_other_curvatures_have_no_formula() -> None:
    beam = FanBeam([0.0, 1.0, 2.0], Detector(9, 1, 0, 50.0), 20, 40)
    with pytest.raises(GeometryError, match="equiangular"):
        fbp(scan(beam, Grid((3, 3))), np.ones((3, 9)))


def test_geometry_that_wants_a_gradient_is_refused() -> None:
    torch = pytest.importorskip("torch")
    beam = geometries()["fan"]
    angles = torch.tensor(beam.angles, requires_grad=True)
    with pytest.raises(GeometryError, match="geometry_operator"):
        fbp(scan(beam, Grid((7, 6))), wave((11, 9)), angles=angles)


# --- derivatives -----------------------------------------------------------------------------


def test_gradients_in_data_filter_and_weights() -> None:
    """The result is linear in each of them: the gradient times its argument is the result."""
    torch = pytest.importorskip("torch")
    beam = geometries()["fan"]
    A = scan(beam, Grid((7, 6)))
    g = wave((7, 6), 0.3)
    leaves = {
        "filter_response": torch.tensor(ramp_response(9, 1.4)),
        "angular_weights": torch.tensor(angular_weights(beam.angles, TURN)),
        "projection_weights": torch.ones(11, 9, dtype=torch.float64),
    }
    y = torch.tensor(wave((11, 9)))
    for leaf in (y, *leaves.values()):
        leaf.requires_grad_(True)
    loss = (fbp(A, y, **leaves) * torch.tensor(g)).sum()
    loss.backward()
    np.testing.assert_allclose(y.grad.numpy(), fbp_operator(A).H @ g, atol=1e-14)
    for name, leaf in leaves.items():
        assert (leaf.grad * leaf).sum().item() == pytest.approx(loss.item(), rel=1e-12), name


@pytest.mark.slow
def test_jax_compiles_and_differentiates() -> None:
    jax = pytest.importorskip("jax")
    A = fbp_operator(scan(geometries()["fan"], Grid((7, 6)), "float32"))
    y, g = wave((11, 9)).astype("float32"), wave((7, 6), 0.3).astype("float32")
    image = jax.jit(lambda v: A @ v)(jax.numpy.asarray(y))
    np.testing.assert_allclose(image, A @ y, rtol=1e-4, atol=1e-6)
    gradient = jax.grad(lambda v: ((A @ v) * g).sum())(jax.numpy.asarray(y))
    np.testing.assert_allclose(gradient, A.H @ g, rtol=1e-4, atol=1e-6)
