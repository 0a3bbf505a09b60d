"""Operators of other libraries: SciPy's and PyLops' as ours. Both are imported on first use only."""

from __future__ import annotations

from linops.interop.foreign import from_foreign, from_pylops, from_scipy

__all__ = ["from_foreign", "from_pylops", "from_scipy"]
