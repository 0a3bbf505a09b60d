"""The geometry operator with parameters of a surface: both modes against the cell matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cell_matrix import cell_matrix

from geometries import ConeBeam, Detector, FanBeam, Grid, Projector, Trajectory
from geometries.surfaces import Surface
from linops.errors import GeometryError

T = np.array([0.231, 0.811, 1.431])
FLAT, SOLID = Grid((3, 4), (1.1, 0.7)), Grid((2, 3, 4), (1.3, 0.9, 0.6))
DEPTH, BEND = np.array(0.7), np.array([0.3, -0.2])


def sampler_of(xp: Any, dims: int) -> Any:
    def sampler(a: Any, b: Any, view: Any, depth: Any, bend: Any) -> Any:
        level = b + 0.1 * bend[1] * (dims - 2) * a * (1.0 + view)
        return xp.stack([a + 0.1 * bend[0] * xp.sin(a), level, depth * xp.cos(a + b + view)], -1)

    return sampler


def scan(xp: Any, kind: str, parameters: Any) -> Trajectory:
    surface = Surface(sampler_of(xp, 2 if kind == "fan" else 3), parameters)
    if kind == "fan":
        return FanBeam(T, Detector(5, 0.91, 0.13, surface), 7.1, 12.4).trajectory
    return ConeBeam(T, Detector((2, 3), (0.67, 0.91), (0.11, -0.17), surface), 7.1, 12.4).trajectory


def differences(kind: str, x: np.ndarray, move: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    ends = []
    for step in (1e-5, -1e-5):
        parameters = [p + step * m for p, m in zip((DEPTH, BEND), move, strict=True)]
        moved = scan(np, kind, parameters)
        ends.append(cell_matrix(moved, FLAT if kind == "fan" else SOLID) @ x.ravel())
    return (ends[0] - ends[1]) / 2e-5


def point(frames: Trajectory) -> tuple[np.ndarray, ...]:
    host = frames.host
    return tuple(np.array(f) for f in (host.sources, host.centers, host.u, host.v) if f is not None)


@pytest.mark.usefixtures("quick_xla")
@pytest.mark.parametrize(("library", "kind"), [("torch", "fan"), ("torch", "cone"), ("jax", "fan")])
def test_both_modes_are_the_differences_of_the_cell_matrix(library: str, kind: str) -> None:
    module: Any = pytest.importorskip(library)
    jax: Any = pytest.importorskip("jax")
    xp = module if library == "torch" else module.numpy
    make = module.tensor if library == "torch" else xp.asarray
    rng = np.random.default_rng(3)
    with jax.enable_x64(True):
        A = Projector(scan(xp, kind, [make(DEPTH), make(BEND)]), FLAT if kind == "fan" else SOLID,
                      precision="float64")  # fmt: skip
        x, y = rng.standard_normal(A.domain.shape), rng.standard_normal(A.codomain.shape)
        N, frames = A.geometry_operator(x), point(A.geometry)
        at = (*frames, DEPTH, BEND)
        np.testing.assert_allclose(N(at), A @ x, atol=1e-13)
        J = N.jacobian(at)
        back = J.H(y)
        assert [part.shape for part in back] == [part.shape for part in at]
        for number, index in ((0, ()), (1, (0,)), (1, (1,))):
            move = [np.zeros_like(DEPTH), np.zeros_like(BEND)]
            move[number][index] = 1
            wanted = differences(kind, x, (move[0], move[1]))
            pushed = J((*(np.zeros_like(f) for f in frames), *move))
            np.testing.assert_allclose(pushed.ravel(), wanted, atol=1e-6)
            assert back[len(frames) + number][index] == pytest.approx((pushed * y).sum(), abs=1e-12)
        # Frames move beside the parameters.
        moves = tuple(0.1 * rng.standard_normal(f.shape) for f in (*frames, DEPTH, BEND))
        inner = sum(np.sum(b * m) for b, m in zip(back, moves, strict=True))
        assert inner == pytest.approx(np.sum(J(moves) * y), rel=1e-11)


def test_gradients_come_in_the_dtype_of_their_parameter_and_through_autograd() -> None:
    torch = pytest.importorskip("torch")
    parameters = [torch.tensor(DEPTH), torch.tensor(BEND, dtype=torch.float32)]
    A = Projector(scan(torch, "cone", parameters), SOLID, precision="float64")
    x, y = torch.from_numpy(A.domain.random(0)), torch.from_numpy(A.codomain.random(1))
    at = (*map(torch.from_numpy, point(A.geometry)), *parameters)
    N = A.geometry_operator(x)
    found = N.vjp(at, y)
    assert [part.dtype for part in found[-2:]] == [torch.float64, torch.float32]
    leaves = [part.clone().requires_grad_() for part in at]
    (N(tuple(leaves)) * y).sum().backward()
    for leaf, part in zip(leaves, found, strict=True):
        assert leaf.grad.dtype == part.dtype
        np.testing.assert_allclose(leaf.grad, part, rtol=1e-6, atol=1e-9)
    with pytest.raises(RuntimeError, match="second derivatives with respect to the geometry"):
        N.jvp(tuple(leaves), tuple(map(torch.ones_like, leaves))).sum().backward()


def test_a_backward_pass_uses_the_surface_of_its_forward_pass() -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(np.random.default_rng(0).random(SOLID.shape))

    def forward(depth: Any) -> Any:
        parameters = [depth, torch.tensor(BEND)]
        return (Projector(scan(torch, "cone", parameters), SOLID, precision="float64") @ x).sum()

    fixed = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    (wanted,) = torch.autograd.grad(forward(fixed), fixed)
    depth = fixed.detach().clone().requires_grad_()
    first = forward(depth)
    with torch.no_grad():
        depth += 0.4
    second = forward(depth)
    (found,) = torch.autograd.grad(first, depth)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    assert abs(float(torch.autograd.grad(second, depth)[0] - wanted)) > 1e-5


def test_every_update_of_parameters_is_checked_and_numpy_has_no_slope() -> None:
    A = Projector(scan(np, "fan", [DEPTH, BEND]), FLAT, precision="float64")
    N, frames = A.geometry_operator(A.domain.random(0)), point(A.geometry)
    at = (*frames, DEPTH, BEND)
    with pytest.raises(GeometryError, match="finite"):
        N((*frames, np.array(np.nan), BEND))
    np.testing.assert_array_equal(N(at), A @ N.x)
    with pytest.raises(GeometryError, match="torch or JAX"):
        N.jacobian(at)
