"""Arguments of the wrong kind are named, and integers of NumPy serve as those of Python do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import geometries
from geometries import (
    Detector,
    Grid,
    ParallelBeam,
    Projector,
    Surface,
    bin_detector,
    find_center,
    perturb,
    sweep_centers,
    truncation,
)
from linops.errors import DTypeError, GeometryError

THETA = np.linspace(0, 3, 7)
BEAM = ParallelBeam(THETA, Detector(9))
Y = np.ones((7, 9), "f4")
ROWS = np.ones((7, 5, 9), "f4")
RNG = np.random.default_rng(0)

WRONG: dict[str, tuple[str, Callable[[], Any]]] = {
    "axis of three": ("axis is 5; it is one of y, x", lambda: Grid((4, 4)).coordinates(5)),
    "axis q": ("axis is 'q'; it is one of y, x", lambda: Grid((4, 4)).coordinates("q")),
    "axis None": ("axis is None; it is one of y, x", lambda: Grid((4, 4)).coordinates(None)),  # type: ignore[arg-type]
    "perturb": ("beam or a Trajectory, got Grid", lambda: perturb(Grid((3, 4)), RNG)),  # type: ignore[arg-type]
    "truncation": ("takes a Projector, got 5", lambda: truncation(5)),
    "parameters": ("parameters is 5", lambda: Surface(lambda a, b, v: a, 5)),  # type: ignore[arg-type]
    "names": ("parameters is", lambda: Surface(lambda a, b, v: a, ["x"])),
    "binning": ("factor is 1.5", lambda: bin_detector(Y, BEAM, 1.5)),  # type: ignore[arg-type]
    "search": ("search is 5; it is a pair", lambda: find_center(Y, THETA, search=5)),  # type: ignore[arg-type]
    "row": ("row is 99; it is one of the 5", lambda: find_center(ROWS, THETA, row=99)),
    "centers": ("centers is 5; it is a list", lambda: sweep_centers(Y, THETA, 5)),  # type: ignore[arg-type]
    "long grid": ("no axis is longer than 2147483647", lambda: Grid((2**31, 4))),
    "long detector": ("no axis is longer than 2147483647", lambda: Detector(2**31)),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_the_argument_is_named(name: str) -> None:
    text, call = WRONG[name]
    with pytest.raises((GeometryError, DTypeError), match=text):
        call()


@pytest.mark.parametrize("i", [int, np.int64, np.uint8, np.array])
def test_integers_of_numpy(i: Any) -> None:
    grid, detector = Grid((i(6), i(5))), Detector((i(3), i(9)))
    assert grid == Grid((6, 5)) == Grid(np.array([6, 5]))
    assert detector == Detector((3, 9)) == Detector(np.array([3, 9]))
    assert Detector(i(9)) == Detector(9)
    assert all(type(n) is int for n in (*grid.shape, *detector.shape))
    np.testing.assert_array_equal(grid.coordinates(i(1)), grid.coordinates("x"))
    A = Projector(BEAM, grid)
    np.testing.assert_array_equal(BEAM[i(2)].angles, THETA[2:3])
    x = A.domain.random(0)
    np.testing.assert_array_equal(A.block("view", i(1), i(3)) @ x, (A @ x)[1:3])


def test_what_analytic_reconstruction_lacks_is_named() -> None:
    with pytest.raises(DTypeError, match="RampFilter takes a plain Space as space, got the string"):
        geometries.RampFilter("no")  # type: ignore[arg-type]
    for name in ("AngularWeights", "CosineWeights", "DisplacedWeights", "ParkerWeights"):
        for value in ("no", None, np.ones(2)):
            with pytest.raises(DTypeError, match="takes a beam or a Trajectory as geometry, got"):
                getattr(geometries, name)(value)
