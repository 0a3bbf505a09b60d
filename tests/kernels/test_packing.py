"""A scan is turned into the arrays of compiled code once, not in every apply."""

from __future__ import annotations

import numpy as np
import pytest

from geometries import ConeBeam, Detector, Grid, ParallelBeam, Projector
from geometries.kernels import volume_scan


@pytest.mark.parametrize("kind", ["parallel", "cone"])
def test_packed_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    angles, detector = np.linspace(0, 3, 4), Detector((3, 5))
    beam = ParallelBeam(angles, detector)
    scan = beam if kind == "parallel" else ConeBeam(angles, detector, 30.0, 45.0)
    made = []
    packed = volume_scan._packed
    monkeypatch.setattr(volume_scan, "_packed", lambda scan: made.append(scan) or packed(scan))
    A = Projector(scan, Grid((3, 4, 4)))
    x = A.domain.random(0)
    first = A.H @ (A @ x)
    count = len(made)
    for _ in range(3):
        np.testing.assert_array_equal(A.H @ (A @ x), first)
        A.columns(np.arange(4)) @ x.reshape(3, -1)[:, :4]
        A.gram().diagonal()
    assert len(made) == count
    assert len({id(scan) for scan in made}) == count
