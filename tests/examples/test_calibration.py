"""The calibration example: on discs, where the truth is known, and on a measured walnut."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parent.parent.parent / "examples" / "calibration.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("calibration", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize(("fit", "true", "size"), [("shift", 1.0, 1.2), ("axis", -0.6, 0.6)])
def test_a_simulated_mistake_is_found_within_a_hundredth_of_a_pixel(
    script: ModuleType, fit: str, true: float, size: float
) -> None:
    found = script.main(["--fit", fit, "--true", str(true)])
    assert found == pytest.approx(true, abs=0.01 * size)


@pytest.mark.slow
@pytest.mark.parametrize("fit", ["shift", "axis"])
def test_the_walnut_shows_where_its_axis_is(
    script: ModuleType, shared_data: Path, fit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # The scan's makers give a detector shift of 0.27 mm: on cells of 0.35 mm, averaged in pairs,
    # the axis is in column 81.5 - 0.27 / 0.7.
    found = script.main(
        ["--scan", str(shared_data / "fan_walnut_fips.npz"), "--fit", fit, "--reverse"]
    )
    if fit == "shift":
        assert found == pytest.approx(0.27, abs=0.02)
    column = float(capsys.readouterr().out.split()[-1])
    assert column == pytest.approx(81.5 - 0.27 / 0.7, abs=0.03)
