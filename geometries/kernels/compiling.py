"""How kernels are compiled: kept on disk, run without the GIL, divisions by zero as NumPy's.

Numba would wrap each function for C as well, which nobody calls; without, a tenth of the time of
compiling is saved. A number that stands as a literal in a call makes Numba compile the callee
for that number alone: `np.int64(1)` keeps to one version.
"""

from __future__ import annotations

from linops.compiled.caching import kept_njit

__all__ = ["compiled", "fused"]

compiled = kept_njit(nogil=True, error_model="numpy", no_cfunc_wrapper=True)
fused = kept_njit(
    nogil=True,
    error_model="numpy",
    no_cfunc_wrapper=True,
    fastmath={"contract"},
)
"""A product and a sum may be one operation."""
