"""How far `vcd` comes on a Shepp-Logan head of low contrast in 15 passes, beside filtered
backprojection."""

from __future__ import annotations

import numpy as np
import pytest

import linops as lo
from geometries import Detector, Grid, ParallelBeam, Projector, fbp
from solvers import automatic_regularization, vcd

# Ellipsoids on -1 to 1 along every axis: x, y, z; semi-axes; angle in the plane; added value.
HEAD = (
    ((0, 0, 0), (0.69, 0.92, 0.9), 0, 1.0),
    ((0, 0.0184, 0), (0.6624, 0.874, 0.88), 0, -0.8),
    ((0.22, 0, 0), (0.41, 0.16, 0.21), 108, -0.2),
    ((-0.22, 0, 0), (0.31, 0.11, 0.22), 72, -0.2),
    ((0, 0.35, 0), (0.21, 0.25, 0.5), 0, 0.1),
    ((0, 0.1, 0), (0.046, 0.046, 0.046), 0, 0.1),
    ((0, -0.1, 0), (0.046, 0.046, 0.046), 0, 0.1),
    ((-0.08, -0.605, 0), (0.046, 0.023, 0.02), 0, 0.1),
    ((0, -0.605, 0), (0.023, 0.023, 0.02), 0, 0.1),
)


def head(shape: tuple[int, int, int]) -> np.ndarray:
    z, y, x = np.meshgrid(*(np.linspace(-1, 1, n) for n in shape), indexing="ij")
    volume = np.zeros(shape, "float32")
    for (cx, cy, cz), (a, b, c), degrees, value in HEAD:
        t = np.deg2rad(degrees)
        along = (x - cx) * np.cos(t) + (y - cy) * np.sin(t)
        across = (y - cy) * np.cos(t) - (x - cx) * np.sin(t)
        volume[(along / a) ** 2 + (across / b) ** 2 + ((z - cz) / c) ** 2 <= 1] += value
    return volume


def errors(found: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Root mean square over that of the truth, largest, and 95 % quantile."""
    off = np.abs(found - truth)
    relative = np.linalg.norm(off) / np.linalg.norm(truth)
    return np.array([relative, off.max(), np.quantile(off, 0.95)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "dy", "slices", "early", "late"),
    [
        ((40, 128, 128), 1.0, slice(None), 0.33, (0.11, 0.33, 0.04)),
        ((40, 67, 128), 1.9, slice(16, 24), 0.21, (0.20, 0.45, 0.08)),
    ],
    ids=["square", "wide pixels"],
)
def test_fifteen_passes(shape, dy, slices, early, late) -> None:
    truth = head(shape)[slices]
    beam = ParallelBeam(np.arange(64) * (np.pi / 64), Detector((len(truth), 128)))
    A = Projector(beam, Grid(truth.shape, (1.0, dy, 1.0)), model="footprint")
    y = A @ truth
    chosen = automatic_regularization(A, y, sharpness=1.0, snr_db=30.0)
    prior = lo.QGGMRF(A.domain, sigma_x=chosen.sigma_x)
    after: list[float] = []

    def note(iteration: int, residual: float, solution: np.ndarray) -> None:
        after.append(errors(solution, truth)[0])

    found = vcd(
        A, y, prior, sigma_y=chosen.sigma_y, iterations=15, change_rtol=0.002, callback=note
    ).solution
    assert after[2] <= early
    assert (errors(found, truth) <= late).all()
    assert errors(found, truth)[0] < 0.5 * errors(fbp(A, y), truth)[0]
