"""Elementary operators: the small leaves that compositions are made of."""

from __future__ import annotations

from linops.elementary.diagonal import Diagonal
from linops.elementary.identity import Cast, Identity, Zero
from linops.elementary.matrix import Matrix
from linops.elementary.select import Restriction, Scatter
from linops.elementary.windows import Crop, Pad

__all__ = [
    "Cast",
    "Crop",
    "Diagonal",
    "Identity",
    "Matrix",
    "Pad",
    "Restriction",
    "Scatter",
    "Zero",
]
