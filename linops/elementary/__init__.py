"""Elementary operators: the small leaves that compositions are made of."""

from __future__ import annotations

from linops.elementary.complex_parts import Conj, Imag, Real
from linops.elementary.convolve import Convolve
from linops.elementary.crop_pad import Crop, Pad
from linops.elementary.diagonal import Diagonal
from linops.elementary.fourier import FFT
from linops.elementary.identity import Cast, Identity, Zero
from linops.elementary.interpolate import Interpolate
from linops.elementary.matrix import Matrix
from linops.elementary.order import Flip, Roll
from linops.elementary.reduce import SumOver
from linops.elementary.select import Restriction, Scatter
from linops.elementary.shape import Reshape, Transpose

__all__ = [
    "FFT",
    "Cast",
    "Conj",
    "Convolve",
    "Crop",
    "Diagonal",
    "Flip",
    "Identity",
    "Imag",
    "Interpolate",
    "Matrix",
    "Pad",
    "Real",
    "Reshape",
    "Restriction",
    "Roll",
    "Scatter",
    "SumOver",
    "Transpose",
    "Zero",
]
