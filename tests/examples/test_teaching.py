"""The short examples run, and show what they say."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parent.parent.parent / "examples"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_quickstart(capsys: pytest.CaptureFixture[str]) -> None:
    errors = script("quickstart").main(["--size", "64"])
    assert 0.3 > errors["filtered backprojection"] > errors["CGLS"] > errors["CGLS, smooth"]
    assert "vstack" in capsys.readouterr().out


def test_curved_detector(capsys: pytest.CaptureFixture[str]) -> None:
    found = script("curved_detector").main(["--size", "40"])
    np.testing.assert_allclose(found["its surface"], found["cylinder"], atol=1e-4)
    # A cell of the step that stands nearer sees the ball further from the middle of the detector.
    right = np.arange(41) > 20
    np.testing.assert_allclose(found["step"][..., :17], found["flat"][..., :17], atol=1e-3)
    assert np.abs(found["step"] - found["flat"])[..., right].max() > 0.5
    printed = capsys.readouterr().out.splitlines()
    assert all(float(line.split()[-2]) < 0.5 for line in printed)


def test_learnable_surface() -> None:
    pytest.importorskip("torch")
    module = script("learnable_surface")
    found = module.main(["--size", "20", "--views", "4"])
    np.testing.assert_allclose(found, module.TRUTH, atol=1e-3)


@pytest.mark.slow
def test_chunked_projection() -> None:
    held, peak, gap = script("chunked_projection").main([])
    assert peak < held / 3
    assert gap < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("scan", ["helix", "curved", "tilted"])
def test_plot_trajectory(scan: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    image = script("plot_trajectory").main(["--scan", scan, "--output", str(tmp_path / "a.png")])
    assert image.stat().st_size > 10_000


@pytest.mark.slow
def test_sharded_forward(capsys: pytest.CaptureFixture[str]) -> None:
    jax = pytest.importorskip("jax")
    gap = script("sharded_forward").main(["--size", "16"])
    assert gap < 1e-5
    assert f"{len(jax.devices('cpu'))} devices, projections" in capsys.readouterr().out
