"""Iterative solvers over any linear operator, in any array namespace.

They see `domain`, `codomain`, `@`, `.H`, `columns`, `block`, `gram` and `tags`, and nothing
else: no geometry, no device.
"""

from solvers.admm import admm
from solvers.cgls import cgls
from solvers.denoise import denoise, estimate_noise
from solvers.emission import mlem, osem
from solvers.fista import fista
from solvers.gauss_newton import gauss_newton
from solvers.gradient_descent import gradient_descent, landweber
from solvers.into_stores import cgls_into, sirt_into
from solvers.lsmr import lsmr
from solvers.ordered_subsets import art, os_sart
from solvers.parameter_choice import (
    discrepancy_principle,
    generalized_cross_validation,
    l_curve,
    sure,
)
from solvers.plane_partitions import Partitions
from solvers.primal_dual import pdhg
from solvers.prox_map import prox_map
from solvers.regularization import Regularization, automatic_regularization
from solvers.result import SolverResult
from solvers.sirt import sirt
from solvers.tv import tv
from solvers.vcd import vcd

__all__ = [
    "Partitions",
    "Regularization",
    "SolverResult",
    "admm",
    "art",
    "automatic_regularization",
    "cgls",
    "cgls_into",
    "denoise",
    "discrepancy_principle",
    "estimate_noise",
    "fista",
    "gauss_newton",
    "generalized_cross_validation",
    "gradient_descent",
    "l_curve",
    "landweber",
    "lsmr",
    "mlem",
    "os_sart",
    "osem",
    "pdhg",
    "prox_map",
    "sirt",
    "sirt_into",
    "sure",
    "tv",
    "vcd",
]
