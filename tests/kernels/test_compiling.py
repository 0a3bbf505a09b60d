"""Kernels are compiled once for a dtype, whether or not arrays are read-only."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from geometries import Detector, FanBeam, Grid, Projector, fbp
from linops.compiled.writeable import writeable


def versions() -> dict[str, int]:
    """How many signatures every function of the kernels in use has, by name."""
    from numba.core.dispatcher import Dispatcher

    return {
        f"{name}.{key}": len(function.signatures)
        for name, module in list(sys.modules.items())
        if name.startswith("geometries.kernels.")
        for key, function in vars(module).items()
        if isinstance(function, Dispatcher)
    }


@pytest.mark.slow
def test_read_only_arrays_make_no_version() -> None:
    beam = FanBeam(np.arange(6) * np.pi / 3, Detector(16, 1.5), 30.0, 50.0)
    A = Projector(beam, Grid((8, 9)))
    index = np.array([3, 40, -1])
    x, z = np.ones((8, 9), "float32"), np.ones((3,), "float32")

    def results() -> list[np.ndarray]:
        part = A.columns(index)
        y = A @ x
        y.flags.writeable = x.flags.writeable
        return [y, A.H @ y, part @ z, part.H @ y, fbp(A, y)]

    first, before = results(), versions()
    for array in (x, z, index):
        array.flags.writeable = False
    for one, two in zip(first, results(), strict=True):
        np.testing.assert_array_equal(one, two)
    assert versions() == before
    assert sum(before.values()) > 5


@pytest.mark.parametrize("shape", [(3, 4), (0, 2), ()])
def test_writeable_shares_memory(shape: tuple[int, ...]) -> None:
    array = np.asfortranarray(np.arange(np.prod(shape, dtype=int), dtype="float32").reshape(shape))
    assert writeable(array) is array
    array.flags.writeable = False
    view = writeable(array)
    assert view.flags.writeable and not array.flags.writeable
    assert view.strides == array.strides and view.dtype == array.dtype
    np.testing.assert_array_equal(view, array)
    assert view.__array_interface__["data"][0] == array.__array_interface__["data"][0]
