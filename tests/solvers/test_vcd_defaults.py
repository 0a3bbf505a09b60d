"""What `vcd` chooses for a scan: start, region, damping of means; a truncated scan warns."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import linops as lo
from geometries import ConeBeam, Detector, FanBeam, Grid, ParallelBeam, Projector
from sharding import plan
from solvers import vcd
from solvers.beam import damp_means
from solvers.plane_partitions import region

TURN = np.linspace(0, 2 * np.pi, 40, endpoint=False)


def cone(center: float = 0.0, slices: int = 3, advance: float = 0.0) -> Projector:
    beam = ConeBeam(TURN, Detector((slices + 4, 24)), 40.0, 60.0, advance=advance)
    grid = Grid((slices, 8, 8), center=(center, 0.0, 0.0))
    return Projector(beam, grid, precision="float64")


def disc(n: int, radius: float) -> np.ndarray:
    y, x = np.meshgrid(*2 * [np.arange(n) - (n - 1) / 2], indexing="ij")
    return (x**2 + y**2 <= radius**2).astype(float)


def test_means_are_damped_by_the_distance_from_the_plane_of_the_source() -> None:
    # L = 8, source_to_axis = 40 and dz = 1: t = z / 5. Closed form of the factor at t.
    wanted = {0: 0.25, 1: 0.259571625971, 10: 0.291584382704, 100: 0.375, 1000: 0.458415617296}
    for t, factor in wanted.items():
        means = damp_means(cone(center=5.0 * t, slices=1))
        assert means is not None and means == pytest.approx(np.array([[factor]]), abs=1e-11)
    # A helix: the mean over the heights of its sources, -20 to 20 here.
    helix = cone(slices=1, advance=40.0)
    heights = np.asarray(helix.geometry.sources)[:, 2]
    t = np.abs(heights) / 5
    mean = ((0.5 * t**0.7 + 0.25 * 100**0.7) / (t**0.7 + 100**0.7)).mean()
    assert np.ptp(heights) > 30 and damp_means(helix) == pytest.approx(np.array([[mean]]))
    flat = Projector(ParallelBeam(TURN, Detector(12)), Grid((8, 8)))
    assert damp_means(flat) is None and damp_means(lo.Identity(lo.Space((3, 3)))) is None


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [1, 5])
def test_damping_leaves_the_minimiser_as_it_is(partitions: int) -> None:
    A = cone()
    M = A.to_dense()
    y = M @ np.sin(np.arange(A.shape[1]))
    prior = lo.QGGMRF(A.domain, p=2.0, q=2.0, sigma_x=0.5)
    H = prior.surrogate(A.domain.zeros()).to_dense()
    wanted = np.linalg.solve(M.T @ M / 0.3**2 + H, M.T @ y / 0.3**2)
    found = vcd(
        A, A.codomain.unravel(y), prior, sigma_y=0.3, iterations=400, partitions=partitions,
        roi=None, x0="zero", damping=True,
    )  # fmt: skip
    assert np.abs(found.solution.ravel() - wanted).max() < 1e-6


def test_it_starts_from_the_analytic_reconstruction_within_the_region() -> None:
    A = Projector(ParallelBeam(TURN / 2, Detector(40)), Grid((32, 32)), precision="float64")
    y = A @ disc(32, 12)
    start = vcd(A, y, iterations=0).solution
    image = A @ start
    assert np.linalg.norm(image - y) < 0.05 * np.linalg.norm(y)
    assert np.vdot(image, y) == pytest.approx(np.vdot(image, image))  # the best factor
    outside = np.ones(32 * 32, bool)
    outside[region("ellipse", (32, 32))] = False
    assert not start.ravel()[outside].any() and start.ravel()[~outside].any()
    assert vcd(A, y, iterations=0, roi=None).solution.ravel()[outside].any()
    assert not vcd(A, y, iterations=0, x0="zero").solution.any()
    nothing = vcd(A, 0 * y, iterations=2)
    assert not nothing.solution.any()
    given = vcd(A, y, iterations=1, x0=np.ones((32, 32)))
    assert (given.solution.ravel()[outside] == 1).all()


def test_a_truncated_scan_warns_and_a_whole_one_does_not() -> None:
    image = disc(32, 14)
    for columns, cut in ((40, False), (20, True)):
        A = Projector(
            FanBeam(TURN, Detector(columns), 400.0, 400.0), Grid((32, 32)), precision="float64"
        )
        y = A @ image
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            vcd(A, y, iterations=1)
        assert any("truncated" in str(one.message) for one in told) is cut


@pytest.mark.parametrize("devices", [2, 3])
def test_a_plan_of_a_damped_cone_gives_the_same(devices: int) -> None:
    A = cone(slices=5)
    y = A @ np.random.default_rng(0).random(A.domain.shape)
    prior = lo.QGGMRF(A.domain, sigma_x=0.5)
    alone = vcd(A, y, prior, iterations=2, partitions=3).solution
    B = plan(A, devices=devices, executor="threads", partition="z", probe=False).lower()
    planned = vcd(B, y, prior, iterations=2, partitions=3).solution
    assert np.abs(B.domain.home.gather(planned) - alone).max() < 1e-10


def test_damping_that_cannot_be_is_refused() -> None:
    A = lo.Identity(lo.Space((4, 4)))
    with pytest.raises(ValueError, match="no diverging beam"):
        vcd(A, np.ones((4, 4), "f4"), damping=True)
    with pytest.raises(ValueError, match="True, False or 'auto'"):
        vcd(A, np.ones((4, 4), "f4"), damping="on")
