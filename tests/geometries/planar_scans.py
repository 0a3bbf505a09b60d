"""Planar scans, and data in closed form, that the tests of filtered backprojection share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from geometries import Detector, FanBeam, Grid, ParallelBeam, Trajectory

TURN = 2 * np.pi


def scan(geometry: Any, grid: Grid, precision: str = "float64") -> Any:
    """What fbp reads of a projector."""
    return SimpleNamespace(geometry=geometry, grid=grid, precision=precision)


def chords(geometry: Any, radius: float, x0: float = 0.0, y0: float = 0.0) -> np.ndarray:
    """Line integrals of a disc of value 1, in closed form, for every ray."""
    frames = geometry.trajectory
    out = np.empty((frames.views, frames.detector.shape[-1]))
    for k in range(frames.views):
        P = frames.pixels(k)
        if frames.sources is None:
            e = np.broadcast_to(frames.directions[k], P.shape)
        else:
            e = P - frames.sources[k]
            e = e / np.linalg.norm(e, axis=1, keepdims=True)
        away = (P[:, 0] - x0) * e[:, 1] - (P[:, 1] - y0) * e[:, 0]
        out[k] = 2 * np.sqrt(np.maximum(radius**2 - away**2, 0))
    return out


def wave(shape: tuple[int, ...], phase: float = 0.0) -> np.ndarray:
    k = np.arange(np.prod(shape))
    return (np.sin(0.713 * k + phase) + 0.2 * np.cos(0.317 * k)).reshape(shape)


def uniform(kind: str) -> Trajectory:
    """The uniform scan: bare frames about a point off the origin, distances that drift."""
    k = np.arange(8)
    t, c = 0.17 + TURN * k / 8, np.array([0.19, -0.23])
    a, d = (6 + 0.13 * k)[:, None], (11 + 0.17 * k)[:, None]
    e_u, e_r = np.stack([np.cos(t), np.sin(t)], 1), np.stack([-np.sin(t), np.cos(t)], 1)
    detector = Detector(9, 0.71)
    if kind == "parallel":
        return Trajectory("parallel", e_r, c + 0.27 * e_u, e_u, None, detector)
    source = c - a * e_r
    return Trajectory("fan", source, source + d * e_r + 0.27 * e_u, e_u, None, detector)


def geometries(count: int = 9, views: int = 11) -> dict[str, Any]:
    t = 0.2 + TURN * np.arange(views) / views
    return {
        "parallel": ParallelBeam(t / 2, Detector(count, 0.9, 0.13)),
        "fan": FanBeam(t, Detector(count, 1.4, 0.13), 9.0, 14.0),
        "equiangular": FanBeam(t, Detector(count, 1.4, 0.13, 14.0), 9.0, 14.0),
        "short": FanBeam(0.7 * t, Detector(count, 1.4, -0.2), 20.0, 30.0),
        "frames": uniform("fan"),
    }
