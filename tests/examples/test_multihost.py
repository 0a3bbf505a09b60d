"""The example of several processes, as two on this machine."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.slow
def test_two_processes_of_two_devices_reconstruct_and_resume_together(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "multihost.py"), "--processes", "2"]
    done = subprocess.run(
        [*command, "--checkpoints", str(tmp_path)],
        capture_output=True, text=True, timeout=400, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = re.findall(r"process (\d) of 2: 2 of 4 devices, residual (\S+)", done.stdout)
    assert sorted(number for number, _ in found) == ["0", "1"]
    assert len({residual for _, residual in found}) == 1
    assert sorted(step.name for step in tmp_path.iterdir()) == ["step-000010", "step-000020"]
