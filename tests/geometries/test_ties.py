"""Rays that are level with an axis or lie between two: one operator, however it is asked for.

A at every basis vector against `columns`, the gram's diagonal and array code. Angles are multiples
of 45 degrees, where directions differ in their last bits from kernel to kernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from geometries import ConeBeam, Detector, FanBeam, Grid, ParallelBeam, Projector

TURN = np.deg2rad(np.arange(-180.0, 180.0, 45.0))
# A grid whose middle lies where rounding once chose another axis for `columns` than for A.
OFF = Grid((4, 5, 2), 1.9244631566832204, (-1.0019893501890986, 0.31497948526581876, 1.3777087152))
FAR, PITCH = 38.95819020752927, (1.0265991938201098, 0.8066175573964569)

SCANS = {
    "cone": (ConeBeam(TURN, Detector((4, 3), PITCH), 36.15357481319657, FAR), OFF),
    "curved helix": (
        ConeBeam(TURN, Detector((4, 3), PITCH, curvature=FAR), 36.15357481319657, FAR, 2.0),
        OFF,
    ),
    "steep cone": (ConeBeam(TURN, Detector((9, 3), 4.0), 9.0, 18.0), Grid((6, 4, 4))),
    "rows": (ParallelBeam(TURN, Detector((3, 5))), Grid((3, 4, 4))),
    "unaligned rows": (
        ParallelBeam(TURN, Detector((5, 4), (0.7, 1.0), (0.1, -1.0))),
        Grid((5, 3, 3)),
    ),
    "faces": (
        ParallelBeam([0.0, np.pi / 2, np.pi], Detector((5, 2), offset=(-1.0, 0.0))),
        Grid((5, 1, 3)),
    ),
    "parallel": (ParallelBeam(TURN, Detector(8)), Grid((7, 7))),
    "parallel, unequal": (ParallelBeam(np.arctan2([1, 1, -1], [2, -2, 2]), Detector(8)),
                          Grid((6, 6), (1.0, 2.0))),
    "fan": (FanBeam(TURN, Detector(9), 20.0, 40.0), Grid((8, 8))),
}  # fmt: skip


def dense(A: Any) -> np.ndarray:
    n = A.domain.size
    return np.asarray(A @ np.eye(n).reshape(n, *A.domain.shape)).reshape(n, -1)


# The source of the first two stands too near for a footprint.
CASES = [(name, model) for model in ("siddon", "joseph", "footprint") for name in SCANS]
CASES = [case for case in CASES if case[1] != "footprint" or SCANS[case[0]][1] is not OFF]


@pytest.mark.parametrize(("name", "model"), CASES)
def test_one_operator_however_it_is_asked_for(name: str, model: str) -> None:
    geometry, grid = SCANS[name]
    weights = np.random.default_rng(1).uniform(0.5, 2.0, (geometry.views, *geometry.detector.shape))
    matrices = []
    for backend in ("numba", "portable"):
        A = Projector(geometry, grid, model, backend, "float64")
        M = dense(A)
        matrices.append(M)
        size = M.max()
        back = np.asarray(A.H @ np.eye(M.shape[1]).reshape(-1, *A.codomain.shape))
        np.testing.assert_allclose(back.reshape(M.shape[1], -1).T, M, atol=1e-12 * size)
        for w in (None, weights):
            found = np.asarray(A.gram(w).diagonal()).ravel()
            right = M**2 @ (np.ones(M.shape[1]) if w is None else w.ravel())
            np.testing.assert_allclose(found, right, atol=1e-12 * right.max())
        plane = grid.shape[-1] * grid.shape[-2]
        some = A.columns(np.arange(plane))
        np.testing.assert_allclose(dense(some), M, atol=1e-12 * size)
        squares = np.asarray(some.gram().diagonal()).ravel()
        np.testing.assert_allclose(squares, (M**2).sum(1), atol=1e-12 * (M**2).sum(1).max())
    if model == "joseph":
        # Lengths of a ray in a face go to either cell beside it, by its last bit; interpolated
        # values are the same from both sides.
        np.testing.assert_allclose(*matrices, atol=1e-11 * matrices[0].max())
