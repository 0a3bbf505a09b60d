"""Operators of ours for PyLops: its solvers, its dot test, its own arithmetic around them.

The other direction, `from_pylops`, is in `linops/interop/foreign.py`.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from linops import arrays
from linops.arguments import checked
from linops.arrays import Array
from linops.errors import DTypeError
from linops.linear_operator import LinearOperator
from linops.precision import complex_of, real_of

__all__ = ["to_pylops"]


@checked
def to_pylops(A: LinearOperator) -> Any:
    """`A` as a `pylops.LinearOperator` with its `dims`, `dimsd`, `dtype` and `clinear`.

    Parameters
    ----------
    A
        Spaces become `dims` and `dimsd`; an element of a product space is one flat vector,
        member after member. An operator that is linear over the reals only has `clinear=False`.

    Returns
    -------
    pylops.LinearOperator
        It takes flat NumPy vectors, and JAX vectors where PyLops does; results have the dtype of
        `A`. It pickles where `A` does.

    Raises
    ------
    ImportError
        Where PyLops is not installed.
    DTypeError
        When it is applied to a torch tensor: PyLops' solvers do not serve them, ours do.
    """
    return _adapter()(A)


@functools.cache
def _adapter() -> Any:
    import pylops

    class AsPyLops(pylops.LinearOperator):  # type: ignore[misc]
        """An operator of linops; `operator` is the operator itself."""

        def __init__(self, A: LinearOperator) -> None:
            single = len(A.domain.members) == len(A.codomain.members) == 1
            super().__init__(
                dtype=A.dtype,
                dims=A.domain.shape if single else (A.domain.size,),
                dimsd=A.codomain.shape if single else (A.codomain.size,),
                clinear="real_linear" not in A.tags,
                name=A.name[:1] or None,
            )
            self.operator = A

        def _matvec(self, x: Array) -> Array:
            return _apply(self.operator, x)

        def _rmatvec(self, y: Array) -> Array:
            return _apply(self.operator.H, y)

        def __reduce__(self) -> Any:
            return to_pylops, (self.operator,)

    return AsPyLops


def _apply(A: LinearOperator, v: Array) -> Array:
    if arrays.is_torch(v):
        raise DTypeError(
            f"{A.name}: PyLops does not serve torch tensors; solvers.cgls of linops runs on them, "
            "or convert to NumPy first"
        )
    space = A.domain
    if arrays.dtype_of(v).kind == "c" and not space.is_complex and "real_linear" in A.tags:
        # What PyLops does where `clinear` is False: complex storage of real values.
        v = arrays.namespace(v).real(v)
    y = A(space.unravel(_in_precision(v, space.dtype)))
    return A.codomain.ravel(y)


def _in_precision(v: Array, dtype: np.dtype) -> Array:
    """`v` as precise as `dtype`: foreign solvers work in float64, which is no one's mistake."""
    own = arrays.dtype_of(v)
    if own.kind not in "fc" or real_of(own).itemsize <= real_of(dtype).itemsize:
        return v
    return arrays.cast(v, complex_of(dtype) if own.kind == "c" else real_of(dtype))
