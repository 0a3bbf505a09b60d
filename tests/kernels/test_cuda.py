"""The GPU kernels in Numba's simulator, against clipping every ray against every cell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from volume_reference import cell_matrix

from geometries import ConeBeam, Detector, FanBeam, Grid, ParallelBeam, Projector
from geometries.kernels.volume_scan import VolumeScan

ANGLES = np.array([0.231, 1.431])
SOLID = Grid((2, 3, 4), (1.3, 0.9, 0.6), (0.1, -0.2, 0.3))
FLAT = Grid((3, 4), (1.1, 0.7))
SCANS = {
    "parallel": (ParallelBeam(ANGLES, Detector((5,), 0.91, 0.13)), FLAT),
    "fan": (FanBeam(ANGLES, Detector((5,), 0.91), 7.1, 12.4), FLAT),
    "curved fan": (FanBeam(ANGLES, Detector((5,), 0.91, curvature=12.4), 7.1, 12.4), FLAT),
    "aligned": (ParallelBeam(ANGLES, Detector((2, 4), (1.3, 0.71))), SOLID),
    "cone": (ConeBeam(ANGLES, Detector((2, 3), (0.67, 0.91), (0.11, -0.17)), 7.1, 12.4), SOLID),
    "curved cone": (
        ConeBeam(ANGLES, Detector((2, 3), (0.67, 0.91), curvature=12.4), 7.1, 12.4), SOLID,
    ),
}  # fmt: skip

# Runs in a process of its own: the simulator is chosen when Numba is imported, and compiled device
# functions must be plain Python in it.
CODE = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from test_cuda import SCANS
from geometries import Projector
from geometries.kernels.cuda import available, make
assert available()
saved = {}
for name, (beam, grid) in SCANS.items():
    for precision in ("float32", "float64"):
        A = Projector(beam, grid, precision=precision)
        runner = make(A)
        n, m = A.domain.size, A.codomain.size
        forward = runner.forward(np.eye(n, dtype=A.dtype).reshape(n, *A.domain.shape))
        adjoint = runner.adjoint(np.eye(m, dtype=A.dtype).reshape(m, *A.codomain.shape))
        assert forward.dtype == adjoint.dtype == A.dtype
        saved[f"{name} {precision} forward"] = forward.reshape(n, m).T
        saved[f"{name} {precision} adjoint"] = adjoint.reshape(m, n)
        if precision == "float64":
            saved[f"{name} gram"] = runner.gram_diagonal().ravel()
            block = A.block("view", 1, 2)
            part = make(block).forward(np.ones(A.domain.shape))
            saved[f"{name} block"] = part
            assert runner.forward(np.ones((0, 2, *A.domain.shape))).shape[:2] == (0, 2)
np.savez(sys.argv[2], **saved)
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    path = tmp_path_factory.mktemp("cuda") / "results.npz"
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "NUMBA_DISABLE_JIT": "1"}
    root = Path(__file__).parents[2]
    environment["PYTHONPATH"] = os.pathsep.join([str(root), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(Path(__file__).parent), str(path)],
        env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return np.load(path)


def matrix_of(name):
    """Rays by cells, in the order of the projector's spaces."""
    beam, grid = SCANS[name]
    A = Projector(beam, grid, precision="float64")
    if grid.dims == 2:
        from geometries.kernels.cuda import _solid

        scan = _solid(A.geometry, np.asarray(A.frames), grid)
    else:
        scan = VolumeScan.from_frames(beam.kind, np.asarray(A.frames), beam.detector, grid)
    cells = cell_matrix(scan).transpose(0, 2, 1, 5, 3, 4)
    return cells.reshape(A.codomain.size, A.domain.size)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCANS)
def test_matrices_are_chord_lengths(results, name):
    right = matrix_of(name)
    assert np.count_nonzero(right)
    for precision, bound in (("float32", 4e-5), ("float64", 2e-11)):
        for way in ("forward", "adjoint"):
            got = results[f"{name} {precision} {way}"]
            np.testing.assert_allclose(got, right, rtol=bound, atol=bound, err_msg=precision)
    np.testing.assert_allclose(results[f"{name} gram"], (right**2).sum(0), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", SCANS)
def test_a_block_of_views_has_the_bits_of_the_whole(results, name):
    whole = results[f"{name} float64 forward"]
    part = results[f"{name} block"].ravel()
    np.testing.assert_allclose(part, whole.sum(1).reshape(2, -1)[1], rtol=1e-13, atol=1e-13)


def test_nothing_starts_cuda_before_it_is_asked_for():
    code = (
        "import sys, geometries.kernels.cuda; "
        "assert not any(name.startswith('numba.cuda') for name in sys.modules)"
    )
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": root}, capture_output=True
    )
    assert done.returncode == 0, done.stderr
