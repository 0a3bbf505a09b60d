"""The torchrun example, started as its first lines say: two processes find what one finds."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
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

    # An address in place of the machine's name, which may resolve slowly, or to nothing.
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--local-addr", "127.0.0.1", "--nproc-per-node", "2", str(SCRIPT)]
    command += ["--size", "24", "--views", "19", "--iterations", "8"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    printed = _run(command, environment)
    assert "2 ranks" in printed
    assert "Projector by view" in printed
    assert f"CGLS: relative error {wanted:.4f}" in printed
    error, first, last = re.search(
        r"Adam: relative error (\S+), loss (\S+) to (\S+)", printed
    ).groups()
    assert float(last) < 0.5 * float(first)
    assert float(error) < 1


def _run(command: list[str], environment: dict[str, str]) -> str:
    """What the command prints; it and all that it starts end with this test.

    Fifteen seconds of processor time are ten times that on a machine which does ten times as much
    as it has cores for, so what hangs is told by a limit far beyond.
    """
    run = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, told = run.communicate(timeout=1500)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)  # ranks too, which hold the pipes
    assert run.returncode == 0, told[-3000:]
    return out
