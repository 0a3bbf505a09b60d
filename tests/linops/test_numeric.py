"""Numbers that cannot be meant are refused by every function that takes them, by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import linops as lo
from geometries import (
    Detector,
    FanBeam,
    Grid,
    ParallelBeam,
    Projector,
    RampFilter,
    angular_weights,
    bin_detector,
    center_to_offset,
    crop_columns,
    displaced_weights,
    fbp,
    find_center,
    line_integrals,
    offset_to_center,
    pad_columns,
    parker_weights,
    ramp_response,
    sweep_centers,
)
from sharding import Described, plan
from solvers import sirt

NAN = math.nan
T = np.linspace(0, 3, 7)
BEAM = ParallelBeam(T, Detector(9))
A = Projector(BEAM, Grid((6, 6)))
Y = np.ones((7, 9), "float32")
S = lo.Space((4, 5))
HOLED = Y.copy()
HOLED[1, 1] = NAN

CASES: dict[str, Callable[[], Any]] = {
    "row_sums": lambda: sirt(A, Y, iterations=1, row_sums=HOLED),
    "row_sums negative": lambda: sirt(A, Y, iterations=1, row_sums=-Y),
    "column_sums": lambda: sirt(A, Y, iterations=1, column_sums=np.full((6, 6), np.inf)),
    "angular_weights": lambda: fbp(A, Y, angular_weights=HOLED[:, 1]),
    "projection_weights": lambda: fbp(A, Y, projection_weights=HOLED),
    "filter_response": lambda: fbp(A, Y, filter_response=ramp_response(9) * NAN),
    "isocenter": lambda: fbp(A, Y, isocenter=NAN),
    "isocenter text": lambda: fbp(A, Y, isocenter="a"),
    "pitch": lambda: ramp_response(8, 0),
    "pitch nan": lambda: RampFilter(S, pitch=NAN),
    "fan_step": lambda: ramp_response(8, fan_step=-1),
    "columns": lambda: ramp_response(8.5),  # type: ignore[arg-type]
    "period": lambda: angular_weights(T, period=-1),
    "columns nan": lambda: parker_weights(T, [NAN], 70.0),
    "source_to_detector": lambda: parker_weights(T, [1.0], 0),
    "columns inf": lambda: displaced_weights([1.0, np.inf]),
    "source_to_detector nan": lambda: displaced_weights([1.0, -1.0], NAN),
    "center": lambda: center_to_offset(NAN, 9),
    "columns none": lambda: center_to_offset(3.0, 0),
    "pitch zero": lambda: offset_to_center(3.0, 9, 0),
    "row": lambda: find_center(Y[:, None] * np.arange(9), T, row=5),
    "search": lambda: find_center(Y * np.arange(9), T, search=(0, NAN)),
    "centers": lambda: sweep_centers(Y, T, [4.0, NAN]),
    "floor": lambda: line_integrals(Y, 2.0, floor=NAN),
    "factor": lambda: bin_detector(Y, BEAM, 1.5),  # type: ignore[arg-type]
    "before": lambda: pad_columns(Y, BEAM, -1),
    "stop": lambda: crop_columns(Y, BEAM, 0, 2.5),  # type: ignore[arg-type]
    "source_to_axis": lambda: FanBeam(T, Detector(9), -1.0, 9.0),
    "unattenuated": lambda: lo.transmission(A, -1),
    "unattenuated nan": lambda: lo.transmission(A, HOLED),
    "exponent": lambda: lo.Power(S, NAN),
    "target": lambda: lo.LeastSquares(S, np.full((4, 5), NAN)),
    "weights": lambda: lo.L1(S, -1.0),
    "spacing": lambda: lo.Space((2, 3), spacing=(1.0, 0.0)),
    "axes": lambda: lo.Space((2, 3), axes=("y", "x!")),
    "axes empty": lambda: lo.Space((2, 3), axes=("y", "")),
    "tags": lambda: lo.from_functions(abs, abs, domain=S, tags=("foo",)),
    "domain": lambda: lo.from_functions(abs, abs, domain=(4, 5)),  # type: ignore[arg-type]
    "number": lambda: Described(-1),
    "memory": lambda: Described(0, memory=NAN),
    "deterministic": lambda: plan(A, devices=2, executor="threads", deterministic="no"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", CASES)
def test_the_error_names_the_argument(name: str) -> None:
    with pytest.raises((ValueError, TypeError), match=name.split()[0]):
        CASES[name]()
