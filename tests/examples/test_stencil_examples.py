"""The examples of stencils: each finds what it says, and writes its picture."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")
EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def call(name: str, *words: str) -> Any:
        picture = tmp_path / "made.png"
        outcome = importlib.import_module(name).main([*words, "--output", str(picture)])
        assert picture.read_bytes().startswith(b"\x89PNG")
        return outcome

    return call


@pytest.mark.slow
def test_waveform_inversion_has_the_rate_of_a_gradient_and_lowers_the_misfit(run: Any) -> None:
    pytest.importorskip("scipy")
    outcome = run("waveform_inversion", "--size", "20", "--steps", "120", "--iterations", "5")
    np.testing.assert_allclose(outcome.rates, 2, atol=0.1)
    assert len(outcome.misfits) > 3 and (np.diff(outcome.misfits) < 0).all()
    assert outcome.misfits[-1] < 0.6 * outcome.misfits[0]
    assert outcome.gradient.shape == outcome.found.shape == (20, 20)


@pytest.mark.slow
def test_heat_deblurring_sharpens_a_measured_field_and_a_made_one(
    run: Any, shared_data: Path
) -> None:
    field = str(shared_data / "field_dem_jacksboro.npz")
    for words in (("--field", field, "--size", "96"), ("--size", "64", "--iterations", "80")):
        blurred, sharpened = run("heat_deblurring", *words).errors
        assert sharpened < 0.9 * blurred


def test_standing_waves_have_the_speed_of_theory(run: Any) -> None:
    outcome = run("standing_wave", "--cells", "24")
    for order, measured in outcome.measured.items():
        np.testing.assert_allclose(measured, outcome.theory[order], rtol=1e-9)
    # Of order 2 and a small step waves are slow: the sine of half the angle over it.
    half = outcome.angles / 2
    exact = np.arcsin(0.3 * np.sin(half)) / (0.3 * half)
    np.testing.assert_allclose(outcome.measured[2], exact, rtol=1e-9)


def test_an_edited_picture_has_no_seam_and_the_laplacian_of_its_patch(run: Any) -> None:
    outcome = run("poisson_editing", "--size", "64")
    pasted, edited = outcome.seams
    assert edited < 0.05 * pasted
    inner = (slice(17, 47), slice(17, 47))

    def laplacian(u: np.ndarray) -> np.ndarray:
        return sum(np.roll(u, s, a) for s in (1, -1) for a in (0, 1)) - 4 * u

    deep = (slice(18, 46), slice(18, 46))
    np.testing.assert_allclose(
        laplacian(outcome.edited)[deep], laplacian(outcome.pasted)[deep], atol=1e-12
    )
    assert np.ptp((outcome.edited - outcome.pasted)[inner]) > 0.1


@pytest.mark.slow
def test_a_diffusion_prior_planned_with_a_projector_lowers_the_error(run: Any) -> None:
    outcome = run("diffusion_prior", "--size", "48", "--views", "12", "--iterations", "30")
    plain, prior = outcome.errors
    assert prior < 0.5 * plain
    assert "Halo" in outcome.explained and "Projector" in outcome.explained
