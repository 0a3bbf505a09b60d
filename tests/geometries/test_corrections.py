"""Corrections of line integrals against faults of known form."""

import numpy as np
import pytest

import geometries as ge
from linops.errors import ShapeError

ANGLES = np.linspace(0, np.pi, 90, endpoint=False)
U = np.arange(-40, 41.0)


def chords():
    """Parallel line integrals through a disc of radius 25 with its middle 5 off the axis."""
    middle = 5 * np.cos(ANGLES - 0.4)
    return 2 * np.sqrt(np.maximum(25**2 - (U - middle[:, None]) ** 2, 0)) / 50


def test_stripes_go_and_what_is_without_them_stays():
    clean = chords()
    stripes = np.zeros(81)
    stripes[[20, 33, 34, 52, 61]] = 0.1, -0.08, 0.07, 0.12, -0.1
    left = np.abs((ge.remove_rings(clean + stripes, 9) - clean).mean(0))
    # At columns that pass the object's edge the method keeps a part.
    assert (left[[33, 34, 52]] < 0.3 * np.abs(stripes[[33, 34, 52]])).all()
    assert (left[[20, 61]] < 0.8 * np.abs(stripes[[20, 61]])).all()
    assert np.sqrt(np.mean((ge.remove_rings(clean, 9) - clean) ** 2)) < 0.02
    rows = np.stack([clean, clean + stripes], 1)
    np.testing.assert_array_equal(
        ge.remove_rings(rows, 9)[:, 1], ge.remove_rings(clean + stripes, 9)
    )
    with pytest.raises(ValueError, match="odd"):
        ge.remove_rings(clean, 8)


def test_bad_cells_are_interpolated_whatever_stands_in_them():
    ramp = np.arange(7.0) * np.array([1.0, 2.0])[:, None] + np.zeros((4, 1, 1))
    broken = ramp.copy()
    broken[..., 2:4] = np.nan
    np.testing.assert_allclose(ge.repair_cells(broken, [2, 3]), ramp)
    mask = np.zeros((2, 7), bool)
    mask[1, 6] = True
    expected = ramp.copy()
    expected[:, 1, 6] = 10.0
    np.testing.assert_allclose(ge.repair_cells(ramp, mask), expected)
    with pytest.raises(ValueError, match="row 0 has no good cell"):
        ge.repair_cells(ramp, np.ones(7, bool))
    with pytest.raises(ShapeError, match="columns \\[7\\]"):
        ge.repair_cells(ramp, [7])


def test_a_polynomial_straightens_two_energies():
    length = np.linspace(0, 3, 40)
    seen = -np.log(0.6 * np.exp(-0.5 * length) + 0.4 * np.exp(-1.2 * length))
    powers = seen[:, None] ** np.arange(1, 5)
    c = np.linalg.lstsq(powers, 0.78 * length, rcond=None)[0]
    straight = ge.correct_beam_hardening(seen[None], c)
    np.testing.assert_allclose(straight[0], 0.78 * length, atol=1e-3)
    assert np.abs(seen - 0.78 * length).max() > 0.1
    np.testing.assert_array_equal(ge.correct_beam_hardening(seen[None], [1.0]), seen[None])


def test_air_is_zero_after_a_drift_of_the_beam():
    clean = chords()
    drift = np.linspace(0.1, 0.4, 90)[:, None] + np.sin(ANGLES)[:, None] * U / 100
    np.testing.assert_allclose(ge.normalize_air(clean + drift, 8, 6), clean, atol=1e-12)
    level = np.linspace(0.1, 0.4, 90)[:, None]
    for sides in ((5, 0), (0, 5)):
        np.testing.assert_allclose(ge.normalize_air(clean + level, *sides), clean, atol=1e-12)
    with pytest.raises(ValueError, match="air columns"):
        ge.normalize_air(clean, 0)


def test_kinds_of_arrays_are_kept():
    torch = pytest.importorskip("torch")
    y = torch.tensor(chords(), dtype=torch.float32)
    for result in (ge.remove_rings(y), ge.repair_cells(y, [3]), ge.normalize_air(y, 4)):
        assert isinstance(result, torch.Tensor) and result.dtype == y.dtype
