"""Units of angles as files spell them, in radians."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from linops.errors import GeometryError

__all__ = ["radians_in"]

_UNITS = {
    1.0: "rad rads radian radians",
    1e-3: "mrad mrads millirad millirads milliradian milliradians",
    math.pi / 180: "° deg degs degree degrees",
    math.pi / 180e3: "mdeg millideg millidegree millidegrees",
    math.pi / 200: "gon gons grad grads gradian gradians grade grades",
    math.pi / 10800: "arcmin arcmins arcminute arcminutes",
    math.pi / 648000: "arcsec arcsecs arcsecond arcseconds",
    2 * math.pi: "turn turns rev revs revolution revolutions",
}
_RADIANS = {name: value for value, names in _UNITS.items() for name in names.split()}


def radians_in(units: Any, where: str) -> float:
    """Radians in one of the units that a file states.

    Parameters
    ----------
    units
        Text or bytes, alone or as the one entry of an array; case, space and brackets around it
        do not matter.
    where
        What they are units of, for the message.

    Raises
    ------
    GeometryError
        For units that are unknown, and for more than one.
    """
    value = units
    if isinstance(value, (np.ndarray, list, tuple)):
        entries = np.asarray(value, object).reshape(-1).tolist()
        value = entries[0] if len(entries) == 1 else units
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    name = str(value).strip("\0 \t\r\n\"'[](){}.").lower() if isinstance(value, str) else None
    if name not in _RADIANS:
        raise GeometryError(
            f"{where} has the units {units!r}; known are rad, mrad, deg, mdeg, gon, arcmin, arcsec "
            "and turn: convert the angles yourself"
        )
    return _RADIANS[name]
