"""One compiled kernel for arrays of several namespaces in CPU memory.

A compiled leaf has two functions on NumPy arrays, batch axes in front, that return fresh arrays:

    _forward_host(x), _adjoint_host(y)

and applies itself by `apply_on_host`. NumPy arrays and torch CPU tensors are handed over on shared
memory; derivatives in torch follow from the pair. JAX calls the kernel through XLA
(`linops/compiled/xla.py`), in jit too. Where the leaf sets `_host_out`, the functions take `out`,
an array to write the result into; where it sets `_host_orders`, arrays come and go in that order
of axes in memory.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from linops import arrays
from linops.arrays import Array
from linops.errors import DTypeError
from linops.structure import leaves

__all__ = ["apply_on_host"]


def apply_on_host(operator: Any, x: Array, adjoint: bool = False) -> Array:
    """`operator @ x`, or its adjoint, in the namespace of `x`.

    Parameters
    ----------
    operator
        A compiled leaf between plain spaces.
    x
        An element of its domain (of its codomain where `adjoint`), batch axes in front.
    adjoint
        Whether to run `_adjoint_host`.

    Raises
    ------
    RuntimeError
        For an array on another device than the CPU, which this code cannot reach.
    DTypeError
        Where an array of the operator requires a gradient: compiled code has none in them.
    """
    forward, backward = operator._forward_host, operator._adjoint_host
    if adjoint:
        forward, backward = backward, forward
    if arrays.is_numpy(x):
        return forward(x)
    if arrays.is_torch(x):
        return _on_torch(operator, x, forward, backward)
    if arrays.is_jax(x):
        from linops.compiled import xla

        return xla.apply(operator, x, adjoint)
    return arrays.convert(forward(arrays.to_numpy(x)), x)


def _on_torch(operator: Any, x: Any, forward: Any, backward: Any) -> Any:
    from linops.transforms.torch_function import apply_pair, recording

    if x.device.type != "cpu":
        raise RuntimeError(
            f"{operator.name} runs on the CPU, got a tensor on {x.device}; move it with .cpu()"
        )
    if any(map(arrays.requires_gradient, leaves(operator))):
        raise DTypeError(
            f"{operator.name} is compiled and has no derivative in its own arrays, one of which "
            "requires a gradient; detach() it"
        )
    if not recording(x):
        return _on_tensor(forward, x)
    return apply_pair(
        x, functools.partial(_on_tensor, forward), functools.partial(_on_tensor, backward)
    )


def _on_tensor(kernel: Callable[[Any], Any], x: Any) -> Any:
    return sys.modules["torch"].from_numpy(kernel(arrays.to_numpy(x)))
