"""Whether this installation of JAX computes right: its pair of versions, and a probe of its sums.

The probe and the versions that fail it are in `linops/jax_sums.py`.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from linops.jax_sums import ALLOW, FLAG, LIMIT, TESTED, WRONG, advice
from linops.jax_sums import reduction_error as jax_cpu_reduction_error

__all__ = ["Environment", "admit_jax", "check_environment", "jax_cpu_reduction_error"]


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
        problems.append(f"jax {found[0]} and jaxlib {found[1]} differ: install both as {TESTED}")
    error = jax_cpu_reduction_error()
    if error > LIMIT:
        problems.append(advice(f"sums of jax {found[0]} on this CPU are off by {error:.1e}"))
    return Environment(*found, error, tuple(problems))


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
        if os.environ.get(ALLOW) != "1":
            raise RuntimeError(fault)
        warnings.warn(fault, RuntimeWarning, stacklevel=2)


@functools.cache
def _fault(installed: str | None, flags: str) -> str | None:
    if installed == TESTED or FLAG in flags.split():
        return None
    if installed in WRONG:
        return advice(f"jax {installed} sums wrongly on the CPU")
    error = jax_cpu_reduction_error()
    if error <= LIMIT:
        return None
    return advice(f"sums of jax {installed} on this CPU are off by {error:.1e}")


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None
