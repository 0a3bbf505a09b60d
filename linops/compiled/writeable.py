"""Read-only arrays for compiled code, which would be compiled anew for them.

Numba takes a read-only array for another type, though code that writes nothing needs no second
version. Arrays from JAX, and those that an immutable operator holds, are read-only.
"""

from __future__ import annotations

import numpy as np

__all__ = ["writeable"]


def writeable(array: np.ndarray) -> np.ndarray:
    """The same memory, declared writeable; for arguments that compiled code reads alone."""
    return array if array.flags.writeable else np.asarray(_Memory(array))


class _Memory:
    """Holds an array whose memory NumPy is to take for writeable."""

    def __init__(self, array: np.ndarray) -> None:
        interface = dict(array.__array_interface__)
        interface["data"] = interface["data"][0], False
        self._array = array
        self.__array_interface__ = interface
