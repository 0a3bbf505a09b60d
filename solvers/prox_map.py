"""The proximal map of a data term, which plug-and-play methods alternate with a denoiser."""

from __future__ import annotations

from typing import Any, Unpack

from linops import arrays
from linops.functionals import Proximity
from linops.linear_operator import LinearOperator
from linops.space import Space
from solvers.controls import require_real_arrays
from solvers.decorator import Controls, solver
from solvers.result import SolverResult
from solvers.vcd import vcd

__all__ = ["prox_map"]


@solver("A")
def prox_map(
    A: LinearOperator,
    y: Any,
    v: Any,
    sigma_prox: float,
    *,
    weights: Any = None,
    sigma_y: float | None = None,
    iterations: int = 3,
    x0: Any = None,
    partitions: Any = None,
    seed: int = 0,
    bounds: tuple[float | None, float | None] | None = None,
    max_step: float = 1.5,
    change_rtol: float = 0.0,
    roi: Any = None,
    **controls: Unpack[Controls],
) -> SolverResult:
    """Minimise `sum w (y - A x)^2 / (2 sigma_y^2) + |x - v|^2 / (2 sigma_prox^2)`.

    It is `vcd` with the prior `Proximity(v, sigma_prox)`.

    Parameters
    ----------
    A, y, weights, sigma_y, iterations
        As for `vcd`.
    v
        An element of A's domain, plain or on its devices, whichever y is.
    sigma_prox
        How far from v the result may lie, in units of an entry; > 0. Small gives v, large the fit
        to the data alone.
    x0
        Start, v by default.
    partitions, seed, bounds, max_step, change_rtol, roi
        As for `vcd`.
    **controls
        As for `vcd`.

    Returns
    -------
    SolverResult
        As of `vcd`.

    Raises
    ------
    ValueError
        As for `vcd`, and for a `sigma_prox` that is not positive.
    ShapeError
        For a v that is no element of the domain.
    """
    require_real_arrays(A, "prox_map")
    domain = A.domain
    assert isinstance(domain, Space)
    domain.check_shape(v, "prox_map: v")
    plain = Space(domain.shape, domain.dtype, domain.axes, domain.spacing)
    prior = Proximity(arrays.to_numpy(domain.home.gather(v)), sigma_prox, plain)
    return vcd(
        A, y, prior, weights=weights, sigma_y=sigma_y, iterations=iterations,
        x0=v if x0 is None else x0, partitions=partitions, seed=seed, bounds=bounds,
        max_step=max_step, change_rtol=change_rtol, roi=roi, **controls,
    )  # fmt: skip
