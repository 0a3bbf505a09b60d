"""Arrays padded, moved, turned, deformed, resampled: values of other libraries, contract, plans."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.ndimage as ndimage

import linops as lo
from linops.testing import check_operator
from sharding import plan

SPACE = lo.Space((4, 5), "float64", axes=("y", "x"))
ODD = lo.Space((3, 4, 5), "float32", axes=("z", "y", "x"), spacing=(1.0, 1.0, 2.0))
FIELD = 1.5 * lo.Space((2, 4, 5), "float64").random(7).clip(-1, 1)
CASES = {
    "reflect": lambda: lo.Pad(SPACE, {"x": (2, 1)}, mode="reflect"),
    "wrap": lambda: lo.Pad(SPACE.complexify(), ((1, 0), (0, 6)), mode="wrap"),
    "linear": lambda: lo.Shift(SPACE, (-1.25, 0.5)),
    "ring": lambda: lo.Shift(SPACE, 2.3, "y", boundary="periodic"),
    "fourier": lambda: lo.Shift(SPACE.with_dtype("float32"), 0.4, "x", method="fourier"),
    "rotate": lambda: lo.Rotate(SPACE.with_dtype("float32"), 0.3, ("x", "y")),
    "affine": lambda: lo.AffineTransform(SPACE, [[0.9, 0.1], [-0.2, 1.1]], [0.5, 0.0]),
    "deformation": lambda: lo.DeformationField(SPACE, FIELD, reach=2),
    "resample": lambda: lo.Resample(SPACE, (2, 7)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_contract(name: str) -> None:
    A = CASES[name]()
    check_operator(A)
    check_operator(A.H @ (2 * A), libraries=())
    x, y = A.domain.random(2), A.codomain.random(3)
    B = plan(A, devices=3, executor="threads", probe=False).lower()
    assert np.allclose(B.codomain.home.gather(B @ x), A @ x, rtol=1e-5, atol=1e-5)
    assert np.allclose(B.domain.home.gather(B.H @ y), A.H @ y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric", "wrap"])
@pytest.mark.parametrize("widths", [((1, 0), (2, 3)), ((0, 6), (0, 0)), ((9, 9), (11, 2))])
def test_padding_is_that_of_numpy(mode: str, widths: tuple[tuple[int, int], ...]) -> None:
    A, x = lo.Pad(SPACE, widths, mode=mode), SPACE.random(0)
    assert np.array_equal(A @ x, np.pad(x, widths, mode))
    assert np.array_equal(A.H.to_dense(), A.to_dense().T)
    assert str(lo.Pad(SPACE, {"x": (1, 2)}, mode=mode).rule) == "y x! -> y x!"


def test_mistaken_padding() -> None:
    assert type(lo.Pad(SPACE, {"x": (1, 2)}, mode="zeros")) is lo.Pad
    with pytest.raises(ValueError, match="mode is 'zeros' or one of"):
        lo.Pad(SPACE, {"x": (1, 2)}, mode="mean")
    with pytest.raises(lo.errors.ShapeError, match="not negative"):
        lo.Pad(SPACE, {"x": (-1, 2)}, mode="edge")


@pytest.mark.parametrize("shift", [0.0, 2.0, -1.25, 0.5, (3.75, -9.0), (-0.25, 6.0)])
def test_shifts_are_those_of_scipy(shift: float | tuple[float, float]) -> None:
    x = SPACE.random(1)
    for boundary, mode in (("zero", "grid-constant"), ("periodic", "grid-wrap")):
        wanted = ndimage.shift(x, shift, order=1, mode=mode)
        assert np.allclose(lo.Shift(SPACE, shift, boundary=boundary) @ x, wanted, atol=1e-12)
    wanted = np.fft.ifftn(ndimage.fourier_shift(np.fft.fftn(x), shift))
    A = lo.Shift(SPACE, shift, method="fourier")
    assert np.allclose(A @ x, wanted.real, atol=1e-12)
    assert np.allclose(lo.Shift(SPACE.complexify(), shift, method="fourier") @ x, wanted)


def test_mistaken_shifts() -> None:
    with pytest.raises(ValueError, match="method and boundary"):
        lo.Shift(SPACE, 1.0, method="fourier", boundary="zero")
    with pytest.raises(lo.errors.ShapeError, match="one for each of its 2 axes"):
        lo.Shift(SPACE, (1.0, 2.0, 3.0))


def test_rotations_are_those_of_numpy_and_scipy() -> None:
    square = lo.Space((6, 6), "float64", axes=("y", "x"))
    x = square.random(0)
    V, v = lo.Rotate(ODD, 0.3, ("z", "x")), ODD.random(0)
    plane = lo.Rotate(lo.Space((3, 5), spacing=(1.0, 2.0)), 0.3)
    assert np.allclose((V @ v)[:, 1], plane @ v[:, 1], atol=1e-6) and V.codomain == ODD
    assert np.allclose(lo.Rotate(square, np.pi / 2) @ x, np.rot90(x), atol=1e-12)
    assert np.allclose(lo.Rotate(square, np.pi / 2, ("x", "y")) @ x, np.rot90(x, -1), atol=1e-12)
    y = SPACE.random(1)
    wanted = ndimage.rotate(y, 20.0, reshape=False, order=1, mode="grid-constant")
    assert np.allclose(lo.Rotate(SPACE, np.deg2rad(20.0)) @ y, wanted, atol=1e-12)
    # Cells twice as long along x: one to the right is two up, and half of it is seen one below.
    long = lo.Space((5, 3), "float64", spacing=(1.0, 2.0))
    x = np.zeros((5, 3))
    x[2, 2] = 1
    turned = lo.Rotate(long, np.pi / 2) @ x
    assert np.allclose(turned[:, 1], [1.0, 0.5, 0, 0, 0]) and np.abs(turned).sum() < 1.5 + 1e-12


def test_warps_are_those_of_scipy() -> None:
    matrix, offset, x = np.array([[0.9, 0.1], [-0.2, 1.1]]), np.array([0.5, -0.25]), SPACE.random(0)
    A = lo.AffineTransform(SPACE, matrix, offset)
    options = {"order": 1, "mode": "grid-constant"}
    assert np.allclose(A @ x, ndimage.affine_transform(x, matrix, offset, **options))
    D = lo.DeformationField(SPACE, FIELD)
    wanted = ndimage.map_coordinates(x, np.indices((4, 5)) + FIELD, **options)
    assert np.allclose(D @ x, wanted)
    assert (A.codomain, D.codomain) == (SPACE, SPACE)
    assert str(lo.DeformationField(SPACE, FIELD, reach=2).rule) == "y~2 x~2 -> y x"
    with pytest.raises(lo.errors.ShapeError, match="along 2 axes takes a matrix"):
        lo.AffineTransform(SPACE, matrix, [1.0])
    with pytest.raises(lo.errors.ShapeError, match="two axes"):
        lo.Rotate(SPACE, 1.0, ("x",))


def test_warps_have_derivatives_in_their_numbers() -> None:
    torch = pytest.importorskip("torch")
    angle = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    x = torch.from_numpy(SPACE.random(0))
    (lo.Rotate(SPACE, angle) @ x).square().sum().backward()
    values = [float(((lo.Rotate(SPACE, 0.3 + h) @ x.numpy()) ** 2).sum()) for h in (1e-6, -1e-6)]
    assert float(angle.grad) == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("antialias", [True, False])
def test_resampling_is_that_of_jax(antialias: bool) -> None:
    image = pytest.importorskip("jax").image
    x = ODD.random(0)
    for shape in [(2, 2, 2), (5, 9, 3), (3, 1, 12)]:
        A = lo.Resample(ODD, shape, antialias=antialias)
        assert np.allclose(A @ x, image.resize(x, shape, "linear", antialias=antialias), atol=1e-6)
    assert A.codomain.spacing == pytest.approx((1.0, 4.0, 5 / 6))
    assert A.codomain.axes == ODD.axes
    with pytest.raises(lo.errors.ShapeError, match="1 or more"):
        lo.Resample(ODD, 0)


def test_programs_of_jax_in_single_precision_hold_the_points() -> None:
    jax = pytest.importorskip("jax")
    A = lo.Rotate(SPACE.with_dtype("float32"), 0.3)
    device = jax.devices("cpu")[:1]
    B, x = plan(A, devices=device, executor="shard_map", probe=False).lower(), A.domain.random(0)
    assert np.allclose(B.codomain.home.gather(B @ x), A @ x, atol=1e-6)
