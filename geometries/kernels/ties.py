"""Which axis drives a ray: one rule for every kernel and for array code.

The axis along which a ray crosses most cells drives it, in a tie the first of x, y, z. Kernels
know a ray by numbers that differ in their last bits (in the plane or in space, normalised or not),
so lengths that agree to `TIE` are a tie; else a ray at 45 degrees would be driven by x in one of
them and by y in another, and Joseph's weights would be those of two operators.
"""

from __future__ import annotations

__all__ = ["SINGLE_TIE", "TIE", "leads"]

TIE = 1e-12
SINGLE_TIE = 1e-6  # where a library has no float64


def leads(one: float, two: float) -> bool:
    """Whether an axis with length `one` drives a ray before a later one with length `two`."""
    return one >= two * (1.0 - TIE)
