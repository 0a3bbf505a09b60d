"""Denoising with a prior: coordinate descent with the identity in the place of a scan."""

from __future__ import annotations

import math
from typing import Any, Unpack

import numpy as np

from linops import arrays
from linops.elementary.identity import Identity
from linops.functionals import Functional
from linops.space import Space
from solvers.controls import positive
from solvers.decorator import Controls, solver
from solvers.elements import require_finite
from solvers.result import SolverResult
from solvers.vcd import vcd

__all__ = ["denoise", "estimate_noise"]

_MEDIAN = 0.674489750196082
"""The median of the modulus of a standard normal number."""


@solver("prior")
def denoise(
    prior: Functional,
    image: Any,
    sigma: float | None = None,
    *,
    iterations: int = 20,
    x0: Any = None,
    partitions: Any = None,
    seed: int = 0,
    weights: Any = None,
    bounds: tuple[float | None, float | None] | None = None,
    max_step: float = 1.5,
    change_rtol: float = 0.0,
    roi: Any = None,
    **controls: Unpack[Controls],
) -> SolverResult:
    """Minimise `|image - x|^2 / (2 sigma^2) + prior(x)`: the proximal map of the prior.

    It is `vcd` with the identity as its operator, starting from the image.

    Parameters
    ----------
    prior
        A functional with `restrict` on the space of the image, such as `QGGMRF`.
    image
        An element of the prior's domain, real, without batch axes.
    sigma
        Standard deviation of the noise, > 0; by default `estimate_noise(image)`. An image in which
        no noise is found comes back as it is, after no iteration.
    iterations
        Passes over all positions at most.
    x0
        Start, by default the image.
    partitions, seed, weights, bounds, max_step, change_rtol, roi
        As for `vcd`.
    **controls
        The residual is `|image - x|`.

    Returns
    -------
    SolverResult
        As of `vcd`.

    Raises
    ------
    ValueError
        As for `vcd`, and for a sigma that is not positive.

    Examples
    --------
    >>> import numpy as np
    >>> import linops as lo
    >>> flat = np.full((6, 6), 2.0, "float32")
    >>> bool((denoise(lo.QGGMRF(lo.Space((6, 6)), sigma_x=0.1), flat).solution == flat).all())
    True
    """
    space = prior.domain
    if not isinstance(space, Space):
        raise ValueError("denoise takes a prior on single arrays; denoise the members one by one")
    space.check_shape(image, "denoise: image")
    noise = estimate_noise(image) if sigma is None else positive("sigma", sigma)
    if not noise:
        noise, iterations = 1.0, 0
    return vcd(
        Identity(space), image, prior, sigma_y=noise, iterations=iterations,
        x0=image if x0 is None else x0, partitions=partitions, seed=seed, weights=weights,
        bounds=bounds, max_step=max_step, change_rtol=change_rtol, roi=roi, **controls,
    )  # fmt: skip


def estimate_noise(image: Any) -> float:
    """The standard deviation of white Gaussian noise in an image.

    `median(|d|) / (0.6745 sqrt(2))` of the differences d of all pairs of neighbors, of which
    edges are too few to matter (the median of the differences of a Gaussian is that of |d| for
    their deviation, which is sqrt(2) times that of the noise). Pairs of exact zeros, such as those
    outside of a field of view, say nothing and are left out; nothing wraps at the border.

    Parameters
    ----------
    image
        A real array with one or more axes.

    Raises
    ------
    ValueError
        For values that are complex or not finite.

    Examples
    --------
    >>> import numpy as np
    >>> noise = np.random.default_rng(0).normal(0, 0.25, (100, 100))
    >>> round(estimate_noise(1 + noise), 2)
    0.25
    """
    array = arrays.asarray(image, "estimate_noise", "image")
    if arrays.dtype_of(array).kind == "c":
        raise ValueError("estimate_noise takes real values; pass real and imaginary part apart")
    host = np.asarray(arrays.to_numpy(array), np.float64)
    require_finite(host, "image")
    differences = []
    for axis in range(host.ndim):
        along = np.moveaxis(host, axis, 0)
        here, there = along[1:], along[:-1]
        differences.append(np.abs(here - there)[(here != 0) | (there != 0)])
    found = np.concatenate(differences) if differences else np.zeros(0)
    return float(np.median(found)) / (_MEDIAN * math.sqrt(2.0)) if found.size else 0.0
