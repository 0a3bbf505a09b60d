"""Whether this installation of JAX computes right: the pinned pair, and a probe of its sums.

jax 0.10.2 sums wrongly on the CPU (jax#39103: a fused multiply-and-reduce is off by up to 8e-3, at
sizes above 16384). Nothing here sets an environment variable for the user.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Environment", "admit_jax", "check_environment", "jax_cpu_reduction_error"]

_PIN = "0.10.1"
_WRONG = ("0.10.2",)
_FLAG = "--xla_cpu_experimental_ynn_fusion_type="
_LIMIT = 1e-5


@dataclass(frozen=True)
class Environment:
    """What `check_environment` found.

    Attributes
    ----------
    jax, jaxlib
        The versions that are installed; None for none.
    reduction_error
        Relative error of a fused sum on the CPU, about 1e-7 where it is right; None without JAX.
    problems
        One sentence for each thing that is wrong; empty where nothing is.
    """

    jax: str | None
    jaxlib: str | None
    reduction_error: float | None
    problems: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"jax {self.jax}, jaxlib {self.jaxlib}"]
        if self.reduction_error is not None:
            lines.append(f"error of a fused sum on the CPU: {self.reduction_error:.1e}")
        return "\n".join([*lines, *(self.problems or ("no problem found",))])


def check_environment() -> Environment:
    """The versions of JAX and a second's probe of its sums on the CPU; raises nothing."""
    found = _version("jax"), _version("jaxlib")
    if None in found:
        return Environment(*found, None, ("JAX is not installed: pip install 'linops[jax]'",))
    problems = []
    if found[0] != found[1]:
        problems.append(f"jax {found[0]} and jaxlib {found[1]} differ: install both as {_PIN}")
    error = jax_cpu_reduction_error()
    if error > _LIMIT:
        problems.append(_advice(f"sums of jax {found[0]} on this CPU are off by {error:.1e}"))
    return Environment(*found, error, tuple(problems))


def jax_cpu_reduction_error() -> float:
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


def admit_jax(devices: Sequence[Any]) -> None:
    """Raise before the first program on CPU devices of a JAX that sums wrongly.

    Raises
    ------
    RuntimeError
        Naming the pin and the flag; with LINOPS_ALLOW_UNSAFE_JAX=1 it is a warning.
    """
    if any(device.platform == "cpu" for device in devices):
        fault = _fault(_version("jax"), os.environ.get("XLA_FLAGS", ""))
        if fault is None:
            return
        if os.environ.get("LINOPS_ALLOW_UNSAFE_JAX") != "1":
            raise RuntimeError(fault)
        warnings.warn(fault, RuntimeWarning, stacklevel=2)


@functools.cache
def _fault(installed: str | None, flags: str) -> str | None:
    if installed == _PIN or _FLAG in flags.split():
        return None
    if installed in _WRONG:
        return _advice(f"jax {installed} sums wrongly on the CPU")
    error = jax_cpu_reduction_error()
    if error <= _LIMIT:
        return None
    return _advice(f"sums of jax {installed} on this CPU are off by {error:.1e}")


def _advice(what: str) -> str:
    return (
        f"{what}: install jax=={_PIN} and jaxlib=={_PIN}, or start with XLA_FLAGS={_FLAG} (empty "
        "value); LINOPS_ALLOW_UNSAFE_JAX=1 goes on all the same"
    )


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None
