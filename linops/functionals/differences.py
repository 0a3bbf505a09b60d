"""What functionals of differences share: their surrogate operator, and when to run compiled.

A functional of differences has weights that depend on the point x and a form
`S(x) v = sum over pairs of weight(x) * (v_s - v_r)`, so that `S(x) x` is its gradient. Here
are the operator S(x), and the bridge to the compiled passes of `passes`.
"""

from __future__ import annotations

import functools
from typing import Any, Protocol

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.operator import LinearOperator
from linops.space import Space

__all__ = ["DifferenceSurrogate", "bands", "compilable", "narrow_pair", "passes", "volume"]


class _Differences(Protocol):
    domain: Space

    def _form(self, x: Array, v: Array) -> Array: ...

    def _form_diagonal(self, x: Array) -> Array: ...


class DifferenceSurrogate(LinearOperator):
    """`S(x)` of a functional of differences: self-adjoint, positive, constants in its kernel.

    Parameters
    ----------
    functional
        Where the weights come from.
    x
        The point, of the functional's domain, without batch axes.
    """

    def __init__(self, functional: _Differences, x: Array) -> None:
        space = functional.domain
        super().__init__(space, space, tags=("self_adjoint", "psd"))
        self.functional = functional
        self.point = arrays.snapshot(x)

    def _apply(self, v: Array) -> Array:
        return self.functional._form(self._near(v), v)

    def _apply_adjoint(self, v: Array) -> Array:
        return self._apply(v)

    def _diagonal(self) -> Array:
        return self.functional._form_diagonal(self.point)

    def _near(self, v: Array) -> Array:
        cache = self.__dict__.setdefault("_cache_resident", {})
        return arrays.resident(cache, "point", self.point, v)


def compilable(space: Space, *elements: Array) -> bool:
    """Whether the compiled passes serve these elements: plain memory, 1 to 3 axes, real."""
    if not 1 <= space.ndim <= 3 or space.dtype not in (np.float32, np.float64):
        return False
    return all(
        x.ndim == space.ndim
        and (
            type(x) is np.ndarray
            or (arrays.is_torch(x) and x.device.type == "cpu" and not arrays.requires_gradient(x))
        )
        for x in elements
    )


def volume(x: Array) -> np.ndarray:
    """`x` as a C-contiguous NumPy volume of three axes; a view where it is one already."""
    host = np.ascontiguousarray(arrays.to_numpy(x))
    return host.reshape((1,) * (3 - host.ndim) + host.shape)


def bands(shape: tuple[int, ...]) -> tuple[int, ...]:
    """`shape` with ones in front, to three axes."""
    return (1,) * (3 - len(shape)) + shape


def narrow_pair(x: Array, axis: int) -> tuple[Array, Array]:
    """The planes that have a following neighbour along a negative `axis`, and those neighbours."""
    n = x.shape[axis]
    return arrays.narrow(x, axis, 0, n - 1), arrays.narrow(x, axis, 1, n)


@functools.cache
def passes() -> Any:
    """The module of compiled passes; Numba is imported here, on first use."""
    from linops.functionals import passes as module

    return module
