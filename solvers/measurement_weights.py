"""Weights of measurements, by name or as given, and those of algebraic methods: inverse sums."""

from __future__ import annotations

import numbers
from typing import Any

from linops import arrays
from linops.arrays import Array
from linops.space import Space
from solvers.controls import non_negative
from solvers.elements import admit, require_sums

__all__ = ["GRAZING", "measurement_weights", "reciprocal"]

GRAZING = 1e-6
"""The share of the longest ray below which a ray weighs nothing: it grazes a corner."""

_NAMES = ("transmission", "transmission_root", "emission")


def measurement_weights(weights: Any, y: Any, space: Space) -> Any:
    """Weights as an array like `y`, or None for 1.

    Parameters
    ----------
    weights
        None, a number, an array of the space's shape, `"transmission"` (e^-y),
        `"transmission_root"` (e^(-y/2)) or `"emission"` (1 / (|y| + 0.1)).
    y
        Measurements, finite.
    space
        Theirs.

    Raises
    ------
    ValueError
        For another name, and weights that are negative or not finite.
    """
    if weights is None:
        return None
    xp = arrays.namespace(y)
    if isinstance(weights, str):
        if weights == "transmission":
            w = xp.exp(-y)
        elif weights == "transmission_root":
            w = xp.exp(-0.5 * y)
        elif weights == "emission":
            w = 1.0 / (xp.abs(y) + 0.1)
        else:
            raise ValueError(
                f"weights is {weights!r}; it is one of {', '.join(_NAMES)}, a number or an array"
            )
    elif isinstance(weights, numbers.Real) and not isinstance(weights, bool):
        w = xp.zeros_like(y) + non_negative("weights", weights)
    else:
        w = admit(weights, space, "weights", like=y)
    require_sums(w, "weights")
    return w


def reciprocal(sums: Array, factor: float = 1.0, least: Any = 0.0) -> Array:
    """`factor / sums`, 0 where they are not positive or below `least`."""
    xp = arrays.namespace(sums)
    weighs = (sums > 0) & (sums >= least)
    return xp.where(
        weighs, factor / xp.where(weighs, sums, xp.ones_like(sums)), xp.zeros_like(sums)
    )
