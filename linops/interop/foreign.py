"""Linear operators of SciPy and PyLops as operators of ours.

They work on flat NumPy vectors; arrays of other libraries are converted there and back.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from linops import arrays
from linops.arguments import checked, wrong
from linops.arrays import Array
from linops.errors import DTypeError, ShapeError
from linops.linear_operator import LinearOperator
from linops.precision import complex_of, real_of
from linops.space import Space

__all__ = ["Foreign", "from_foreign", "from_pylops", "from_scipy"]


def from_foreign(operator: Any) -> LinearOperator:
    """A SciPy or PyLops operator, whichever it is.

    Anything with `shape`, `dtype`, `matvec` and `rmatvec` serves.
    """
    if hasattr(operator, "dims") and hasattr(operator, "dimsd"):
        return from_pylops(operator)
    return from_scipy(operator)


@checked
def from_scipy(
    operator: Any, domain: Space | None = None, codomain: Space | None = None
) -> LinearOperator:
    """A `scipy.sparse.linalg.LinearOperator`, or what works like one.

    Parameters
    ----------
    operator
        With `shape`, `dtype`, `matvec` and `rmatvec`.
    domain, codomain
        Spaces of its numbers of columns and rows; flat ones of its dtype by default.

    Raises
    ------
    TypeError
        Where its adjoint is not declared; the message names the missing function.
    DTypeError
        Where it has no dtype.
    ShapeError
        Where a space has another size.
    """
    _require(operator, "from_scipy", "a scipy.sparse.linalg.LinearOperator")
    rows, columns = (int(n) for n in operator.shape)
    dtype = _dtype(operator)
    _has_adjoint(operator, rows, dtype)
    domain = Space(columns, dtype) if domain is None else domain
    codomain = Space(rows, dtype) if codomain is None else codomain
    if (codomain.size, domain.size) != (rows, columns):
        raise ShapeError(
            f"{type(operator).__name__} of shape {(rows, columns)} maps {columns} entries to "
            f"{rows}, got the spaces {domain} and {codomain}"
        )
    return Foreign(operator, domain, codomain, type(operator).__name__)


def from_pylops(operator: Any) -> LinearOperator:
    """A PyLops operator; its `dims` and `dimsd` become the spaces.

    One that is linear over the reals only (`clinear=False`) maps real to complex values where
    imaginary input gives nothing and real input complex values (a transform of real signals), else
    complex to complex (`Conj`, `Real`, `Imag` and what is made of them).

    Raises
    ------
    TypeError, DTypeError
        As for `from_scipy`.
    """
    _require(operator, "from_pylops", "a PyLops operator", "dims", "dimsd")
    dtype = _dtype(operator)
    _has_adjoint(operator, int(operator.shape[0]), dtype)
    over_reals = dtype.kind == "c" and not getattr(operator, "clinear", True)
    blind = over_reals and _transforms_real_signals(operator, dtype)
    return Foreign(
        operator,
        Space(tuple(int(n) for n in operator.dims), real_of(dtype) if blind else dtype),
        Space(tuple(int(n) for n in operator.dimsd), dtype),
        type(operator).__name__,
        over_reals,
    )


class Foreign(LinearOperator):
    """What the three functions give: `matvec` and `rmatvec` on flat NumPy vectors."""

    def __init__(
        self,
        operator: Any,
        domain: Space,
        codomain: Space,
        name: str,
        over_reals: bool = False,
    ) -> None:
        tags = ("real_linear",) if over_reals else ()
        super().__init__(domain, codomain, name=name, tags=tags)
        self.operator = operator

    def _apply(self, x: Array) -> Array:
        return _through(self.operator.matvec, x, self.codomain, False)

    def _apply_adjoint(self, y: Array) -> Array:
        # Over the reals the adjoint is one in the real part of the inner product.
        return _through(self.operator.rmatvec, y, self.domain, self.codomain.is_complex)


def _through(function: Any, x: Array, target: Any, real_part: bool) -> Array:
    # PyLops and SciPy may return their argument; a copy keeps what the caller holds apart.
    flat = np.array(arrays.to_numpy(x), copy=True).reshape(-1)
    y = arrays.asarray(function(flat), getattr(function, "__qualname__", "the function"), "result")
    if real_part and y.dtype.kind == "c" and not target.is_complex:
        y = y.real
    if y.dtype.kind == "c" and not target.is_complex:
        return arrays.convert(y.reshape(target.shape), x)  # refused with the operator's name
    return arrays.convert(np.array(y, target.dtype).reshape(target.shape), x)


def _transforms_real_signals(operator: Any, dtype: np.dtype) -> bool:
    """Whether imaginary input is refused, or gives nothing where real input gives complex values.

    One that takes real parts, PyLops' `Real` or what contains it, is for complex input.
    """
    if _takes_real_parts(operator):
        return False
    probe = np.random.default_rng(0).standard_normal(int(operator.shape[1])).astype(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if np.any(np.asarray(operator.matvec(1j * probe))):
                return False
        except (TypeError, ValueError):
            return True
        return bool(np.any(np.imag(np.asarray(operator.matvec(probe)))))


def _takes_real_parts(operator: Any) -> bool:
    if type(operator).__name__ == "Real" and type(operator).__module__.startswith("pylops."):
        return True
    for name in ("args", "ops", "Op", "A"):
        part = getattr(operator, name, ())
        parts = part if isinstance(part, (tuple, list)) else (part,)
        if any(hasattr(one, "matvec") and _takes_real_parts(one) for one in parts):
            return True
    return False


def _require(operator: Any, owner: str, wanted: str, *more: str) -> None:
    missing = [n for n in ("shape", "dtype", "matvec", *more) if not hasattr(operator, n)]
    if missing:
        raise wrong(
            owner,
            "operator",
            operator,
            wanted,
            f"it has no {', '.join(missing)}; linops.as_operator takes matrices too",
        )


def _dtype(operator: Any) -> np.dtype:
    if operator.dtype is None:
        raise DTypeError(
            f"{type(operator).__name__} has no dtype; give it one when it is built, dtype=..."
        )
    dtype = np.dtype(operator.dtype)
    if dtype.kind in "biu":
        return np.dtype("float64")
    return dtype if real_of(dtype).itemsize <= 8 else _double(dtype)


def _double(dtype: np.dtype) -> np.dtype:
    return complex_of(np.dtype("float64")) if dtype.kind == "c" else np.dtype("float64")


def _has_adjoint(operator: Any, rows: int, dtype: np.dtype) -> None:
    name = type(operator).__name__
    missing = (
        f"{name} declares no adjoint: give it the function 'rmatvec' (rmatvec=... of "
        "scipy.sparse.linalg.LinearOperator) before it is wrapped"
    )
    if getattr(operator, "rmatvec", None) is None:
        raise TypeError(missing)
    if math.prod(operator.shape) == 0:
        return
    # SciPy has the method always and fails when it is called.
    try:
        operator.rmatvec(np.zeros(rows, dtype))
    except (NotImplementedError, TypeError) as error:
        raise TypeError(f"{missing}; it says: {error}") from error
