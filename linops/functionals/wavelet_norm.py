"""The sum of moduli of wavelet coefficients: images that few wavelets make up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from linops.elementary.wavelet import Wavelet
from linops.functionals.composed import ComposedFunctional
from linops.functionals.functional import plain, positive_number
from linops.functionals.norms import L1
from linops.precision import real_of
from linops.space import Space

__all__ = ["WaveletL1"]


class WaveletL1(ComposedFunctional):
    """`weight * sum |W x|` of a wavelet transform W.

    Parameters
    ----------
    space
        The domain, real or complex.
    weight
        A number > 0.
    wavelet, axes, level, mode
        As for `Wavelet`.
    means
        Whether the coarsest means count; else only details do.

    Raises
    ------
    ImportError
        Where PyWavelets is not installed: `pip install 'linops[wavelet]'`.

    Notes
    -----
    Where W is unitary (an orthogonal wavelet, mode `"periodization"`, even extents at every level)
    the proximal map is soft thresholding of coefficients, so that `fista` takes it; elsewhere
    solvers take `f.outer` and `f.inner` apart.
    """

    def __init__(
        self,
        space: Space,
        weight: Any = 1.0,
        wavelet: Any = "db2",
        axes: str | int | Sequence[str | int] | None = None,
        *,
        level: int | None = None,
        mode: str = "periodization",
        means: bool = True,
    ) -> None:
        space = plain(space, "WaveletL1")
        W = Wavelet(space, wavelet, axes, level=level, mode=mode)
        weights: Any = positive_number(weight, "weight")
        if not means:
            counted = np.ones(W.codomain.shape, real_of(space.dtype))
            counted[W.means] = 0
            weights = weights * counted
        super().__init__([L1(W.codomain, weights), W])
