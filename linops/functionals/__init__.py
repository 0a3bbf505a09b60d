"""Functionals: real-valued maps with gradients, proximal maps and surrogates."""

from linops.functionals.functional import Functional
from linops.functionals.qggmrf import QGGMRF
from linops.functionals.quadratic import Quadratic
from linops.functionals.total_variation import TotalVariation

__all__ = ["QGGMRF", "Functional", "Quadratic", "TotalVariation"]
