"""Pallas, where it is: the probe, block shapes, and what compilers are told.

Kernels themselves stand with the operators that they serve. Importing this imports no JAX.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["PallasOptions", "find_pallas", "find_triton", "normalize_block_shape"]

_DEFAULT_BLOCKS = {1: (128,), 2: (16, 16), 3: (4, 4, 8)}


def find_pallas() -> Any:
    """The module `jax.experimental.pallas`; None where it cannot be imported."""
    return _found("jax.experimental.pallas")


def find_triton() -> Any:
    """Its Triton back end; None where it cannot be imported."""
    return _found("jax.experimental.pallas.triton")


def _found(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def normalize_block_shape(
    block_shape: int | str | Sequence[int] | None, ndim: int
) -> tuple[int, int, int]:
    """The extents of a block along three axes, the contiguous one last; 1 where there is no axis.

    Parameters
    ----------
    block_shape
        None, `""` or `()`: the default of that number of axes, `(128,)`, `(16, 16)` or
        `(4, 4, 8)`. A number, a list or a tuple, or text such as `"8,4"`. Missing entries are 1,
        entries beyond the third are left out.
    ndim
        Axes of the grid, 1 to 3.

    Raises
    ------
    ValueError
        For entries below 1, and text that is no number.

    >>> normalize_block_shape("8,4", 3), normalize_block_shape(8, 3), normalize_block_shape(None, 2)
    ((8, 4, 1), (8, 1, 1), (16, 16, 1))
    """
    if not 1 <= ndim <= 3:
        raise ValueError(f"block_shape: blocks have 1 to 3 axes, the grid has {ndim}")
    entries: list[Any]
    if block_shape is None or (isinstance(block_shape, (str, tuple, list)) and not block_shape):
        entries = list(_DEFAULT_BLOCKS[ndim])
    elif isinstance(block_shape, str):
        entries = [part for part in block_shape.split(",") if part.strip()]
    elif hasattr(block_shape, "__index__"):
        entries = [block_shape]
    else:
        entries = list(block_shape)
    sizes = []
    for entry in entries[:3]:
        try:
            size = int(entry)
        except (TypeError, ValueError):
            size = 0
        if size < 1 or (isinstance(entry, float) and size != entry):
            raise ValueError(
                f"block_shape={block_shape!r}: entries are whole numbers from 1 on, got {entry!r}"
            )
        sizes.append(size)
    active = [*sizes, 1, 1, 1][:ndim]
    return tuple([*active, 1, 1, 1][:3])  # type: ignore[return-value]


@dataclass(frozen=True)
class PallasOptions:
    """How Pallas kernels are compiled.

    Parameters
    ----------
    block_shape
        As `normalize_block_shape` takes it.
    num_warps, num_stages
        For Triton, on NVIDIA devices.
    use_triton
        Whether compiler parameters of Triton are passed; by default where its module imports and
        the device is a GPU.
    interpret
        Run the kernel in JAX's interpreter: the one way on a CPU.
    """

    block_shape: int | str | tuple[int, ...] | None = None
    num_warps: int = 4
    num_stages: int | None = None
    use_triton: bool | None = None
    interpret: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.block_shape, list):
            object.__setattr__(self, "block_shape", tuple(self.block_shape))

    def blocks(self, ndim: int) -> tuple[int, ...]:
        """The extents of a block along the axes of a grid."""
        return normalize_block_shape(self.block_shape, ndim)[:ndim]

    def arguments(self) -> dict[str, Any]:
        """What `pallas_call` is told beside the kernel.

        Raises
        ------
        ValueError
            For compiled kernels on a CPU.
        """
        platform = _platform()
        if platform == "cpu" and not self.interpret:
            raise ValueError(
                "Pallas does not compile for the CPU: pass interpret=True to run its kernels in "
                "JAX's interpreter, or leave the lowering to 'auto'"
            )
        triton = find_triton() if self.use_triton or (self.use_triton is None) else None
        if triton is None or (self.use_triton is None and platform != "gpu"):
            return {"interpret": self.interpret}
        stages = {} if self.num_stages is None else {"num_stages": self.num_stages}
        params = triton.CompilerParams(num_warps=self.num_warps, **stages)
        return {"interpret": self.interpret, "compiler_params": params}


@functools.cache
def _platform() -> str:
    import jax

    return str(jax.default_backend())
