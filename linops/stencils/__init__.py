"""Stencils and operators of differential equations: declared once, lowered everywhere.

`Stencil` is the declaration: taps, reach, boundary, coefficient fields, locations. The named
operators are declarations on it. `linops.Gradient` is the forward-difference gradient of total
variation; `Gradient` here has an order, a boundary and a staggered form.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from linops.stencils.advection import Advection
    from linops.stencils.conservation import Burgers, IsothermalEuler
    from linops.stencils.curl import Curl
    from linops.stencils.derivatives import Divergence, Gradient
    from linops.stencils.diffusion import Diffusion
    from linops.stencils.extension import Extension
    from linops.stencils.interpolation import Interpolation
    from linops.stencils.kernel_derivatives import differentiable, with_adjoint
    from linops.stencils.laplacian import Laplacian
    from linops.stencils.poisson import PoissonSolve
    from linops.stencils.propagation import WaveModel, WaveRecords
    from linops.stencils.sharded_kernel import halo_kernel, halo_widths
    from linops.stencils.stencil import Stencil
    from linops.stencils.steppers import LSRK4, RK4, SSPRK54, Euler, advective_step, diffusive_step
    from linops.stencils.wave import AcousticWave, stable_step, wave_energy

__all__ = [
    "LSRK4",
    "RK4",
    "SSPRK54",
    "AcousticWave",
    "Advection",
    "Burgers",
    "Curl",
    "Diffusion",
    "Divergence",
    "Euler",
    "Extension",
    "Gradient",
    "Interpolation",
    "IsothermalEuler",
    "Laplacian",
    "PoissonSolve",
    "Stencil",
    "WaveModel",
    "WaveRecords",
    "advective_step",
    "differentiable",
    "diffusive_step",
    "halo_kernel",
    "halo_widths",
    "stable_step",
    "wave_energy",
    "with_adjoint",
]

_ROOMS = {
    "advection": ("Advection",),
    "conservation": ("Burgers", "IsothermalEuler"),
    "curl": ("Curl",),
    "derivatives": ("Divergence", "Gradient"),
    "diffusion": ("Diffusion",),
    "extension": ("Extension",),
    "sharded_kernel": ("halo_kernel", "halo_widths"),
    "interpolation": ("Interpolation",),
    "kernel_derivatives": ("differentiable", "with_adjoint"),
    "laplacian": ("Laplacian",),
    "poisson": ("PoissonSolve",),
    "propagation": ("WaveModel", "WaveRecords"),
    "stencil": ("Stencil",),
    "steppers": ("LSRK4", "RK4", "SSPRK54", "Euler", "advective_step", "diffusive_step"),
    "wave": ("AcousticWave", "stable_step", "wave_energy"),
}


def __getattr__(name: str) -> Any:
    # Each file is imported when the first of its names is asked for: priors need one of them.
    for room, names in _ROOMS.items():
        if name in names:
            value = getattr(import_module(f"linops.stencils.{room}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'linops.stencils' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
