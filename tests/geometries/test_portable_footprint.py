"""The footprint by array code: the compiled weights, the contract, derivatives in the geometry."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from footprint_scans import scans

from geometries import ConeBeam, Detector, FanBeam, Grid, ParallelBeam, Projector, Surface
from geometries.kernels import portable_footprint
from geometries.kernels.portable_views import scan_of
from linops import arrays
from linops.errors import GeometryError
from linops.testing import check_operator

NAMES = tuple(scans())


def pair(name: str, precision: str = "float64", **options: Any) -> tuple[Projector, Projector]:
    geometry, grid = scans()[name]
    options |= {"model": "footprint", "precision": precision}
    portable = Projector(geometry, grid, backend="portable", **options)
    assert (portable.backend, portable.model) == ("portable", "footprint")
    return Projector(geometry, grid, backend="numba", **options), portable


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["trapezoid", "box"])
@pytest.mark.parametrize("name", NAMES)
def test_weights_are_the_compiled_ones(name: str, profile: str) -> None:
    A, B = pair(name, profile=profile)
    wanted = A.to_dense()
    np.testing.assert_allclose(B.to_dense(), wanted, rtol=1e-12, atol=4e-15)
    np.testing.assert_allclose(B.H.to_dense().T, B.to_dense(), rtol=4e-15, atol=0)
    w = A.codomain.random(3) ** 2
    for weights, scale in ((None, np.ones(A.codomain.size)), (w, w.ravel())):
        found, sums = B.gram(weights).diagonal(), (wanted**2 * scale[:, None]).sum(0)
        np.testing.assert_allclose(found.ravel(), sums, rtol=1e-12, atol=1e-12 * sums.max())


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (2, 3)])
def test_detectors_may_be_narrower_than_a_shadow(rows: int, cols: int) -> None:
    grid, t = Grid((3, 4, 5), 2.0), np.array([0.1, 0.9])
    for beam in (
        ParallelBeam(t, Detector((rows, cols), (0.7, 0.4))),
        ConeBeam(t, Detector((rows, cols), (0.7, 0.4), (0.5, -2.0)), 40, 70),
    ):
        A, B = (Projector(beam, grid, "footprint", b, "float64") for b in ("numba", "portable"))
        assert np.count_nonzero(A.to_dense()) > 8 * rows * cols
        np.testing.assert_allclose(B.to_dense(), A.to_dense(), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(B.H.to_dense().T, B.to_dense(), rtol=4e-15, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_precisions_agree(name: str) -> None:
    exact, found = pair(name)[0], pair(name, "fast")[1]
    x, y = exact.domain.random(0), exact.codomain.random(1)
    wanted, back = exact @ x, exact.H @ y
    assert np.abs(found @ x.astype("float32") - wanted).max() <= 2e-6 * np.abs(wanted).max()
    assert np.abs(found.H @ y.astype("float32") - back).max() <= 2e-6 * np.abs(back).max()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "precision"), [("fan", "fast"), ("helix", "float64")])
def test_it_keeps_the_contract(name: str, precision: str) -> None:
    check_operator(pair(name, precision)[1])


def test_batches_of_voxels_change_rounding_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fan", "helix"):
        A, B = pair(name)
        x, y = A.domain.random(0), A.codomain.random(1)
        monkeypatch.setattr(portable_footprint, "_BYTES", 1 << 9)
        assert portable_footprint._batches(scan_of(B))[1] > 2
        np.testing.assert_allclose(B @ x, A @ x, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(B.H @ y, A.H @ y, rtol=1e-12, atol=1e-13)


def test_the_operator_of_rays_is_refused() -> None:
    A = pair("fan")[0]
    with pytest.raises(GeometryError, match="footprint"):
        A.geometry_operator(A.domain.random(0))


def test_surfaces_have_no_footprint() -> None:
    detector = Detector(7, 1.0, 0.0, Surface(lambda a, b, view: np.stack([a, 0 * a, 0 * a], -1)))
    with pytest.raises(GeometryError, match="surface"):
        Projector(ParallelBeam(TURNS, detector), FLAT, "footprint")


FLAT, SOLID = Grid((6, 7), (1.1, 0.7), (0.3, -0.2)), Grid((4, 5, 6), (0.9, 0.8, 0.7))
TURNS = np.array([0.231, 0.811, 1.431])


def beam(kind: str, p: Any) -> tuple[Any, Grid]:
    """A scan whose angles, axis, distance, offset and pitch move with p (5,)."""
    angles = p[0] + arrays.convert(TURNS, p)
    row = Detector(8, 1.1 + p[4], 0.13 + p[3])
    panel = Detector((5, 6), (0.8, 1.1 + p[4]), (0.11, -0.17 + p[3]))
    if kind == "parallel":
        return ParallelBeam(angles, row), FLAT
    if kind == "fan":
        return FanBeam(angles, row, 12.0 + p[1], 20.0 + p[2]), FLAT
    if kind == "unaligned":
        return ParallelBeam(angles, panel), SOLID
    return ConeBeam(angles, panel, 12.0 + p[1], 20.0 + p[2]), SOLID


KINDS = ("parallel", "fan", "unaligned", "cone")


def differences(kind: str, x: np.ndarray, y: np.ndarray, adjoint: bool) -> np.ndarray:
    """Central differences of <y, A x> in the parameters, by the compiled code."""
    found = []
    for k in range(5):
        ends = []
        for step in (-1e-5, 1e-5):
            p = np.zeros(5)
            p[k] = step
            A = Projector(*beam(kind, p), "footprint", "numba", "float64")
            ends.append(np.sum(x * (A.H @ y)) if adjoint else np.sum(y * (A @ x)))
        found.append((ends[1] - ends[0]) / 2e-5)
    return np.array(found)


def data(kind: str) -> tuple[np.ndarray, np.ndarray]:
    A = Projector(*beam(kind, np.zeros(5)), "footprint", precision="float64")
    return A.domain.random(0), A.codomain.random(1)


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_torch_differentiates_in_the_geometry(kind: str, adjoint: bool) -> None:
    torch = pytest.importorskip("torch")
    x, y = data(kind)
    p = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    A = Projector(*beam(kind, p), "footprint", precision="float64")
    assert A.backend == "portable"
    tx, ty = torch.tensor(x, requires_grad=True), torch.tensor(y)
    total = (tx * (A.H @ ty)).sum() if adjoint else (ty * (A @ tx)).sum()
    total.backward()
    wanted = differences(kind, x, y, adjoint)
    np.testing.assert_allclose(p.grad.numpy(), wanted, rtol=1e-5, atol=1e-5)
    fixed = Projector(*beam(kind, np.zeros(5)), "footprint", precision="float64")
    np.testing.assert_allclose(tx.grad.numpy(), fixed.H @ y, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("profile", ["trapezoid", "box"])
def test_second_derivatives_in_the_geometry_are_right(profile: str) -> None:
    # A footprint is recorded, not declared: its slope is piecewise smooth in the geometry.
    torch = pytest.importorskip("torch")
    x, y = map(torch.from_numpy, data("fan"))

    def slope(at: float) -> Any:
        p = torch.full((5,), at, dtype=torch.float64, requires_grad=True)
        A = Projector(*beam("fan", p), "footprint", precision="float64", profile=profile)
        return p, torch.autograd.grad((y * (A @ x)).sum(), p, create_graph=True)[0]

    p, first = slope(0.0)
    found = torch.autograd.grad(first.sum(), p)[0].sum()
    ends = [float(slope(step)[1].sum().detach()) for step in (1e-6, -1e-6)]
    assert float(found) == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_xla")
@pytest.mark.parametrize("kind", ["cone"])
def test_jax_differentiates_in_the_geometry(kind: str) -> None:
    jax = pytest.importorskip("jax")
    x, y = data(kind)
    with jax.enable_x64(True):

        def total(p: Any) -> Any:
            A = Projector(*beam(kind, p), "footprint", precision="float64")
            return jax.numpy.sum(jax.numpy.asarray(y) * (A @ jax.numpy.asarray(x)))

        def both(p: Any, move: Any) -> Any:
            return jax.grad(total)(p), jax.jvp(total, (p,), (move,))[1]

        move = jax.numpy.asarray([0.3, 1.0, -0.5, 0.7, 0.2])
        found, moved = jax.jit(both)(jax.numpy.zeros(5), move)
    wanted = differences(kind, x, y, False)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(moved, wanted @ [0.3, 1.0, -0.5, 0.7, 0.2], rtol=1e-5, atol=1e-5)
