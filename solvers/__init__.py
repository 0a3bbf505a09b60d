"""Iterative solvers over any linear operator, in any array namespace.

They see `domain`, `codomain`, `@`, `.H`, `columns`, `block`, `gram` and `tags`, and nothing
else: no geometry, no device.
"""

from solvers.cgls import cgls
from solvers.partitions import Partitions
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
    "automatic_regularization",
    "cgls",
    "prox_map",
    "sirt",
    "tv",
    "vcd",
]
