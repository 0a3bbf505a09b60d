"""Stencils: operators that look at neighbouring planes. Today the forward-difference gradient."""

from __future__ import annotations

from linops.stencils.gradient import Gradient

__all__ = ["Gradient"]
