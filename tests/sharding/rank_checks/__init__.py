"""Checks that run on every rank of a process group; `rank_nursery.py` starts the ranks.

Each check gets the rank and the number of ranks, and compares with the operator that is not
planned, with dense matrices, or with closed forms. All ranks call alike; a rank whose check fails
writes that down and ends, which ends the others.
"""

from rank_checks import (  # noqa: F401
    derivatives,
    drawn,
    functionals,
    iterations,
    movements,
    operators,
    tiles,
    together,
)
from rank_checks.register import CHECKS

__all__ = ["CHECKS"]
