"""Operators of other libraries as ours, and ours as theirs; each is imported on first use only."""

from __future__ import annotations

from linops.interop.foreign import from_foreign, from_pylops, from_scipy
from linops.interop.lineax import to_lineax
from linops.interop.pylops import to_pylops
from linops.interop.scipy import to_scipy
from linops.interop.torch_module import to_torch_module

__all__ = [
    "from_foreign",
    "from_pylops",
    "from_scipy",
    "to_lineax",
    "to_pylops",
    "to_scipy",
    "to_torch_module",
]
