"""Phantoms, noise and measures: closed forms, other libraries, and the projectors themselves."""

from __future__ import annotations

import numpy as np
import pytest

import geometries as g
from geometries.simulation.phantom import Ellipsoid
from linops.errors import GeometryError, ShapeError

ANGLES = np.linspace(0, 2 * np.pi, 7, endpoint=False) + 0.1
BEAMS = {
    "parallel": g.ParallelBeam(ANGLES, g.Detector(40, 0.06)),
    "fan": g.FanBeam(ANGLES, g.Detector(40, 0.12), 4.0, 8.0),
    "curved": g.FanBeam(ANGLES, g.Detector(40, 0.12, curvature=8.0), 4.0, 8.0),
    "cone": g.ConeBeam(ANGLES, g.Detector((12, 40), 0.12), 4.0, 8.0),
    "helix": g.ConeBeam(ANGLES, g.Detector((12, 40), 0.12), 4.0, 8.0, advance=0.5),
    "oblique": g.MultiAxisParallel(ANGLES, 0.4, g.Detector((20, 40), 0.06)),
}


@pytest.mark.parametrize("name", BEAMS)
def test_line_integrals_are_what_projectors_of_fine_grids_find(name: str) -> None:
    beam = BEAMS[name]
    dims = beam.trajectory.dims
    phantom = g.Phantom(
        [
            Ellipsoid(1.0, (0.6, 0.4, 0.5)[:dims], (0.1, -0.2, 0.1)[:dims], 0.5),
            Ellipsoid(-0.5, (0.2, 0.3, 0.3)[:dims], (0.2, 0.0, 0.0)[:dims]),
        ]
    )
    n = 256 if dims == 2 else 64
    grid = g.Grid((n,) * dims, 2 / n)
    exact = phantom.line_integrals(beam)
    found = g.Projector(beam, grid, "siddon") @ phantom.image(grid, 2)
    assert exact.shape == found.shape and exact.dtype == np.float32
    # Steps at the edges of the shapes are off by a cell at most: the error falls as 1 / n.
    assert np.linalg.norm(exact - found) < (2.0 / n) * np.linalg.norm(found)


def test_chords_of_cut_and_turned_ellipses() -> None:
    points = np.array([[0.3, -0.2], [0.0, 0.1], [-0.4, 0.3]])
    directions = np.array([[np.cos(t), np.sin(t)] for t in (0.2, 1.5, np.pi / 2)])
    shape = Ellipsoid(1.0, (1.0, 0.5), (0.1, 0.2), 0.7, ((0.3, 0.4), (0.2, 2.0)))
    steps = np.linspace(-3, 3, 600_001)
    for p, d in zip(points, directions, strict=True):
        inside = shape.inside(p + steps[:, None] * d)
        chord = shape.chords(p[None], d[None])[0]
        assert chord == pytest.approx(inside.mean() * 6, abs=3e-5) and chord > 0
    half = Ellipsoid(1.0, (1.0, 1.0), (0.0, 0.0), 0.0, ((0.25, 0.0),))
    lines = half.chords(np.array([[0.2, 0.0], [0.3, 0.0]]), np.array([[0.0, 1.0]] * 2))
    assert np.allclose(lines, [2 * np.sqrt(1 - 0.04), 0.0])


def test_masses_of_phantoms() -> None:
    # A parallel view integrates to the area of all ellipses times their values.
    beam = g.ParallelBeam([0.3], g.Detector(4000, 0.0005))
    for phantom in (g.shepp_logan(), g.random_ellipses(12, 3), g.resolution_chart()):
        mass = sum(s.value * np.pi * np.prod(s.semi_axes) for s in phantom.shapes)
        assert phantom.line_integrals(beam, "float64").sum() * 0.0005 == pytest.approx(
            mass, rel=1e-4
        )
    ball = g.Phantom([Ellipsoid(3.0, (0.5, 0.25, 0.75), (0.1, 0.2, -0.1), 0.4)])
    volume = ball.image(g.Grid((40, 40, 40), 0.05), 4).sum() * 0.05**3
    assert volume == pytest.approx(3 * 4 / 3 * np.pi * 0.5 * 0.25 * 0.75, rel=5e-3)


def test_shepp_logan_is_that_of_scikit_image() -> None:
    data = pytest.importorskip("skimage.data")
    wanted = data.shepp_logan_phantom()  # of 400 pixels, rows from the top
    found = g.shepp_logan().image(g.Grid((400, 400), 2 / 400), 1)[::-1]
    assert np.mean(np.abs(found - wanted) > 0.01) < 0.02
    low = g.shepp_logan(modified=False)
    assert np.allclose(low.values(np.array([[0.0, 0.0], [0.0, 0.9]])), [1.02, 2.0])
    assert g.shepp_logan(3).values(np.array([0.0, 0.89, 0.0])) == pytest.approx(1.0)


def test_forbild_head_has_the_published_values() -> None:
    head = g.forbild_head()
    points = {
        (0.0, 11.7): 1.8,  # the skull
        (-6.0, -3.0): 1.05,  # brain
        (0.0, -3.0): 1.045,  # ventricle
        (0.0, 7.0): 0.0,  # the air of the frontal sinus
        (0.0, 3.6): 1.8,  # bone in the middle
        (4.7, 4.3): 1.06,  # an eye
        (9.0, 9.0): 0.0,
    }
    for point, value in points.items():
        assert head.values(np.array(point)) == pytest.approx(value, abs=1e-12), point
    beam = g.ParallelBeam(ANGLES, g.Detector(60, 0.45))
    grid = g.Grid((256, 256), 26 / 256)
    found = g.Projector(beam, grid, "siddon") @ head.image(grid, 4)
    exact = head.line_integrals(beam)
    assert np.linalg.norm(exact - found) < 0.01 * np.linalg.norm(exact)


def test_scaled_and_mistaken_phantoms() -> None:
    head, x = g.forbild_head(), np.array([[0.1, 0.36], [0.0, 0.96], [0.3, -0.8]])
    assert np.allclose(head.scaled(0.1, 2.0).values(x), 2 * head.values(10 * x))
    assert g.random_ellipses(3, 1).shapes == g.random_ellipses(5, 1).shapes[:4]
    with pytest.raises(GeometryError, match="of 2 dimensions takes a geometry"):
        head.line_integrals(BEAMS["cone"])
    with pytest.raises(GeometryError, match="of 2 dimensions takes a grid"):
        head.image(g.Grid((3, 3, 3)))
    with pytest.raises(GeometryError, match="semi-axes > 0"):
        Ellipsoid(1.0, (1.0, 0.0), (0.0, 0.0))
    with pytest.raises(GeometryError, match="one or more shapes"):
        g.Phantom([])


def test_counts_come_back_as_line_integrals() -> None:
    lines = g.shepp_logan().line_integrals(BEAMS["fan"])
    profile = np.linspace(0.5, 1.5, 40) * 1e7
    counted = g.poisson_counts(lines, profile, seed=2, flats=20, dark=100.0)
    back = g.line_integrals(*counted).data
    assert np.abs(back - lines).max() < 0.01
    # The variance of a logarithm of counts is 1 / counts.
    flat = g.poisson_counts(np.full((2000, 5), 1.0), 1e4, seed=0)
    assert np.log(flat.counts).var() == pytest.approx(np.e / 1e4, rel=0.1)
    with pytest.raises(ShapeError, match="one for each cell"):
        g.poisson_counts(lines, profile[:3], seed=2)
    with pytest.raises(ValueError, match="0 or more"):
        g.poisson_counts(lines, -1.0, seed=2)


def test_noise_rings_and_bad_cells() -> None:
    data = np.ones((50, 4, 30), "float32")
    noisy = g.add_gaussian(data, 0.1, seed=0)
    assert noisy.dtype == np.float32 and noisy.std() == pytest.approx(0.1, rel=0.05)
    both = g.add_gaussian(data.astype("complex64"), 0.1, seed=0)
    assert both.imag.std() == pytest.approx(0.1, rel=0.05)
    rings = g.add_rings(data, 0.1, seed=1)
    assert np.ptp(rings, axis=0).max() == 0 and rings[0].std() == pytest.approx(0.1, rel=0.2)
    bad, mask = g.add_bad_cells(data, 0.1, seed=3, value=7.0)
    assert mask.sum() == 12 and (bad[:, mask] == 7).all() and (bad[:, ~mask] == 1).all()
    assert np.allclose(g.repair_cells(bad, mask), 1.0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        g.add_bad_cells(data, 2.0, seed=3)


def test_measures_are_those_of_scikit_image() -> None:
    metrics = pytest.importorskip("skimage.metrics")
    truth = g.shepp_logan().image(g.Grid((32, 32), 2 / 32))
    image = g.add_gaussian(truth, 0.05, seed=0)
    found = g.image_quality(image, truth)
    difference = (image - truth).astype("float64")
    assert found.rmse == pytest.approx(np.sqrt((difference**2).mean()))
    assert found.nrmse == pytest.approx(np.linalg.norm(difference) / np.linalg.norm(truth))
    assert found.psnr == pytest.approx(20 * np.log10(np.ptp(truth) / found.rmse))
    wanted = metrics.structural_similarity(truth, image, data_range=float(np.ptp(truth)))
    assert found.ssim == pytest.approx(wanted, rel=1e-5)
    assert g.image_quality(truth, truth)[:2] == (np.inf, 1.0)
    with pytest.raises(ShapeError, match="one shape"):
        g.image_quality(truth, truth[1:])
