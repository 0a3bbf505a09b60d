"""Stencils and operators of differential equations: declared once, lowered everywhere.

`Stencil` is the declaration: taps, reach, boundary, coefficient fields, locations. The named
operators are declarations on it. `linops.Gradient` is the forward-difference gradient of total
variation.
"""

from __future__ import annotations

from linops.stencils.extension import Extension
from linops.stencils.gradient import Gradient
from linops.stencils.halo_kernel import halo_kernel, halo_widths
from linops.stencils.kernel_derivatives import differentiable, with_adjoint
from linops.stencils.laplacian import Laplacian
from linops.stencils.stencil import Stencil

__all__ = [
    "Extension",
    "Gradient",
    "Laplacian",
    "Stencil",
    "differentiable",
    "halo_kernel",
    "halo_widths",
    "with_adjoint",
]
