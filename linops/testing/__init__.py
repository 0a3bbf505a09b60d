"""Checks that any operator and functional passes, a user's own included.

`check_operator(A)` and `check_functional(f)` run them all.
"""

from __future__ import annotations

from linops.testing.checks import CheckReport, check_functional, check_operator
from linops.testing.dot import dot_test
from linops.testing.taylor import taylor_test

__all__ = ["CheckReport", "check_functional", "check_operator", "dot_test", "taylor_test"]
