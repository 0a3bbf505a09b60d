"""The Gauss-Newton example: its steps descend, and its table says what it returns."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parent.parent.parent / "examples" / "gauss_newton.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gauss_newton", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_every_step_lowers_the_misfit_and_the_image_nears_the_truth(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = script.main(["--size", "24", "--views", "36", "--steps", "4"])
    assert len(outcome.misfits) == len(outcome.errors) == 5
    assert (np.diff(outcome.misfits) < 0).all()
    assert outcome.errors[0] == pytest.approx(1)  # from zero
    assert outcome.errors[-1] < outcome.errors[0]
    printed = capsys.readouterr().out
    assert printed.count("Gauss-Newton step") == 4
    for figure in (*outcome.misfits, *(misfit for misfit, _ in outcome.logarithms.values())):
        assert f"{figure:.3f}" in printed
