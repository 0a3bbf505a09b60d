"""Precision of an operator's arithmetic, and which precision a composition has.

`"fast"` is float32 data with fast-math kernels, `"float32"` the same without fast-math,
`"float64"` double throughout. What a kernel does with it is the kernel's business.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import numpy as np

__all__ = ["Precision", "complex_of", "real_of"]


class Precision(StrEnum):
    """One of `"fast"`, `"float32"`, `"float64"`; equal to its name as a string."""

    FAST = "fast"
    FLOAT32 = "float32"
    FLOAT64 = "float64"

    @property
    def dtype(self) -> np.dtype:
        """The real dtype of results."""
        return np.dtype("float64" if self is Precision.FLOAT64 else "float32")

    @classmethod
    def of(cls, value: str | Precision) -> Precision:
        """The precision of that name.

        Raises
        ------
        ValueError
            For anything but the three names.
        """
        if isinstance(value, str):
            for member in cls:
                if member.value == value:
                    return member
        names = ", ".join(repr(member.value) for member in cls)
        raise ValueError(f"precision is {value!r}; it is one of {names}")

    @classmethod
    def of_dtype(cls, dtype: np.dtype) -> Precision:
        """The precision that operators on spaces of this dtype have by default."""
        return cls.FLOAT64 if real_of(dtype).itemsize >= 8 else cls.FLOAT32

    @classmethod
    def coarsest(cls, precisions: Iterable[Precision]) -> Precision:
        """The precision of a composition: that of its coarsest part."""
        order = list(cls)
        return order[min(order.index(precision) for precision in precisions)]


def real_of(dtype: np.dtype) -> np.dtype:
    """The real dtype of the same precision: float32 for complex64."""
    return np.empty(0, dtype).real.dtype


def complex_of(dtype: np.dtype) -> np.dtype:
    """The complex dtype of the same precision: complex64 for float32."""
    return np.dtype("complex128" if real_of(dtype).itemsize >= 8 else "complex64")
