"""`Phantom`: a sum of ellipses or ellipsoids, as an image and as exact line integrals.

Chords are in closed form, so simulated data are not made by the projector that reconstructs
them. Phantoms that have a name are in `geometries/simulation/phantoms.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from geometries.grid import Grid
from linops import numeric
from linops.errors import GeometryError

__all__ = ["Ellipsoid", "Phantom"]

_RAYS = 1 << 16  # rays, or points, that are computed at a time


@dataclass(frozen=True)
class Ellipsoid:
    """A constant value within an ellipse or an ellipsoid, cut by planes.

    Parameters
    ----------
    value
        What is added within.
    semi_axes
        Half lengths (a, b) or (a, b, c), along x, y and z before it is turned.
    center
        (x, y) or (x, y, z).
    angle
        In radians, about z, from x towards y.
    cuts
        Pairs (distance, angle): only points less than that distance from the center in that
        direction of the plane of x and y belong to it.
    """

    value: float
    semi_axes: tuple[float, ...]
    center: tuple[float, ...]
    angle: float = 0.0
    cuts: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        d = len(self.semi_axes)
        numbers = (self.value, self.angle, *self.semi_axes, *self.center)
        finite = bool(np.isfinite(np.asarray(numbers, float)).all())
        if d not in (2, 3) or len(self.center) != d or not finite or min(self.semi_axes) <= 0:
            raise GeometryError(
                f"an ellipsoid has two or three semi-axes > 0 and as many finite coordinates of "
                f"its center, got {self.semi_axes} and {self.center}"
            )

    def _turn(self) -> np.ndarray:
        c, s = np.cos(self.angle), np.sin(self.angle)
        turn = np.eye(len(self.semi_axes))
        turn[:2, :2] = [[c, s], [-s, c]]
        return np.asarray(turn / np.asarray(self.semi_axes)[:, None])

    def inside(self, points: np.ndarray) -> np.ndarray:
        """Which of the points, (..., d), belong to it."""
        away = points - np.asarray(self.center)
        within = ((away @ self._turn().T) ** 2).sum(axis=-1) <= 1
        for distance, angle in self.cuts:
            within &= away[..., 0] * np.cos(angle) + away[..., 1] * np.sin(angle) < distance
        return np.asarray(within)

    def chords(self, origins: np.ndarray, directions: np.ndarray) -> np.ndarray:
        """Length of the lines through origins, (n, d), along unit directions, within it."""
        away, turn = origins - np.asarray(self.center), self._turn()
        q, e = away @ turn.T, directions @ turn.T
        a, b, c = (e * e).sum(-1), (q * e).sum(-1), (q * q).sum(-1) - 1
        root = np.sqrt(np.maximum(b * b - a * c, 0))
        first, last = (-b - root) / a, (-b + root) / a
        for distance, angle in self.cuts:
            normal = np.array([np.cos(angle), np.sin(angle), 0.0])[: away.shape[1]]
            along, left = directions @ normal, distance - away @ normal
            with np.errstate(divide="ignore", invalid="ignore"):
                at = left / along
            last = np.where(along > 0, np.minimum(last, at), last)
            first = np.where(along < 0, np.maximum(first, at), first)
            last = np.where((along == 0) & (left <= 0), first, last)
        return np.asarray(np.maximum(last - first, 0))


@dataclass(frozen=True)
class Phantom:
    """A sum of ellipses or ellipsoids.

    Parameters
    ----------
    shapes
        All of two or all of three dimensions, in physical lengths.

    Raises
    ------
    GeometryError
        Where there are none, or dimensions differ.

    Examples
    --------
    >>> from geometries import Detector, Grid, ParallelBeam
    >>> disc = Phantom([Ellipsoid(2.0, (1.0, 1.0), (0.0, 0.0))])
    >>> disc.line_integrals(ParallelBeam([0.0], Detector(3, 0.5))).round(3)
    array([[3.464, 4.   , 3.464]], dtype=float32)
    >>> disc.image(Grid((1, 3), 0.5))
    array([[2., 2., 2.]], dtype=float32)
    """

    shapes: tuple[Ellipsoid, ...]

    def __init__(self, shapes: Iterable[Ellipsoid]) -> None:
        object.__setattr__(self, "shapes", tuple(shapes))
        if len({len(shape.semi_axes) for shape in self.shapes}) != 1:
            raise GeometryError("a phantom has one or more shapes, all of the same dimensions")

    @property
    def dims(self) -> int:
        """2 or 3."""
        return len(self.shapes[0].semi_axes)

    def scaled(self, length: float, value: float = 1.0) -> Phantom:
        """All lengths times `length`, all values times `value`."""
        return Phantom(
            replace(
                shape,
                value=shape.value * value,
                semi_axes=tuple(a * length for a in shape.semi_axes),
                center=tuple(a * length for a in shape.center),
                cuts=tuple((distance * length, angle) for distance, angle in shape.cuts),
            )
            for shape in self.shapes
        )

    def values(self, points: np.ndarray) -> np.ndarray:
        """The values at points, (..., d), components (x, y) or (x, y, z), in float64."""
        return np.asarray(sum(shape.value * shape.inside(points) for shape in self.shapes), float)

    def image(self, grid: Grid, samples: int = 4, dtype: Any = "float32") -> np.ndarray:
        """Means over the cells of a grid, from `samples` points along each of their axes.

        Raises
        ------
        GeometryError
            For a grid of other dimensions.
        """
        self._fits(grid, "grid")
        samples = numeric.whole("samples", samples, 1)
        within = (np.arange(samples) + 0.5) / samples - 0.5
        axes = [
            (grid.coordinates(k)[:, None] + within * grid.spacing[k]).ravel()
            for k in range(grid.dims)
        ]
        planes = max(1, int(_RAYS * 16 / np.prod([len(a) for a in axes[1:]]) / samples)) * samples
        parts = []
        for start in range(0, len(axes[0]), planes):
            points = np.meshgrid(axes[0][start : start + planes], *axes[1:], indexing="ij")
            fine = self.values(np.stack(points[::-1], -1))
            split = [n for extent in fine.shape for n in (extent // samples, samples)]
            parts.append(fine.reshape(split).mean(axis=tuple(range(1, 2 * grid.dims, 2))))
        return np.concatenate(parts).astype(dtype)

    def line_integrals(self, geometry: Any, dtype: Any = "float32") -> np.ndarray:
        """Exact integrals along the line to the middle of every detector cell, of any geometry.

        Parameters
        ----------
        geometry
            A beam or a `Trajectory`; detectors may be flat, curved or any surface.
        dtype
            Of the result, `(view, col)` or `(view, row, col)`.

        Raises
        ------
        GeometryError
            For a geometry of other dimensions.
        """
        trajectory = geometry.trajectory.host
        self._fits(trajectory, "geometry")
        ends = np.asarray(trajectory.points())
        shape, d = ends.shape[:-1], ends.shape[-1]
        ends = ends.reshape(shape[0], -1, d)
        out = np.empty(ends.shape[:2])
        views = max(1, _RAYS // max(ends.shape[1], 1))
        for start in range(0, shape[0], views):
            part = slice(start, start + views)
            if trajectory.sources is None:
                along = np.broadcast_to(trajectory.directions[part, None], ends[part].shape)
            else:
                along = ends[part] - trajectory.sources[part, None]
            along = along / np.sqrt((along**2).sum(axis=-1, keepdims=True))
            rays = ends[part].reshape(-1, d), along.reshape(-1, d)
            total = sum(one.value * one.chords(*rays) for one in self.shapes)
            out[part] = np.reshape(total, out[part].shape)
        return out.reshape(shape).astype(dtype)

    def _fits(self, other: Any, name: str) -> None:
        if other.dims != self.dims:
            raise GeometryError(
                f"a phantom of {self.dims} dimensions takes a {name} of as many, got {other.dims}"
            )
