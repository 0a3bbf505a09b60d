"""Counts to line integrals with guards, and edits that keep the axis where it is."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from geometries import Detector, FanBeam, Grid, ParallelBeam, fbp
from geometries.scans.center import center_to_offset, offset_to_center
from geometries.scans.preprocess import (
    bin_detector,
    crop_columns,
    flip_columns,
    fold_turn,
    line_integrals,
    pad_columns,
)
from linops.errors import DTypeError, GeometryError, ShapeError


def beam(columns: int = 8, axis: float = 4.1, views: int = 3) -> ParallelBeam:
    t = np.pi * np.arange(views) / views
    return ParallelBeam(t, Detector(columns, 1.0, center_to_offset(axis, columns)))


def axis_of(geometry: Any) -> float:
    detector = geometry.detector
    return offset_to_center(detector.offset[-1], detector.shape[-1], detector.pitch[-1])


def chords(geometry: Any, radius: float, x0: float, y0: float) -> np.ndarray:
    t, u = geometry.angles[:, None], geometry.detector.columns()
    s = u - x0 * np.cos(t) - y0 * np.sin(t)
    return np.asarray(2 * np.sqrt(np.maximum(radius**2 - s**2, 0)))


# --- line integrals -----------------------------------------------------------------------


def test_zero_and_negative_counts_are_repaired_and_counted() -> None:
    with pytest.warns(RuntimeWarning, match="2 repaired") as record:
        result = line_integrals(np.array([0.0, -3.0, 5.0]), 10.0)
    assert record[0].filename == __file__
    assert (result.repaired, result.dead) == (2, 0)
    np.testing.assert_allclose(result.data, (-np.log(1e-4), -np.log(1e-4), 0.693147), atol=1e-6)


def test_dead_cells_are_counted_and_filled_from_their_neighbors() -> None:
    counts = np.full((2, 5), 5.0)
    flats = np.array([10.0, 10.0, 0.0, 10.0, 1.0])
    darks = np.array([0.0, 0.0, 0.0, 0.0, 2.0])
    with pytest.warns(RuntimeWarning, match="2 dead cells"):
        result = line_integrals(counts, flats, darks)
    assert (result.repaired, result.dead) == (4, 2)
    np.testing.assert_allclose(result.data, np.log(2), rtol=1e-12)
    with pytest.warns(RuntimeWarning, match="dead"):
        nothing = line_integrals(counts, 0.0)
    assert np.isfinite(nothing.data).all()


def test_stacks_are_averaged_and_inputs_kept() -> None:
    generator = np.random.default_rng(0)
    p = generator.uniform(0, 2, (3, 2, 4))
    flats = generator.uniform(90, 110, (5, 2, 4))
    darks = generator.uniform(1, 3, (4, 2, 4))
    dark = darks.mean(0)
    counts = dark + (flats.mean(0) - dark) * np.exp(-p)
    before = counts.copy()
    result = line_integrals(counts, flats, darks)
    np.testing.assert_allclose(result.data, p, rtol=1e-12)
    assert result.repaired == 0
    np.testing.assert_array_equal(counts, before)
    single = line_integrals(counts, flats.mean(0), dark)
    np.testing.assert_array_equal(single.data, result.data)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "float16", "float32"])
def test_integer_counts_are_not_wrapped(dtype: str) -> None:
    counts = np.array([[20, 50, 100]], dtype)
    result = line_integrals(
        counts, np.full((2, 1, 3), 120, dtype)[0], np.full((1, 3), 20, dtype)[0]
    )
    assert result.data.dtype == np.float32
    np.testing.assert_allclose(result.data[0, 1:], -np.log((0.3, 0.8)), rtol=1e-3)
    assert result.repaired == 1


test_integer_counts_are_not_wrapped = pytest.mark.filterwarnings("ignore::RuntimeWarning")(
    test_integer_counts_are_not_wrapped
)


def test_tensors_come_back_as_tensors() -> None:
    torch = pytest.importorskip("torch")
    result = line_integrals(torch.full((2, 3), 5.0), 10.0)
    assert isinstance(result.data, torch.Tensor)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["counts", "flats", "darks"])
def test_nan_is_refused_by_name(name: str, value: float) -> None:
    arrays = {"counts": np.ones((2, 3)), "flats": np.full((4, 3), 2.0), "darks": np.zeros((4, 3))}
    arrays[name][1, 1] = value
    with pytest.raises(ValueError, match=f"{name} has 1 values that are NaN"):
        line_integrals(**arrays)


def test_other_faults_are_refused() -> None:
    counts = np.ones((2, 3))
    with pytest.raises(ShapeError, match="flats has shape"):
        line_integrals(counts, np.ones(4))
    with pytest.raises(ShapeError, match="no images"):
        line_integrals(counts, np.ones((0, 3)))
    with pytest.raises(DTypeError, match="counts"):
        line_integrals(counts + 0j, 2.0)
    for floor in (0, 1, -1, 2):
        with pytest.raises(ValueError, match="floor"):
            line_integrals(counts, 2.0, floor=floor)


# --- edits ----------------------------------------------------------------------------------


def test_binning_keeps_the_axis() -> None:
    data = np.arange(24.0).reshape(3, 8)
    small, geometry = bin_detector(data, beam(), 2)
    assert geometry.detector.shape == (4,)
    assert geometry.detector.pitch == (2.0,)
    assert axis_of(geometry) == pytest.approx(1.8)
    assert geometry.detector.offset[0] == pytest.approx(-0.6)
    np.testing.assert_array_equal(small[0], (0.5, 2.5, 4.5, 6.5))


def test_padding_keeps_the_axis() -> None:
    wide, geometry = pad_columns(np.ones((3, 8)), beam(), before=3)
    assert (wide.shape, geometry.detector.shape) == ((3, 11), (11,))
    assert axis_of(geometry) == pytest.approx(7.1)
    assert geometry.detector.offset[0] == pytest.approx(-2.1)
    zeros, _ = pad_columns(np.ones((3, 8)), beam(), 3, 1, mode="constant")
    assert zeros.sum() == 24


def test_flipping_mirrors_the_axis() -> None:
    data = np.arange(24.0).reshape(3, 8)
    back, geometry = flip_columns(data, beam())
    assert axis_of(geometry) == pytest.approx(2.9)
    assert geometry.detector.offset[0] == pytest.approx(0.6)
    np.testing.assert_array_equal(back, data[:, ::-1])


@pytest.mark.slow
@given(
    columns=st.integers(4, 12),
    factor=st.integers(1, 3),
    before=st.integers(0, 3),
    after=st.integers(0, 3),
)
def test_every_edit_keeps_the_cells_in_the_world(
    columns: int, factor: int, before: int, after: int
) -> None:
    """Data that are the position along u must stay the position along u."""
    geometry = FanBeam([0.1, 0.2], Detector(columns, 0.7, 0.3), 20, 30)
    data = np.stack([geometry.detector.columns()] * 2)
    for edited, scan in (
        bin_detector(data, geometry, factor),
        crop_columns(*pad_columns(data, geometry, before, after), before, before + columns),
        crop_columns(data, geometry, 1, columns - 1),
    ):
        np.testing.assert_allclose(edited[0], scan.detector.columns(), atol=1e-12)
        assert isinstance(scan, FanBeam)
        assert scan.source_to_axis == 20


def test_rows_bin_too_and_leading_axes_stay() -> None:
    geometry = ParallelBeam([0.0, 1.0], Detector((5, 6), (1, 2), (0.5, 0)))
    data = np.random.default_rng(0).random((3, 2, 5, 6))
    small, scan = bin_detector(data, geometry, columns=3, rows=2)
    assert small.shape == (3, 2, 2, 2)
    assert scan.detector.pitch == (2.0, 6.0)
    np.testing.assert_allclose(
        scan.detector.rows(), geometry.detector.rows()[:4].reshape(2, 2).mean(1)
    )
    np.testing.assert_allclose(small[1, 1, 1, 0], data[1, 1, 2:4, :3].mean())


def test_a_folded_turn_is_twice_as_wide_and_no_half_pixel_off() -> None:
    t = 2 * np.pi * np.arange(360) / 360
    geometry = ParallelBeam(t, Detector(80, 1.0, center_to_offset(62.25, 80)))
    data, folded = fold_turn(chords(geometry, 20, 3, -2), geometry)
    assert (data.shape, folded.views) == ((180, folded.detector.shape[0]), 180)
    assert axis_of(folded) == pytest.approx(62.25)
    A = SimpleNamespace(geometry=folded, grid=Grid((240, 240), 0.25, (-2, 3)), precision="float64")
    image = fbp(A, data)
    middle = (np.arange(240) - 119.5) * 0.25
    r = np.hypot(middle[:, None], middle)
    edge = np.sqrt((image[r < 28] > 0.5).sum() * 0.25**2 / np.pi)
    assert edge == pytest.approx(20, abs=0.1)


def test_folding_needs_opposite_views() -> None:
    with pytest.raises(GeometryError, match="opposite"):
        fold_turn(np.ones((3, 8)), beam())
    fan = FanBeam([0.0, np.pi], Detector(8), 20, 30)
    with pytest.raises(GeometryError, match="ParallelBeam"):
        fold_turn(np.ones((2, 8)), fan)


def test_faulty_edits_are_refused() -> None:
    data = np.ones((3, 8))
    with pytest.raises(ShapeError, match=r"\(3, 8\)"):
        bin_detector(np.ones((8, 3)), beam(), 2)
    for factor in (0, 9, True):
        with pytest.raises(GeometryError):
            bin_detector(data, beam(), factor)
    with pytest.raises(GeometryError, match="no rows"):
        bin_detector(data, beam(), 1, rows=2)
    with pytest.raises(GeometryError, match="mode"):
        pad_columns(data, beam(), 1, mode="wrap")
    with pytest.raises(GeometryError, match="columns 5 to 3"):
        crop_columns(data, beam(), 5, 3)
    with pytest.raises(GeometryError, match="geometry is"):
        flip_columns(data, None)


def test_nothing_is_warned_of_where_nothing_is_repaired() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        line_integrals(np.full((2, 3), 5.0), 10.0)
