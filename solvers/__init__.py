"""Iterative solvers over any linear operator, in any array namespace.

They see `domain`, `codomain`, `@`, `.H`, `columns`, `block`, `gram` and `tags`, and nothing
else: no geometry, no device.
"""

from solvers.cgls import cgls
from solvers.result import SolverResult
from solvers.sirt import sirt
from solvers.tv import tv
from solvers.vcd import vcd

__all__ = ["SolverResult", "cgls", "sirt", "tv", "vcd"]
