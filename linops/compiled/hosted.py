"""One compiled kernel for arrays of several namespaces in CPU memory.

Kernels take and give NumPy arrays. NumPy and torch CPU tensors are handed over on shared memory,
JAX arrays are read in place and their results copied once. Derivatives in torch follow from the
declared pair; inside a JAX trace a compiled kernel cannot run, and the error says so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.errors import DTypeError

__all__ = ["hosted"]

Kernel = Callable[[np.ndarray], np.ndarray]


def hosted(x: Array, forward: Kernel, adjoint: Kernel, owner: str) -> Array:
    """`forward(x)` in the namespace of `x`.

    Parameters
    ----------
    x
        The operand, batch axes in front.
    forward, adjoint
        The linear map and its adjoint on NumPy arrays; results are fresh arrays.
    owner
        Name for messages.

    Raises
    ------
    DTypeError
        For a traced JAX array, and for an array that is not in CPU memory.
    """
    if arrays.is_numpy(x):
        return forward(x)
    if arrays.is_torch(x):
        from linops.transforms.torch_function import apply_pair

        if x.device.type != "cpu":
            raise DTypeError(
                f"{owner} runs on the CPU, got a tensor on {x.device}; move it with .cpu()"
            )
        return apply_pair(x, _on_tensors(forward), _on_tensors(adjoint))
    if arrays.is_traced(x):
        raise DTypeError(
            f"{owner} is compiled for the CPU and cannot run inside a JAX trace yet; call it "
            "outside jit, grad and vmap"
        )
    return arrays.convert(forward(arrays.to_numpy(x)), x)


def _on_tensors(kernel: Kernel) -> Callable[[Any], Any]:
    def run(x: Any) -> Any:
        torch = sys.modules["torch"]
        return torch.from_numpy(kernel(arrays.to_numpy(x)))

    return run
