"""What detectors do to line integrals: photons, electronics, uneven and bad cells.

Everything is drawn from a seed by NumPy's generator, so the same seed gives the same data.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linops import numeric
from linops.errors import ShapeError

__all__ = ["Counts", "add_bad_cells", "add_gaussian", "add_rings", "poisson_counts"]


class Counts(NamedTuple):
    """What `poisson_counts` returns: arguments of `line_integrals`, in its order.

    Attributes
    ----------
    counts
        Behind the object, the shape of the line integrals.
    flats
        Without the object, `(frames, ...)`.
    darks
        Without the beam, of one view.
    """

    counts: np.ndarray
    flats: np.ndarray
    darks: np.ndarray


def poisson_counts(
    lines: np.ndarray,
    photons: float | np.ndarray,
    seed: int,
    *,
    flats: int = 10,
    dark: float = 0.0,
) -> Counts:
    """Photon counts of line integrals, with flats and darks.

    Parameters
    ----------
    lines
        Line integrals, `(view, col)` or `(view, row, col)`.
    photons
        Expected without the object: a number, or one for each cell of a view (the beam's profile).
    seed
        Of the generator.
    flats
        How many flat fields are counted.
    dark
        Counts without the beam, in every cell, known exactly.

    Raises
    ------
    ShapeError
        Where photons have not the shape of a view.
    ValueError
        For photons or a dark count below 0.
    """
    lines = np.asarray(lines, "float64")
    open_beam = np.broadcast_to(np.asarray(photons, "float64"), np.shape(photons))
    if open_beam.ndim and open_beam.shape != lines.shape[1:]:
        raise ShapeError(
            f"photons are one number, or one for each cell {lines.shape[1:]} of a view, got shape "
            f"{open_beam.shape}"
        )
    if not (np.isfinite(open_beam).all() and (open_beam >= 0).all() and dark >= 0):
        raise ValueError("photons and dark are finite counts, 0 or more")
    generator = np.random.default_rng(seed)
    beam = np.broadcast_to(open_beam, lines.shape[1:])
    frames = (numeric.whole("flats", flats, 1), *beam.shape)
    counts = generator.poisson(beam * np.exp(-lines)) + dark
    flat = generator.poisson(np.broadcast_to(beam, frames)) + dark
    whole = "float32"
    return Counts(counts.astype(whole), flat.astype(whole), np.full(beam.shape, dark, whole))


def add_gaussian(data: np.ndarray, sigma: float, seed: int) -> np.ndarray:
    """`data` with independent normal errors of standard deviation `sigma`; complex data get as
    much in both parts."""
    data = np.asarray(data)
    sigma = numeric.finite("sigma", sigma)
    generator = np.random.default_rng(seed)
    noise: Any = generator.standard_normal(data.shape)
    if data.dtype.kind == "c":
        noise = noise + 1j * generator.standard_normal(data.shape)
    return np.asarray(data + sigma * noise, np.result_type(data.dtype, np.float32))


def add_rings(lines: np.ndarray, sigma: float, seed: int) -> np.ndarray:
    """Line integrals with an error of every detector cell that is the same in all views: rings."""
    lines = np.asarray(lines)
    return np.asarray(
        lines + add_gaussian(np.zeros(lines.shape[1:]), sigma, seed),
        np.result_type(lines.dtype, np.float32),
    )


def add_bad_cells(
    data: np.ndarray, fraction: float, seed: int, *, value: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """`data` with a share of the cells stuck at a value in all views, and which they are.

    Returns
    -------
    tuple
        The data, and the mask of one view, True where a cell is bad, as `repair_cells` takes it.
    """
    if not 0 <= numeric.finite("fraction", fraction) <= 1:
        raise ValueError(f"fraction is {fraction!r}; it is a share between 0 and 1")
    data = np.array(data)
    cells = int(np.prod(data.shape[1:]))
    bad = np.zeros(cells, bool)
    bad[np.random.default_rng(seed).permutation(cells)[: round(fraction * cells)]] = True
    mask = bad.reshape(data.shape[1:])
    data[:, mask] = value
    return data, mask
