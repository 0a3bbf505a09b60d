"""Whether the installed JAX sums right on the CPU: which versions do not, and a probe.

jax 0.10.2 sums wrongly there (jax#39103: a fused multiply-and-reduce is off by up to 8e-3, at sizes
above 16384). Whoever uses JAX arrays on the CPU with such a version is told once. Nothing here sets
an environment variable for the user.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from typing import Any

import numpy as np

__all__ = ["ALLOW", "FLAG", "LIMIT", "TESTED", "WRONG", "advice", "reduction_error", "warn_once"]

TESTED = "0.10.1"
WRONG = ("0.10.2",)
FLAG = "--xla_cpu_experimental_ynn_fusion_type="
LIMIT = 1e-5
ALLOW = "LINOPS_ALLOW_UNSAFE_JAX"


@functools.cache
def warn_once() -> None:
    """Warn where sums of JAX on the CPU are wrong, unless the user has said that he knows."""
    if os.environ.get(ALLOW) == "1" or FLAG in os.environ.get("XLA_FLAGS", "").split():
        return
    jax = sys.modules["jax"]
    if jax.__version__ == TESTED or jax.default_backend() != "cpu":
        return
    if jax.__version__ in WRONG:
        fault = f"jax {jax.__version__} sums wrongly on the CPU"
    else:
        with jax.ensure_compile_time_eval():  # the first use may be under a trace
            error = reduction_error()
        if error <= LIMIT:
            return
        fault = f"sums of jax {jax.__version__} on this CPU are off by {error:.1e}"
    warnings.warn(advice(fault), RuntimeWarning, stacklevel=_outside())


def reduction_error() -> float:
    """Worst error of a fused square-and-sum, relative to the largest value.

    0 to 1e-7 where sums are right, 8e-3 where they are not. It depends on how the work falls on
    threads, hence several sizes.
    """
    import jax

    jnp = jax.numpy
    worst = 0.0
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        for n in (16385, 32769, 40000):
            i = jnp.arange(n, dtype=float)
            x, m = jnp.stack((i, 0 * i, 0 * i), 1), jnp.eye(3, dtype=i.dtype)

            def squares(x: Any, m: Any = m) -> Any:
                return jax.vmap(lambda row: jnp.sum((m @ row) ** 2))(x)

            right = np.asarray(x, np.float64)[:, 0] ** 2
            got = np.asarray(jax.jit(squares)(x), np.float64)
            worst = max(worst, float(abs(got - right).max() / right.max()))
    return worst


def advice(what: str) -> str:
    """The fault, and what to do about it."""
    return (
        f"{what}: install jax=={TESTED} and jaxlib=={TESTED}, or start with XLA_FLAGS={FLAG} "
        f"(empty value); {ALLOW}=1 goes on all the same"
    )


def _outside() -> int:
    """The level of the first caller that is none of the library's."""
    level, frame = 2, sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_ROOMS):
        level, frame = level + 1, frame.f_back
    return level


_ROOMS = ("linops", "geometries", "sharding", "solvers", "functools", "contextlib")
