"""Parts of complex values: `Real`, `Imag` and `Conj`, linear over the reals.

Their adjoints are those in the real part of the inner product.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.elementary.axes import window_rule
from linops.linear_operator import LinearOperator
from linops.precision import real_of
from linops.space import Space

__all__ = ["Conj", "Imag", "Real"]


class _Part(LinearOperator):
    batched = True
    blockwise = True
    _exact: ClassVar[bool] = True

    def __init__(self, space: Space) -> None:
        super().__init__(space, space.with_dtype(real_of(space.dtype)), window_rule(space, ()))


class Real(_Part):
    """The real parts; of a real space the identity.

    Parameters
    ----------
    space
        The domain; the codomain is the real space of the same precision.
    """

    def _apply(self, x: Array) -> Array:
        return arrays.namespace(x).real(x) + 0 if self.domain.is_complex else x + 0

    def _apply_adjoint(self, y: Array) -> Array:
        return arrays.cast(y, np.dtype(self.domain.dtype)) + 0


class Imag(_Part):
    """The imaginary parts; of a real space zero.

    Parameters
    ----------
    space
        The domain; the codomain is the real space of the same precision.
    """

    def _apply(self, x: Array) -> Array:
        return arrays.namespace(x).imag(x) + 0 if self.domain.is_complex else 0 * x

    def _apply_adjoint(self, y: Array) -> Array:
        return arrays.cast(y, np.dtype(self.domain.dtype)) * (1j if self.domain.is_complex else 0)


class Conj(LinearOperator):
    """The conjugate values; of a real space the identity.

    Parameters
    ----------
    space
        Domain and codomain.
    """

    batched = True
    blockwise = True
    _exact: ClassVar[bool] = True

    def __init__(self, space: Space) -> None:
        tags = ("real_linear",) if space.is_complex else ("self_adjoint", "unitary")
        super().__init__(space, space, window_rule(space, ()), tags=tags)

    def _apply(self, x: Array) -> Array:
        return arrays.conj(x) + 0

    def _apply_adjoint(self, y: Array) -> Array:
        return arrays.conj(y) + 0

    def _known_norm(self) -> float:
        return 1.0
