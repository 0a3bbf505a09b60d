"""Operators of ours for `scipy.sparse.linalg`: its solvers, eigenvalues, singular values.

The other direction, `from_scipy`, is in `linops/interop/foreign.py`.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from linops import arrays
from linops.arguments import checked
from linops.linear_operator import LinearOperator
from linops.precision import complex_of, real_of

__all__ = ["to_scipy"]


@checked
def to_scipy(A: LinearOperator) -> Any:
    """`A` as a `scipy.sparse.linalg.LinearOperator`.

    Parameters
    ----------
    A
        Its elements become flat vectors in C order, those of a product space member after member.
        The columns of a matrix `(N, K)` are one batch: a single apply.

    Returns
    -------
    scipy.sparse.linalg.LinearOperator
        Of shape `A.shape` and dtype `A.dtype`, with `matvec`, `rmatvec`, `matmat`, `rmatmat` on
        NumPy arrays. It pickles where `A` does.

    Raises
    ------
    ImportError
        Where SciPy is not installed.

    Notes
    -----
    `lsqr`, `lsmr`, `cg`, `gmres`, `svds` and `eigsh` also take `A` itself; `lobpcg`, which
    multiplies by matrices, takes this.
    """
    return _adapter()(A)


@functools.cache
def _adapter() -> Any:
    import scipy.sparse.linalg as linalg

    class AsSciPy(linalg.LinearOperator):  # type: ignore[misc]
        """An operator of linops; `operator` is the operator itself."""

        def __init__(self, A: LinearOperator) -> None:
            super().__init__(A.dtype, A.shape)
            self.operator = A

        def _matvec(self, x: np.ndarray) -> np.ndarray:
            return _columns(self.operator, x.reshape(-1, 1)).reshape(-1)

        def _rmatvec(self, y: np.ndarray) -> np.ndarray:
            return _columns(self.operator.H, y.reshape(-1, 1)).reshape(-1)

        def _matmat(self, X: np.ndarray) -> np.ndarray:
            return _columns(self.operator, X)

        def _rmatmat(self, Y: np.ndarray) -> np.ndarray:
            return _columns(self.operator.H, Y)

        def __reduce__(self) -> Any:
            return to_scipy, (self.operator,)

    return AsSciPy


def _columns(A: LinearOperator, X: np.ndarray) -> np.ndarray:
    """`A` on every column, shape (N, K) to (M, K)."""
    X = np.asarray(X)
    if X.dtype.kind in "fc" and real_of(X.dtype).itemsize > real_of(A.domain.dtype).itemsize:
        # SciPy's solvers hold vectors in float64; that is no one's mistake.
        dtype = A.domain.dtype
        X = X.astype(complex_of(dtype) if X.dtype.kind == "c" else real_of(dtype))
    single = X.shape[1] == 1
    rows = X[:, 0] if single else np.ascontiguousarray(X.T)
    y = arrays.to_numpy(A.codomain.ravel(A(A.domain.unravel(rows))))
    return y.reshape(-1, 1) if single else y.T
