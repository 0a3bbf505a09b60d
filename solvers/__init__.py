"""Iterative solvers over any linear operator, in any array namespace.

They see `domain`, `codomain`, `@`, `.H`, `columns`, `block`, `gram` and `tags`, and nothing
else: no geometry, no device.
"""

from solvers.admm import admm
from solvers.cgls import cgls
from solvers.denoise import denoise, estimate_noise
from solvers.emission import mlem, osem
from solvers.fista import fista
from solvers.gradient_descent import gradient_descent, landweber
from solvers.lsmr import lsmr
from solvers.ordered_subsets import os_sart
from solvers.partitions import Partitions
from solvers.primal_dual import pdhg
from solvers.prox_map import prox_map
from solvers.regularization import Regularization, automatic_regularization
from solvers.result import SolverResult
from solvers.sirt import sirt
from solvers.streamed import cgls_into, sirt_into
from solvers.tv import tv
from solvers.vcd import vcd

__all__ = [
    "Partitions",
    "Regularization",
    "SolverResult",
    "admm",
    "automatic_regularization",
    "cgls",
    "cgls_into",
    "denoise",
    "estimate_noise",
    "fista",
    "gradient_descent",
    "landweber",
    "lsmr",
    "mlem",
    "os_sart",
    "osem",
    "pdhg",
    "prox_map",
    "sirt",
    "sirt_into",
    "tv",
    "vcd",
]
