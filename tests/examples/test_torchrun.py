"""The torchrun example, started as its first lines say: two processes find what one finds."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from geometries import Detector, Grid, ParallelBeam, Projector
from solvers import cgls

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "examples" / "torchrun.py"


def test_two_processes_reconstruct_what_one_does() -> None:
    spec = importlib.util.spec_from_file_location("torchrun_example", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = script  # dataclasses look their module up
    spec.loader.exec_module(script)
    truth = script.phantom(24)
    angles = np.arange(19) * (np.pi / 19)
    A = Projector(ParallelBeam(angles, Detector(24)), Grid((24, 24)), precision="float64")
    found = cgls(A, A @ truth, iterations=8).solution
    wanted = np.linalg.norm(found - truth) / np.linalg.norm(truth)

    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(SCRIPT)]
    command += ["--size", "24", "--views", "19", "--iterations", "8"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-3000:]
    printed = run.stdout
    assert "2 ranks" in printed
    assert "Projector by view" in printed
    assert f"CGLS: relative error {wanted:.4f}" in printed
    error, first, last = re.search(
        r"Adam: relative error (\S+), loss (\S+) to (\S+)", printed
    ).groups()
    assert float(last) < 0.5 * float(first)
    assert float(error) < 1
