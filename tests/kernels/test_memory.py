"""What kernels take beside their arguments: the formulas of docs/performance.md.

The peak of the resident set over a second call, arguments and results touched before.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from volume_reference import cone, parallel

from geometries import Detector, Grid, ParallelBeam, Projector
from geometries.kernels.aligned import kernel as aligned
from geometries.kernels.columns import kernel as columns
from geometries.kernels.oblique import kernel as oblique
from linops.compiled import pool

MIB = 1 << 20
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident(name):
    for line in STATUS.read_text().splitlines():
        if line.startswith(name):
            return 1024 * int(line.split()[1])
    raise AssertionError(name)


def peak_of(call):
    """Bytes that a call adds to the resident set at most; the least of three calls."""
    call()
    added = []
    for _ in range(3):
        RESET.write_text("5")
        before = resident("VmRSS:")
        call()
        added.append(resident("VmHWM:") - before)
    return min(added)


@pytest.fixture(autouse=True)
def countable():
    if not RESET.exists():
        pytest.skip("the peak of the resident set is read from /proc")
    try:
        RESET.write_text("5")
    except OSError:
        pytest.skip("/proc/self/clear_refs cannot be written")


SCANS = {
    "aligned": (aligned, parallel((0.3, 1.9, 2.5), (96, 120), (1.0, 1.0),
                                  grid_shape=(96, 80, 80), spacing=(1.0, 1.0, 1.0))),
    "columns": (columns, cone((0.3, 1.9, 2.5), (130, 120), (1.3, 1.3), a=240.0, d=360.0,
                              grid_shape=(96, 80, 80), spacing=(1.0, 1.0, 1.0))),
    "oblique": (oblique, cone((0.3,), (60, 50), (3.0, 3.0), a=240.0, d=360.0,
                              grid_shape=(96, 80, 80), spacing=(1.0, 1.0, 1.0))),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fast", "float64"])
@pytest.mark.parametrize("name", SCANS)
def test_volume_kernels_take_less_than_4_mib_a_thread(name, precision):
    kernel, scan = SCANS[name]
    dtype = np.float64 if precision == "float64" else np.float32
    nz, ny, nx = scan.grid_shape
    volume = np.ones((1, ny, nx, nz), dtype)
    data = np.ones((1, scan.views, scan.shape[1], scan.shape[0]), dtype)
    bound = 4 * MIB * pool.workers()
    assert peak_of(lambda: kernel.forward(scan, volume, data, precision=precision)) < bound
    assert peak_of(lambda: kernel.adjoint(scan, data, volume, precision=precision)) < bound


def test_no_copy_of_a_volume_in_the_kernels_order():
    n = 160
    A = Projector(ParallelBeam(np.array([0.3, 1.9]), Detector((n, 40))), Grid((n, n, n)))
    x = np.moveaxis(np.ones((n, n, n), np.float32), -1, 0)
    y = A @ x
    assert peak_of(lambda: A @ x) < y.nbytes + 4 * MIB * pool.workers()
    back = peak_of(lambda: A.H @ y)
    assert back < x.nbytes + 4 * MIB * pool.workers()
    assert x.nbytes > 2 * 4 * MIB  # so that a copy would have been seen


@pytest.mark.parametrize("precision", ["fast", "float64"])
def test_planar_kernels_take_a_few_images(precision):
    n = 640
    A = Projector(
        ParallelBeam(np.array([0.3, 1.9]), Detector((200,))), Grid((n, n)), precision=precision
    )
    x = np.ones((n, n), A.dtype)
    y = A @ x
    # forward: the image and its transpose between zeros; exact adjoint: two float64 a cell
    padded = n * (n + 64) * x.itemsize
    assert peak_of(lambda: A @ x) < 2 * padded + 4 * MIB * pool.workers()
    sums = 2 * n * (n + 64) * 8 if precision == "float64" else 0
    assert peak_of(lambda: A.H @ y) < x.nbytes + sums + 4 * MIB * pool.workers()
