"""What projectors leave behind in their process: memory, threads, files, words at its end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from geometries import Detector, FanBeam, Grid, Projector

T = np.array([0.231, 0.811, 1.431, 0.0])


@pytest.mark.slow
def test_nothing_is_left_behind_by_many_projectors() -> None:
    status, files = Path("/proc/self/status"), Path("/proc/self/fd")
    if not status.exists():
        pytest.skip("resident memory is read from /proc")

    def resident() -> int:
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(lines["VmRSS"].split()[0])

    def cycle(k: int) -> None:
        beam = FanBeam(T + 1e-3 * k, Detector(200, 1.0), 300, 400)
        A = Projector(beam, Grid((100, 100)))
        A.H @ (A @ np.ones((100, 100), "float32"))
        A.gram().diagonal()

    seen = []
    for k in range(200):
        cycle(k)
        seen.append(resident())
        if k == 50:
            before = threading.active_count(), len(list(files.iterdir()))
    assert (threading.active_count(), len(list(files.iterdir()))) == before
    assert max(seen[150:]) <= 1.02 * max(seen[50:100])


@pytest.mark.slow
def test_a_process_with_several_libraries_ends_quietly_and_without_cuda() -> None:
    pytest.importorskip("torch"), pytest.importorskip("jax")
    code = """
import os, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import numpy as np, torch, jax
from geometries import Detector, Grid, ParallelBeam, Projector
x = np.ones((4, 4), "float32")
for backend in ("numba", "portable"):
    A = Projector(ParallelBeam([0.1, 0.2], Detector(5)), Grid((4, 4)), backend=backend)
    for y in (A @ x, A @ torch.from_numpy(x), *(A @ jax.device_put(x, d) for d in jax.devices())):
        A.H @ y
print("numba.cuda" in sys.modules or "numba_cuda" in sys.modules)
print("libcudart" in open("/proc/self/maps").read() if os.path.exists("/proc/self/maps") else False)
"""
    # As users start it: nothing loaded from the cache of these tests, no log of XLA held back.
    tests_own = ("JAX_COMPILATION_CACHE_DIR", "TF_CPP_MIN_LOG_LEVEL")
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        env={k: v for k, v in os.environ.items() if k not in tests_own},
    )
    assert (run.returncode, run.stderr, run.stdout.split()) == (0, "", ["False", "False"])
