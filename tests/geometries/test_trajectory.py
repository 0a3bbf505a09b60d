"""Frames: what is kept, what is normalised, what is refused with the view named."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from geometries import Detector, Grid, Projector, Trajectory
from linops.errors import DTypeError, GeometryError


def fan(**changes: Any) -> Trajectory:
    frames: dict[str, Any] = {
        "sources": [(0.0, -5.0), (5.0, 0.0), (0.0, 5.0)],
        "centers": [(0.0, 3.0), (-3.0, 0.0), (0.0, -3.0)],
        "u": [(1.0, 0.0), (0.0, 1.0), (-1.0, 0.0)],
    }
    frames.update(changes)
    return Trajectory("fan", frames["sources"], frames["centers"], frames["u"], None, Detector(4))


def cone(**changes: Any) -> Trajectory:
    frames: dict[str, Any] = {
        "sources": [(0.0, -5.0, 0.0)] * 2,
        "centers": [(0.0, 3.0, 0.0)] * 2,
        "u": [(1.0, 0.0, 0.0)] * 2,
        "v": [(0.0, 0.0, 1.0)] * 2,
    }
    frames.update(changes)
    return Trajectory(
        "cone", *(frames[k] for k in ("sources", "centers", "u", "v")), Detector((2, 3))
    )


def test_frames_are_read_only_copies() -> None:
    sources = np.array([(0.0, -5.0), (5.0, 0.0), (0.0, 5.0)])
    frames = fan(sources=sources)
    sources[:] = 7
    assert frames.sources is not None
    assert frames.sources[0].tolist() == [0, -5]
    assert (frames.views, frames.dims, frames.directions, frames.v) == (3, 2, None, None)
    for values in (frames.sources, frames.centers, frames.u):
        assert values.dtype == np.float64
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 1
    with pytest.raises(AttributeError, match="immutable"):
        frames.kind = "cone"


@pytest.mark.parametrize(
    ("index", "kept"),
    [
        (slice(1, None), [1, 2]),
        ([2, 0], [2, 0]),
        ([False, True, False], [1]),
        (-1, [2]),
        (slice(None, None, -1), [2, 1, 0]),
    ],
)
def test_subsets_keep_the_bits_of_each_frame(index: Any, kept: list[int]) -> None:
    frames = fan(u=[(1.0001, 0.0), (0.0, 1.0), (-1.0, 0.0)])
    part = frames[index]
    assert part.views == len(kept)
    assert part.u.tobytes() == frames.u[kept].tobytes()
    assert part.detector is frames.detector


def test_choosing_no_view_is_refused() -> None:
    for index in (slice(3, None), [], [False] * 3):
        with pytest.raises(GeometryError, match="no views"):
            fan()[index]
    with pytest.raises(GeometryError, match="3 views"):
        fan()[[3]]


def test_axes_near_unit_length_are_normalised() -> None:
    frames = cone(
        u=[(1.0001, 0.0, 0.0), (0.0, 1.0, 0.0)],
        sources=[(0, -5, 0), (5, 0, 0)],
        centers=[(0, 3, 0), (-3, 0, 0)],
    )
    assert frames.u.tolist() == [[1, 0, 0], [0, 1, 0]]
    assert frames.normals.tolist() == [[0, 1, 0], [-1, 0, 0]]


def test_normals_point_along_v_cross_u() -> None:
    np.testing.assert_array_equal(fan().normals, [(0, 1), (-1, 0), (0, -1)])


def test_pixels_stand_where_the_formula_says() -> None:
    frames = cone()
    np.testing.assert_array_equal(frames.pixels(0)[1, 2], (1.0, 3.0, 0.5))
    curved = Trajectory("fan", [(0, -5.0)], [(0, 3.0)], [(1.0, 0)], None, Detector(3, 2, 0, 8.0))
    distance = np.linalg.norm(curved.pixels(0) - curved.sources, axis=1)
    np.testing.assert_allclose(distance, 8.0, rtol=1e-15)


def test_pickle_and_identity() -> None:
    frames = fan()
    again = pickle.loads(pickle.dumps(frames))
    assert again.u.tobytes() == frames.u.tobytes()
    assert not again.u.flags.writeable
    assert len({frames, again}) == 2
    assert "views=3" in repr(frames)


def test_large_half_precision_coordinates_do_not_overflow() -> None:
    far = np.array([(0, -40000), (40000, 0), (0, 40000)], np.float16)
    frames = fan(sources=far, centers=-far)
    assert frames.sources is not None
    assert frames.sources[1, 0] == float(np.float16(40000))
    with pytest.raises(GeometryError, match="view 0: the source"):
        fan(sources=far, centers=far)


def test_motion_and_its_inverse_restore_the_frames() -> None:
    generator = np.random.default_rng(3)
    R = np.linalg.qr(generator.standard_normal((3, 3)))[0]
    R *= np.linalg.det(R)
    t = generator.standard_normal(3)
    frames = cone()
    again = frames.transform(R, t).transform(translation=-t).transform(R.T)
    for name in ("sources", "centers", "u", "v"):
        np.testing.assert_allclose(getattr(again, name), getattr(frames, name), atol=1e-13)


@pytest.mark.parametrize(
    "rotation",
    [np.eye(2), -np.eye(3), np.eye(3) + 0.2 * np.eye(3, k=1), np.full((3, 3), np.nan)],
)
def test_motions_that_are_not_rigid_are_refused(rotation: np.ndarray) -> None:
    with pytest.raises(GeometryError, match="rotation"):
        cone().transform(rotation)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sources": [(0, -5.0), (-3.0, 0.0), (0, 5.0)]}, "view 1: the source"),
        ({"u": [(1.0, 0), (0, 1.0), (-2.0, 0)]}, "view 2: u is not a unit vector"),
        ({"u": [(1.0, 0), (0, 1.0003), (-1.0, 0)]}, "view 1: u is not a unit vector"),
        ({"u": [(1.0, 0), (1.0, 5e-5), (-1.0, 0)]}, "view 1: the detector is seen edge-on"),
        ({"u": [(1.0, 0), (1.0, -5e-5), (-1.0, 0)]}, "view 1: the detector is seen edge-on"),
        ({"sources": [(0, -5.0), (np.nan, 0), (0, 5.0)]}, "view 1: sources is not finite"),
        ({"centers": [(0, 3.0), (-3.0, 0)]}, "numbers of views"),
        ({"centers": [(0, 3.0, 0)] * 3}, "centers has shape"),
        ({"u": None}, "u is None"),
        ({"u": np.zeros((0, 2))}, "no views"),
    ],
)
def test_faulty_fan_frames_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GeometryError, match=message):
        fan(**changes)


def test_a_detector_at_a_slant_is_accepted() -> None:
    assert fan(u=[(1.0, 0), (1.0, 1e-2), (-1.0, 0)]).views == 3


def test_complex_frames_are_refused() -> None:
    with pytest.raises(DTypeError, match="u has dtype complex"):
        fan(u=np.array([(1, 0), (0, 1), (-1, 0)], complex))


def test_skewed_and_edge_on_frames_in_3d_are_refused() -> None:
    with pytest.raises(GeometryError, match="view 1: u and v are not orthogonal"):
        cone(u=[(1.0, 0, 0), (np.cos(1e-3), 0, np.sin(1e-3))])
    detector, up = Detector((2, 3)), [(0.0, 0.0, 1.0)]
    with pytest.raises(GeometryError, match="view 0: the detector is seen edge-on"):
        Trajectory("parallel", [(1.0, 0, 0)], [(0, 0, 0.0)], [(1.0, 0, 0)], up, detector)
    with pytest.raises(GeometryError, match="direction and u"):
        Trajectory("parallel", [(1.0, 0)], [(0, 0.0)], [(1.0, 0)], None, Detector(3))


def test_kind_and_detector_must_fit() -> None:
    for kind, detector in (
        ("fan", Detector((2, 3))),
        ("cone", Detector(3)),
        ("spiral", Detector(3)),
    ):
        with pytest.raises(GeometryError, match="kind|beam"):
            Trajectory(kind, [(0, -5.0)], [(0, 3.0)], [(1.0, 0)], None, detector)


def test_a_source_on_a_curved_detector_is_refused() -> None:
    # Radius 4 about (0, -1): the circle passes through (0, -5), an arc length of 4 pi away.
    half = 4 * np.pi
    with pytest.raises(GeometryError, match="view 0: a detector cell stands on the source"):
        Trajectory(
            "fan",
            [(0, -5.0)],
            [(0, 3.0)],
            [(1.0, 0)],
            None,
            Detector(1, offset=half * (1 - 1e-16), curvature=4.0),
        )


@pytest.mark.parametrize("kind", ["fan", "cone"])
def test_moving_the_scan_and_the_grid_together_changes_nothing(kind: str) -> None:
    frames: Any = fan() if kind == "fan" else cone()
    shift = np.array([0.7, -1.3, 0.4][: frames.dims])
    shape = (4, 5) if kind == "fan" else (3, 4, 5)
    x = np.random.default_rng(0).standard_normal(shape)
    still = Projector(frames, Grid(shape, 0.9, 0.05), precision="float64") @ x
    center = tuple(0.05 + shift[::-1])
    moved = Projector(
        frames.transform(translation=shift), Grid(shape, 0.9, center), precision="float64"
    )
    np.testing.assert_allclose(moved @ x, still, atol=1e-12)
    # A quarter turn about z: the volume turned with the scan gives the same data.
    turn = np.eye(frames.dims)
    turn[:2, :2] = [[0, -1], [1, 0]]
    turned = Projector(
        frames.transform(turn),
        Grid((*shape[:-2], shape[-1], shape[-2]), 0.9, center=(*[0.05] * (frames.dims - 1), -0.05)),
        precision="float64",
    )
    np.testing.assert_allclose(turned @ np.rot90(x, -1, axes=(-2, -1)), still, atol=1e-12)
