"""Functionals: maps to the real numbers with gradients, proximal maps and surrogates."""

from linops.functionals import combined as combined  # declares sums and multiples of functionals
from linops.functionals.balls import Ball, Linf, Simplex
from linops.functionals.concave import L0, Cauchy, GemanMcClure, LogSum, Lp
from linops.functionals.conjugate import infimal_convolution, moreau_envelope
from linops.functionals.constraints import Box, NonNegative
from linops.functionals.denoiser import Denoiser
from linops.functionals.functional import Functional
from linops.functionals.generalized_variation import (
    SymmetrizedGradient,
    TotalGeneralizedVariation,
)
from linops.functionals.huber import Huber
from linops.functionals.kullback_leibler import KullbackLeibler
from linops.functionals.least_squares import LeastSquares
from linops.functionals.norms import L1, L2, GroupL1
from linops.functionals.nuclear_norm import NuclearNorm
from linops.functionals.planes import AffineSubspace, HalfSpace
from linops.functionals.qggmrf import QGGMRF
from linops.functionals.quadratic import Proximity, Quadratic
from linops.functionals.separable_sum import separable
from linops.functionals.total_variation import TotalVariation
from linops.functionals.vectorial_variation import VectorialTotalVariation
from linops.functionals.wavelet_norm import WaveletL1

__all__ = [
    "L0",
    "L1",
    "L2",
    "QGGMRF",
    "AffineSubspace",
    "Ball",
    "Box",
    "Cauchy",
    "Denoiser",
    "Functional",
    "GemanMcClure",
    "GroupL1",
    "HalfSpace",
    "Huber",
    "KullbackLeibler",
    "LeastSquares",
    "Linf",
    "LogSum",
    "Lp",
    "NonNegative",
    "NuclearNorm",
    "Proximity",
    "Quadratic",
    "Simplex",
    "SymmetrizedGradient",
    "TotalGeneralizedVariation",
    "TotalVariation",
    "VectorialTotalVariation",
    "WaveletL1",
    "infimal_convolution",
    "moreau_envelope",
    "separable",
]
