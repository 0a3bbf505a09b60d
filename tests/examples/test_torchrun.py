"""The examples for torchrun, started as they say: two processes find what one finds."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from geometries import Detector, Grid, ParallelBeam, Projector, fbp
from solvers import cgls

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parent.parent.parent


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"{name}_example", ROOT / f"examples/{name}.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = script  # dataclasses look their module up
    spec.loader.exec_module(script)
    return script


def on_two_ranks(name: str, *options: str) -> str:
    # An address in place of the machine's name, which may resolve slowly, or to nothing.
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--local-addr", "127.0.0.1", "--nproc-per-node", "2"]
    command += [str(ROOT / f"examples/{name}.py"), *options]
    return _run(command, {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})


@pytest.mark.slow
def test_two_processes_reconstruct_what_one_does() -> None:
    script = example("torchrun")
    truth = script.phantom(24)
    angles = np.arange(19) * (np.pi / 19)
    A = Projector(ParallelBeam(angles, Detector(24)), Grid((24, 24)), precision="float64")
    found = cgls(A, A @ truth, iterations=8).solution
    wanted = np.linalg.norm(found - truth) / np.linalg.norm(truth)

    printed = on_two_ranks("torchrun", "--size", "24", "--views", "19", "--iterations", "8")
    assert "2 ranks" in printed
    assert "Projector by view" in printed
    assert f"CGLS: relative error {wanted:.4f}" in printed
    error, first, last = re.search(
        r"Adam: relative error (\S+), loss (\S+) to (\S+)", printed
    ).groups()
    assert float(last) < 0.5 * float(first)
    assert float(error) < 1


def test_a_network_before_a_projector_on_two_ranks_gets_the_gradient_of_one_process() -> None:
    network = example("train_across_ranks").network()
    y, x = (np.indices((24, 24)) - 11.5) / 12
    truth = 1.0 * (x**2 + y**2 < 0.8**2) + 0.5 * ((x - 0.3) ** 2 + (y - 0.1) ** 2 < 0.2**2)
    beam = ParallelBeam(np.arange(20) * (np.pi / 20), Detector(24))
    A, few = (Projector(b, Grid((24, 24)), precision="float64") for b in (beam, beam[::4]))
    start = torch.from_numpy(np.array(fbp(few, few @ truth)))[None, None]
    residual = A @ (start + network(start))[0, 0] - torch.from_numpy(np.array(A @ truth))
    loss = (residual**2).sum() / residual.numel()
    loss.backward()
    size = float(sum((p.grad**2).sum() for p in network.parameters()) ** 0.5)

    printed = on_two_ranks("train_across_ranks", "--size", "24", "--views", "20", "--steps", "8")
    found = re.findall(r"(\w+), 2 ranks: gradient (\S+), loss (\S+) to (\S+)", printed)
    assert [kind for kind, *_ in found] == ["whole", "shares"]
    for _, gradient, first, last in found:
        assert float(gradient) == pytest.approx(size, rel=1e-9)
        assert float(first) == pytest.approx(float(loss.detach()), rel=1e-9)
        assert float(last) < 0.3 * float(first)


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
