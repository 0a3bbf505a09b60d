"""Helical scans: weights against their definition, cylinders of known value, blocks and streams."""

import math

import numpy as np
import pytest

import geometries as ge
from linops.algebra.composition import flat_product
from linops.errors import GeometryError, ShapeError
from linops.stores import ArrayStore
from linops.testing import check_operator
from sharding import plan


def helix(sense=1.0, advance=4.0, views=240, shape=(65, 129), curvature=None):
    angles = sense * (np.arange(views) / views * 6 * math.pi - 3 * math.pi)
    detector = ge.Detector(shape, (0.25, 0.125), curvature=curvature)
    return ge.ConeBeam(angles, detector, 20.0, 40.0, advance=advance)


def cylinder(beam, middle, radius=2.0):
    """Line integrals through an endless upright cylinder of value 1."""
    frames = beam.trajectory.host
    ends = np.stack([frames.pixels(k) for k in range(frames.views)])
    ray = ends - frames.sources[:, None, None]
    ray /= np.linalg.norm(ray, axis=-1, keepdims=True)
    start = (frames.sources[:, None, None] - (*middle, 0.0))[..., :2]
    a = (ray[..., :2] ** 2).sum(-1)
    b = (start * ray[..., :2]).sum(-1)
    c = (start**2).sum(-1) - radius**2
    return 2 * np.sqrt(np.maximum(b**2 - a * c, 0)) / a


@pytest.mark.slow
@pytest.mark.parametrize("middle", [(0.0, 0.0), (0.5, -0.3)])
@pytest.mark.parametrize(
    ("sense", "advance", "curvature"),
    [(1, 4.0, None), (-1, 4.0, None), (1, -4.0, None), (-1, -4.0, 40.0)],
)
def test_a_cylinder_has_its_value_in_every_sense_of_the_helix(middle, sense, advance, curvature):
    beam = helix(sense, advance, curvature=curvature)
    grid = ge.Grid((3, 3, 3), (0.5, 0.2, 0.2), (0.0, middle[1], middle[0]))
    A = ge.Projector(beam, grid, precision="float64")
    image = ge.helical_fdk(A, cylinder(beam, middle))
    assert np.abs(image - 1).max() < 0.03


def test_a_scan_recorded_backwards_gives_the_same_image():
    beam, grid = helix(shape=(17, 33)), ge.Grid((2, 4, 4), (0.7, 0.4, 0.4))
    frames = beam.trajectory.host
    back = ge.Trajectory(
        "cone",
        frames.sources[::-1],
        frames.centers[::-1],
        frames.u[::-1],
        frames.v[::-1],
        frames.detector,
    )
    y = cylinder(beam, (0.2, 0.1))
    forward, backward = (
        ge.helical_fdk(ge.Projector(g, grid, precision="float64"), data)
        for g, data in ((beam, y), (back, y[::-1]))
    )
    np.testing.assert_allclose(forward, backward, atol=1e-10)


def test_weights_are_the_shares_of_a_turn():
    t = np.linspace(-3 * math.pi, 3 * math.pi, 61) + 0.01 * np.sin(np.arange(61))
    z, slices = 0.4 * t, np.array([-1.3, 0.0, 2.1])
    weights = ge.helical_weights(t, z, slices)
    fine = np.linspace(t[0], t[-1], 400_001)
    edges = (t[1:] + t[:-1]) / 2
    owner = np.searchsorted(edges, fine)
    for row, height in zip(weights, slices, strict=True):
        inside = np.abs(fine - height / 0.4) <= math.pi
        counted = np.bincount(owner[inside], minlength=61) * (fine[1] - fine[0]) / 2
        np.testing.assert_allclose(row, counted, atol=2e-4)
    np.testing.assert_allclose(weights.sum(1), math.pi, rtol=1e-12)
    np.testing.assert_allclose(ge.helical_weights(t + 1e6, z, slices), weights, atol=1e-8)
    np.testing.assert_allclose(ge.helical_weights(-t, z, slices), weights, atol=1e-12)


@pytest.mark.parametrize("shift", [0.0, 1e6])
def test_a_window_that_touches_the_ends_is_covered_and_one_past_them_is_not(shift):
    t = np.linspace(-math.pi, math.pi, 33)
    np.testing.assert_allclose(ge.helical_weights(t + shift, t, [0.0]).sum(), math.pi, rtol=1e-8)
    with pytest.raises(GeometryError, match="slices \\[1\\].*covered are z from"):
        ge.helical_weights(t + shift, t, [0.0, 1e-3])
    with pytest.raises(GeometryError, match="no full turn"):
        ge.helical_weights(np.asarray(t, np.float16), t, [5e-3])


def test_what_is_no_helix_is_refused_by_name():
    t = np.linspace(0, 9, 20)
    with pytest.raises(GeometryError, match="rise or fall"):
        ge.helical_weights(t, np.zeros(20), [0.0])
    with pytest.raises(ShapeError, match="19"):
        ge.helical_weights(t, t[:19], [5.0])
    with pytest.raises(GeometryError, match="source_z"):
        ge.helical_weights(t, t * np.nan, [5.0])
    beam, grid = helix(shape=(5, 9), views=100), ge.Grid((2, 3, 3))
    A = ge.Projector(beam, grid, precision="float64")
    with pytest.raises(GeometryError, match="helical_fdk"):
        ge.fdk(A, np.zeros(A.codomain.shape))
    with pytest.raises(ShapeError, match="view_weights"):
        ge.helical_fdk(A, np.zeros(A.codomain.shape), view_weights=np.ones((3, 100)))
    wide = ge.Projector(beam, ge.Grid((9, 3, 3)), precision="float64")
    with pytest.raises(GeometryError, match="covered are z from -4 to 3"):
        ge.helical_fdk(wide, np.zeros(A.codomain.shape))


@pytest.mark.slow
def test_slices_are_gathered_one_by_one_blocks_and_streams_agree():
    beam, grid = helix(shape=(5, 9), views=100), ge.Grid((3, 2, 3), (0.6, 0.5, 0.5))
    A = ge.Projector(beam, grid, precision="float64")
    whole = ge.helical_fdk_operator(A)
    rng = np.random.default_rng(3)
    weights = rng.random((3, 100))
    gather = ge.VolumeGather(beam, grid, precision="float64", slice_weights=weights)
    check_operator(gather)
    y = rng.standard_normal((2, *A.codomain.shape))
    plain = ge.VolumeGather(beam, grid, precision="float64")
    one = ge.HelicalWeights(beam, grid.coordinates("z")[1], dtype="float64", precision="float64")
    check_operator(one)
    steps = flat_product(list(whole.terms[1:]))
    by_steps = (plain @ (one @ (steps @ y)))[:, 1]
    np.testing.assert_allclose(by_steps, (whole @ y)[:, 1], rtol=2e-11, atol=2e-11)
    for k in range(3):
        by_hand = (plain @ (weights[k][:, None, None] * y))[:, k]
        np.testing.assert_allclose((gather @ y)[:, k], by_hand, rtol=2e-11, atol=2e-11)
    target = np.full((2, *grid.shape), 73.0)
    store = ArrayStore(target)
    back = ge.helical_fdk_into(A, ArrayStore(y), store, chunks={"view": 7, "z": 2})
    assert back is store
    np.testing.assert_allclose(target, whole @ y, rtol=2e-11, atol=2e-11)
    part = ge.helical_fdk(A.block("z", 1, 3), y)
    np.testing.assert_allclose(part, (whole @ y)[:, 1:], rtol=2e-11, atol=2e-11)
    for cut in ("view", "z"):
        planned = plan(whole, devices=3, executor="threads", partition=cut, probe=False).lower()
        np.testing.assert_allclose(planned @ y[0], whole @ y[0], rtol=2e-11, atol=2e-11)
    torch = pytest.importorskip("torch")
    data, image = torch.tensor(y[0], requires_grad=True), rng.standard_normal(grid.shape)
    (ge.helical_fdk(A, data) * torch.tensor(image)).sum().backward()
    np.testing.assert_allclose(data.grad.numpy(), whole.H @ image, rtol=2e-11, atol=2e-11)


def test_rows_that_run_down_give_the_same_circular_volume():
    angles = np.arange(12) * math.pi / 6
    beam = ge.ConeBeam(angles, ge.Detector((4, 7), 0.5, (0.3, 0.0)), 10.0, 15.0)
    f = beam.trajectory.host
    down = ge.Trajectory(
        "cone", f.sources, f.centers, f.u, -f.v, ge.Detector((4, 7), 0.5, (-0.3, 0.0))
    )
    y = np.random.default_rng(0).standard_normal((12, 4, 7))
    grid = ge.Grid((3, 4, 4), 0.4)
    up, turned = (
        ge.fdk(ge.Projector(g, grid, precision="float64"), data, isocenter=(0, 0, 0))
        for g, data in ((beam, y), (down, y[:, ::-1]))
    )
    np.testing.assert_allclose(up, turned, atol=1e-11)
