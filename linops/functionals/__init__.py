"""Functionals: maps to the real numbers with gradients, proximal maps and surrogates."""

from linops.functionals.constraints import Box, NonNegative
from linops.functionals.functional import Functional
from linops.functionals.huber import Huber
from linops.functionals.least_squares import LeastSquares
from linops.functionals.norms import L1, L2, GroupL1
from linops.functionals.qggmrf import QGGMRF
from linops.functionals.quadratic import Proximity, Quadratic
from linops.functionals.separable_sum import separable
from linops.functionals.total_variation import TotalVariation

__all__ = [
    "L1",
    "L2",
    "QGGMRF",
    "Box",
    "Functional",
    "GroupL1",
    "Huber",
    "LeastSquares",
    "NonNegative",
    "Proximity",
    "Quadratic",
    "TotalVariation",
    "separable",
]
