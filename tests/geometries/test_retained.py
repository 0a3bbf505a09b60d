"""Scans made of tensors that an optimiser writes to: followed when made anew, refused when not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from geometries import Detector, Grid, ParallelBeam, Projector, Trajectory, fbp
from linops.errors import GeometryError

torch = pytest.importorskip("torch")

ANGLES = np.linspace(0.1, 3.0, 5)
GRID = Grid((4, 4))


def of_angles(p: Any) -> Any:
    return ParallelBeam(torch.tensor(ANGLES) + p, Detector(6))


def of_centers(p: Any) -> Any:
    beam = ParallelBeam(ANGLES, Detector(6))
    moved = torch.tensor(np.array(beam.centers)) + p * torch.tensor(np.array(beam.u))
    return Trajectory("parallel", beam.directions, moved, beam.u, None, beam.detector)


def of_leaf(p: Any) -> Any:
    return ParallelBeam(p, Detector(6))


def of_pitch(p: Any) -> Any:
    return ParallelBeam(ANGLES, Detector(6, 1.0 + p))


def of_offset(p: Any) -> Any:
    return ParallelBeam(ANGLES, Detector(6, 1.0, p))[1:4]


SCANS = {
    of_angles: 0.1,
    of_centers: 0.3,
    of_leaf: ANGLES,
    of_pitch: 0.1,
    of_offset: 0.2,
}


@pytest.mark.parametrize("model", ["siddon", "joseph"])
@pytest.mark.parametrize("make", SCANS)
def test_old_numbers_never_come_back(make: Callable[[Any], Any], model: str) -> None:
    p = torch.nn.Parameter(torch.tensor(SCANS[make], dtype=torch.float64))
    scan = make(p)
    A = Projector(scan, GRID, model)
    x, y = torch.rand(4, 4), torch.rand(scan.views, 6)
    (A @ x).square().sum().backward()
    torch.optim.SGD([p], 1e-3).step()
    some = np.arange(3)
    for use in (
        lambda: A @ x,
        lambda: A @ x.numpy(),
        lambda: A.H @ y,
        lambda: A.T @ y,
        lambda: A.columns(some) @ x.ravel()[:3],
        lambda: A.gram() @ x,
        lambda: A.gram().diagonal(),
        lambda: A.block("view", 0, 2) @ x,
        lambda: Projector(scan, GRID, model),
        lambda: Projector(scan[1:3], GRID, model),
        lambda: A.with_geometry(scan),
    ):
        for context in (torch.no_grad(), torch.enable_grad()):
            with (
                context,
                pytest.raises(GeometryError, match=r"fresh Projector or A\.with_geometry"),
            ):
                use()
    with pytest.raises(GeometryError):
        fbp(A, y)
    followed = A.with_geometry(make(p))
    with torch.no_grad():
        wanted = Projector(make(p.detach()), GRID, model) @ x
        np.testing.assert_allclose(followed @ x, wanted, rtol=1e-5, atol=1e-6)


def test_a_scan_made_in_every_step_is_calibrated() -> None:
    x = torch.rand(4, 4, generator=torch.Generator().manual_seed(0))
    y = Projector(of_centers(torch.tensor(0.4, dtype=torch.float64)), GRID, "joseph") @ x
    p = torch.nn.Parameter(torch.tensor(0.25, dtype=torch.float64))
    optimiser = torch.optim.SGD([p], 0.02)
    losses = []
    for _ in range(6):
        optimiser.zero_grad()
        loss = (Projector(of_centers(p), GRID, "joseph") @ x - y).square().sum()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.5 * losses[0]
