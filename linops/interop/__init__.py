"""Operators of other libraries as ours: SciPy's and PyLops'."""

from __future__ import annotations

from linops.interop.foreign import from_foreign, from_pylops, from_scipy

__all__ = ["from_foreign", "from_pylops", "from_scipy"]
