"""Geometries from ASTRA's dictionaries: its own CPU projectors in 2-D, pixel positions in 3-D."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from geometries import ConeBeam, Grid, ParallelBeam, Projector, from_astra
from linops.errors import GeometryError

T = np.array([0.1, 0.9, 2.2, -1.3, 4.0])
SHAPES = {
    "plain": {"GridRowCount": 9, "GridColCount": 13},
    "window": {
        "GridRowCount": 9,
        "GridColCount": 13,
        "option": {"WindowMinX": -4.0, "WindowMaxX": 9.0, "WindowMinY": -2.0, "WindowMaxY": 7.0},
    },
}


def window(n: tuple[int, ...], ends: tuple[float, ...]) -> dict[str, Any]:
    names = [f"Window{end}{axis}" for axis in "XYZ" for end in ("Min", "Max")]
    return {
        "GridRowCount": n[0],
        "GridColCount": n[1],
        "GridSliceCount": n[2],
        "option": dict(zip(names, ends, strict=True)),
    }


def planar(astra: Any) -> dict[str, dict[str, Any]]:
    generator = np.random.default_rng(4)
    fan = astra.create_proj_geom("fanflat", 1.3, 17, T, 40.0, 25.0)
    parallel = astra.create_proj_geom("parallel", 0.8, 19, T)
    free = astra.geom_2vec(fan)["Vectors"] + 0.0
    free[:, 2:4] += generator.normal(0, 1.5, (5, 2))
    turn = generator.normal(0, 0.2, 5)
    x, y = free[:, 4].copy(), free[:, 5].copy()
    free[:, 4], free[:, 5] = (
        np.cos(turn) * x - np.sin(turn) * y,
        np.sin(turn) * x + np.cos(turn) * y,
    )
    shifted = astra.geom_2vec(parallel)["Vectors"] + 0.0
    shifted[:, 2:4] += generator.normal(0, 1.5, (5, 2))
    return {
        "parallel": parallel,
        "parallel_vec": astra.create_proj_geom("parallel_vec", 19, shifted),
        "fanflat": fan,
        "fanflat_vec": astra.create_proj_geom("fanflat_vec", 17, free),
    }


@pytest.mark.parametrize("volume", sorted(SHAPES))
@pytest.mark.parametrize("kind", ["parallel", "parallel_vec", "fanflat", "fanflat_vec"])
def test_planar_scans_give_the_sinograms_of_astra(kind: str, volume: str) -> None:
    astra = pytest.importorskip("astra")
    proj_geom, vol_geom = planar(astra)[kind], SHAPES[volume]
    vol_geom = {"option": {}, **vol_geom}
    if not vol_geom["option"]:
        vol_geom = astra.create_vol_geom(9, 13)
    image = np.random.default_rng(0).random((9, 13), dtype=np.float32)
    name = "line_fanflat" if kind.startswith("fan") else "line"
    projector = astra.create_projector(name, proj_geom, vol_geom)
    sino_id, theirs = astra.create_sino(image, projector)
    astra.data2d.delete(sino_id)
    astra.projector.delete(projector)
    geometry, grid = from_astra(proj_geom, vol_geom)
    ours = Projector(geometry, grid, precision="float64") @ image.astype(float)
    assert (theirs.max(axis=1) > 5).all()  # every view sees the image
    np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-4)


def test_named_volume_scans_are_named_here_too() -> None:
    vol = {"GridRowCount": 4, "GridColCount": 5, "GridSliceCount": 3}
    sizes = {
        "DetectorRowCount": 2,
        "DetectorColCount": 6,
        "DetectorSpacingX": 0.7,
        "DetectorSpacingY": 1.1,
        "ProjectionAngles": T,
    }
    parallel, grid = from_astra({"type": "parallel3d", **sizes}, vol)
    assert isinstance(parallel, ParallelBeam)
    assert (parallel.detector.shape, parallel.detector.pitch) == ((2, 6), (1.1, 0.7))
    assert grid == Grid((3, 4, 5))
    distances = {"DistanceOriginSource": 40.0, "DistanceOriginDetector": 25.0}
    cone, _ = from_astra({"type": "cone", **sizes, **distances}, vol)
    assert isinstance(cone, ConeBeam)
    assert (cone.source_to_axis, cone.source_to_detector) == (40, 65)


@pytest.mark.parametrize("kind", ["parallel3d", "cone"])
@pytest.mark.parametrize("vectors", [False, True])
def test_volume_scans_have_the_pixels_of_astra(kind: str, vectors: bool) -> None:
    astra = pytest.importorskip("astra")
    distances = (40.0, 25.0) if kind == "cone" else ()
    proj_geom = astra.create_proj_geom(kind, 0.7, 1.1, 4, 6, T, *distances)
    flat = astra.geom_2vec(proj_geom)
    frames = flat["Vectors"] + 0.0
    if vectors:
        frames[:, 3:6] += np.random.default_rng(1).normal(0, 2, (5, 3))
        if kind == "parallel3d":
            frames[:, :3] = 3 * frames[:, :3] + 0.4
        proj_geom = {**flat, "Vectors": frames}
    ends = (-4.0, 6.0, 1.0, 9.0, -2.0, 4.0)
    geometry, grid = from_astra(proj_geom, window((4, 5, 3), ends))
    places = geometry.trajectory.points()
    # ASTRA's manual: pixel (i, j) stands at d + (j - (n - 1)/2) u + (i - (m - 1)/2) v.
    rows, cols = np.arange(4) - 1.5, np.arange(6) - 2.5
    expected = frames[:, None, None, 3:6] + cols[:, None] * frames[:, None, None, 6:9]
    expected = expected + rows[:, None, None] * frames[:, None, None, 9:12]
    np.testing.assert_allclose(places, expected, atol=1e-12)
    if kind == "cone":
        np.testing.assert_allclose(geometry.sources, frames[:, :3], atol=1e-12)
    else:
        across = np.cross(geometry.directions, frames[:, :3])
        np.testing.assert_allclose(across, 0, atol=1e-12)
    assert grid == Grid((3, 4, 5), (2.0, 2.0, 2.0), (1.0, 5.0, 1.0))


def test_a_bright_voxel_lands_where_volumes_of_astra_put_it() -> None:
    # y grows with its index in ASTRA's volumes: a voxel at the last row, seen at 90 degrees, where
    # u points along y, is in the last column.
    x = np.zeros((3, 4, 5))
    x[1, 3, 2] = 1
    proj_geom = {
        "type": "parallel3d",
        "DetectorRowCount": 3,
        "DetectorColCount": 4,
        "DetectorSpacingX": 1.0,
        "DetectorSpacingY": 1.0,
        "ProjectionAngles": [np.pi / 2],
    }
    geometry, grid = from_astra(
        proj_geom, {"GridRowCount": 4, "GridColCount": 5, "GridSliceCount": 3}
    )
    assert np.argwhere(Projector(geometry, grid) @ x.astype("float32")).tolist() == [[0, 1, 3]]


PLANE = {"GridRowCount": 4, "GridColCount": 5}
FAN = {"type": "fanflat_vec", "DetectorCount": 6}
FRAME = [0.0, -5.0, 0.0, 3.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("proj_geom", "vol_geom", "message"),
    [
        ({"type": "sparse_matrix"}, PLANE, "sparse_matrix"),
        ({}, PLANE, "type"),
        ({"type": "parallel", "DetectorCount": 4, "DetectorWidth": 1.0}, PLANE, "ProjectionAngles"),
        ({**FAN, "Vectors": [FRAME, [*FRAME[:4], 1.1, 0.0]]}, PLANE, "view 1: the pitch along u"),
        ({**FAN, "Vectors": [FRAME, [*FRAME[:4], 0.0, 0.0]]}, PLANE, "view 1: the vector u"),
        ({**FAN, "Vectors": [FRAME, [*FRAME[:4], np.nan, 0.0]]}, PLANE, "view 1"),
        ({**FAN, "Vectors": [FRAME, [0, 3.0, *FRAME[2:]]]}, PLANE, "view 1: the source"),
        ({**FAN, "Vectors": np.zeros((2, 12))}, PLANE, "Vectors"),
        ({**FAN, "Vectors": [FRAME]}, {**PLANE, "GridSliceCount": 3}, "slices"),
        ({**FAN, "Vectors": [FRAME]}, {"GridRowCount": 4}, "GridColCount"),
        (
            {**FAN, "Vectors": [FRAME]},
            {**PLANE, "option": {"WindowMinX": 3, "WindowMaxX": 3}},
            "WindowMinX",
        ),
    ],
)
def test_scans_that_do_not_fit_are_refused(proj_geom: Any, vol_geom: Any, message: str) -> None:
    with pytest.raises(GeometryError, match=message):
        from_astra(proj_geom, vol_geom)
