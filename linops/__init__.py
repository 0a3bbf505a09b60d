"""linops: an operator algebra for inverse problems.

    >>> import numpy as np
    >>> import linops as lo
    >>> space = lo.Space((4, 5), axes=("y", "x"))
    >>> A = 2 * lo.Gradient(space)
    >>> (A.H @ (A @ np.ones((4, 5), "float32"))).max()
    np.float32(0.0)

Spaces are in `linops.space`, the contract of an operator in `linops.linear_operator`, how operators
combine in `linops.algebra`, the leaves in `linops.elementary` and `linops.stencils`, priors in
`linops.functionals`, and the checks that every operator passes in `linops.testing`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from linops import errors
from linops.algebra.arithmetic import as_operator
from linops.algebra.concatenation import concat
from linops.algebra.functions import from_functions
from linops.algebra.kron import kron
from linops.algebra.stacks import block_diagonal, hstack, vstack
from linops.arrays import namespace
from linops.cost import Cost
from linops.elementary import (
    FFT,
    Cast,
    Conj,
    Convolve,
    Crop,
    Diagonal,
    Flip,
    Identity,
    Imag,
    Interpolate,
    Matrix,
    Pad,
    Real,
    Reshape,
    Restriction,
    Roll,
    Scatter,
    SumOver,
    Transpose,
    Zero,
)
from linops.elementary.pointwise import Exp, Log, Power, transmission
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.precision import Precision
from linops.rule import Rule
from linops.space import ProductSpace, Space, inners
from linops.transforms.from_function import from_function
from linops.transforms.pytree import register_jax

if TYPE_CHECKING:
    from linops.algebra.frames import Repeat
    from linops.algebra.states import trajectory_of
    from linops.elementary.coils import Coils
    from linops.elementary.cumulative_sum import CumulativeSum
    from linops.elementary.nonuniform_fourier import NUFFT
    from linops.elementary.patches import Patches
    from linops.elementary.resampling import Resample, Shift
    from linops.elementary.trigonometric import DCT, DST
    from linops.elementary.warps import AffineTransform, DeformationField, Rotate
    from linops.elementary.wavelet import Wavelet
    from linops.functionals import (
        L0,
        L1,
        L2,
        QGGMRF,
        AffineSubspace,
        Ball,
        Box,
        Cauchy,
        Denoiser,
        Functional,
        GemanMcClure,
        GroupL1,
        HalfSpace,
        Huber,
        KullbackLeibler,
        LeastSquares,
        Linf,
        LogSum,
        Lp,
        NonNegative,
        NuclearNorm,
        Proximity,
        Quadratic,
        Simplex,
        SymmetrizedGradient,
        TotalGeneralizedVariation,
        TotalVariation,
        VectorialTotalVariation,
        WaveletL1,
        infimal_convolution,
        moreau_envelope,
        separable,
    )
    from linops.stencils.gradient import Gradient
    from linops.stores import ArrayStore, NumpyStore, apply_into

__version__ = "0.1.0"

__all__ = [
    "DCT",
    "DST",
    "FFT",
    "L0",
    "L1",
    "L2",
    "NUFFT",
    "QGGMRF",
    "AffineSubspace",
    "AffineTransform",
    "ArrayStore",
    "Ball",
    "Box",
    "Cast",
    "Cauchy",
    "Coils",
    "Conj",
    "Convolve",
    "Cost",
    "Crop",
    "CumulativeSum",
    "DeformationField",
    "Denoiser",
    "Diagonal",
    "Exp",
    "Flip",
    "Functional",
    "GemanMcClure",
    "Gradient",
    "GroupL1",
    "HalfSpace",
    "Huber",
    "Identity",
    "Imag",
    "Interpolate",
    "KullbackLeibler",
    "LeastSquares",
    "LinearOperator",
    "Linf",
    "Log",
    "LogSum",
    "Lp",
    "Matrix",
    "NonNegative",
    "NuclearNorm",
    "NumpyStore",
    "Operator",
    "Pad",
    "Patches",
    "Power",
    "Precision",
    "ProductSpace",
    "Proximity",
    "Quadratic",
    "Real",
    "Repeat",
    "Resample",
    "Reshape",
    "Restriction",
    "Roll",
    "Rotate",
    "Rule",
    "Scatter",
    "Shift",
    "Simplex",
    "Space",
    "SumOver",
    "SymmetrizedGradient",
    "TotalGeneralizedVariation",
    "TotalVariation",
    "Transpose",
    "VectorialTotalVariation",
    "Wavelet",
    "WaveletL1",
    "Zero",
    "apply_into",
    "as_operator",
    "block_diagonal",
    "concat",
    "errors",
    "from_function",
    "from_functions",
    "hstack",
    "infimal_convolution",
    "inners",
    "kron",
    "moreau_envelope",
    "namespace",
    "register_jax",
    "separable",
    "trajectory_of",
    "transmission",
    "vstack",
]

_FUNCTIONALS = (
    "SymmetrizedGradient",
    "VectorialTotalVariation",
    "WaveletL1",
    "AffineSubspace",
    "HalfSpace",
    "infimal_convolution",
    "moreau_envelope",
    "Denoiser",
    "NuclearNorm",
    "TotalGeneralizedVariation",
    "L0",
    "Ball",
    "Linf",
    "Simplex",
    "Cauchy",
    "GemanMcClure",
    "LogSum",
    "Lp",
    "KullbackLeibler",
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
)
_ROOMS = {
    "linops.elementary.nonuniform_fourier": ("NUFFT",),
    "linops.algebra.states": ("trajectory_of",),
    "linops.elementary.resampling": ("Resample", "Shift"),
    "linops.elementary.warps": ("AffineTransform", "DeformationField", "Rotate"),
    "linops.elementary.patches": ("Patches",),
    "linops.elementary.coils": ("Coils",),
    "linops.algebra.frames": ("Repeat",),
    "linops.elementary.cumulative_sum": ("CumulativeSum",),
    "linops.elementary.trigonometric": ("DCT", "DST"),
    "linops.elementary.wavelet": ("Wavelet",),
    "linops.functionals": _FUNCTIONALS,
    "linops.stencils.gradient": ("Gradient",),
    "linops.stores": ("ArrayStore", "NumpyStore", "apply_into"),
}


def __getattr__(name: str) -> Any:
    # Priors, stencils and stores are imported when they are first asked for: an import stays short.
    for room, names in _ROOMS.items():
        if name in names:
            value = getattr(import_module(room), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'linops' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
