"""Placement, planner and executors: the wing's room in the house, and nothing else yet.

What it will hold: `plan(A).explain()`, `plan(A).lower()` and the executors that run an operator's
blocks on several devices. They will know rules and blocks (`linops.rule`, `A.block`) and no
geometry. Until then an operator runs where its arrays are, its tiles spread over the thread pool
of `linops.compiled.pool`.
"""

from __future__ import annotations

__all__: list[str] = []
