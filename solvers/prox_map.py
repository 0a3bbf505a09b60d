"""The proximal map of a data term, which plug-and-play methods alternate with a denoiser."""

from __future__ import annotations

from typing import Any

from linops import arrays
from linops.arguments import checking
from linops.functionals import Proximity
from linops.linear_operator import LinearOperator
from linops.space import Space
from solvers.result import SolverResult
from solvers.vcd import vcd

__all__ = ["prox_map"]


@checking("A")
def prox_map(
    A: LinearOperator,
    y: Any,
    v: Any,
    sigma_prox: float,
    weights: Any = None,
    sigma_y: float | None = None,
    iterations: int = 3,
    x0: Any = None,
    **options: Any,
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
    options
        The other arguments of `vcd`, by name.

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
    domain = A.domain
    if not isinstance(domain, Space):
        raise ValueError("prox_map takes an operator between single arrays; stack terms by concat")
    domain.check_shape(v, "prox_map: v")
    plain = Space(domain.shape, domain.dtype, domain.axes, domain.spacing)
    prior = Proximity(arrays.to_numpy(domain.gather(v)), sigma_prox, plain)
    start = v if x0 is None else x0
    return vcd(A, y, prior, weights, sigma_y, iterations, x0=start, **options)
