"""Scans whose derivatives in the geometry are tested, and fields to project."""

from __future__ import annotations

from typing import Any

import numpy as np

from geometries import ConeBeam, Detector, FanBeam, Grid, Projector, Trajectory

THREE = np.array([0.231, 0.811, 1.431])
FLAT, SOLID = Grid((3, 4), (1.1, 0.7)), Grid((2, 3, 4), (1.3, 0.9, 0.6))
CELLS = Detector((2, 3), (0.67, 0.91), (0.11, -0.17))
OFFSET = np.array([[0.173, -0.239], [-0.119, 0.281], [0.317, 0.113]])
E_U = np.stack([np.cos(THREE), np.sin(THREE)], 1)
E_R = np.stack([-np.sin(THREE), np.cos(THREE)], 1)


def wave(shape: tuple[int, ...], phase: float) -> np.ndarray:
    k = np.arange(np.prod(shape))
    return (np.sin(0.713 * k + phase) + 0.2 * np.cos(0.317 * k)).reshape(shape)


def tilted(kind: str) -> Trajectory:
    """Frames in no special position, one tilt and one place a view."""
    rng = np.random.default_rng(7)
    cone = ConeBeam(THREE, CELLS, 7.1, 12.4).trajectory
    q = np.stack([np.linalg.qr(np.eye(3) + 0.1 * rng.standard_normal((3, 3)))[0] for _ in range(3)])
    q = q * np.sign(np.einsum("kii->ki", q))[:, None, :]
    moved = cone.transform(q, 0.3 * rng.standard_normal((3, 3)))
    if kind == "cone":
        return moved
    return Trajectory("parallel", moved.normals, moved.centers, moved.u, moved.v, CELLS)


SCANS: dict[str, tuple[Any, Grid]] = {
    "parallel F": (
        Trajectory("parallel", E_R, OFFSET + 3.7 * E_R, E_U, None, Detector(5, 0.91)), FLAT,
    ),
    "fan F": (
        Trajectory("fan", OFFSET - 7.1 * E_R, OFFSET + 5.3 * E_R, E_U, None, Detector(5, 0.91)),
        FLAT,
    ),
    "equiangular": (FanBeam(THREE, Detector(5, 0.91, 0.13, 12.4), 7.1, 12.4), FLAT),
    "parallel 3-D": (tilted("parallel"), SOLID),
    "cone": (tilted("cone"), SOLID),
    "inside": (ConeBeam(THREE, Detector((2, 3), 0.41, 0.13), 0.63, 1.3, 1.7), SOLID),
}  # fmt: skip


def frames(projector: Projector) -> tuple[np.ndarray, ...]:
    t = projector.geometry.trajectory
    first = t.directions if t.sources is None else t.sources
    return tuple(np.array(f) for f in (first, t.centers, t.u, t.v) if f is not None)
