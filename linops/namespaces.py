"""Namespaces: NumPy, JAX and torch told apart, dtypes in NumPy's terms, conversion, new arrays.

What others use of it is in `linops.arrays`. JAX and torch are never imported, only recognised.
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any

import array_api_compat
import numpy as np

from linops import jax_sums
from linops.errors import DTypeError

__all__ = [
    "Array",
    "asarray",
    "dtype_of",
    "has_float64",
    "is_array",
    "is_concrete",
    "is_distributed",
    "is_first_process",
    "is_jax",
    "is_masked",
    "is_numpy",
    "is_readable",
    "is_torch",
    "is_traced",
    "masked_error",
    "namespace",
    "native_order",
    "on_host",
    "requires_gradient",
    "said_by_all",
    "tell_all",
    "trainable",
]

Array = Any
"""An array of any array-API namespace; no common type exists to name."""


def is_numpy(x: object) -> bool:
    """Whether `x` is a NumPy array (0-d scalars of NumPy included)."""
    return isinstance(x, (np.ndarray, np.generic))


def is_torch(x: object) -> bool:
    """Whether `x` is a torch tensor; torch is not imported."""
    return "torch" in sys.modules and array_api_compat.is_torch_array(x)


def is_jax(x: object) -> bool:
    """Whether `x` is a JAX array or tracer; JAX is not imported."""
    return "jax" in sys.modules and array_api_compat.is_jax_array(x)


def is_array(x: object) -> bool:
    """Whether `x` is an array of some array-API namespace."""
    return (
        isinstance(x, np.ndarray)
        or hasattr(type(x), "__array_namespace__")
        or is_torch(x)
        or is_jax(x)
    )


def is_masked(x: object) -> bool:
    """Whether `x` is an array of `numpy.ma`, or a list of them, whose masks NumPy would drop."""
    if isinstance(x, np.ndarray):
        return type(x) is not np.ndarray and hasattr(x, "mask") and hasattr(x, "filled")
    if isinstance(x, (list, tuple)):
        return any(is_masked(part) for part in x if isinstance(part, np.ndarray))
    return False


def masked_error(owner: str, name: str) -> DTypeError:
    """The error for a masked array given to `owner` as its argument `name`."""
    return DTypeError(
        f"{owner} takes no masked array as {name}: nothing here reads the mask; fill it with "
        f"{name}.filled(value), and give masked measurements weight 0 where weights are taken"
    )


def asarray(x: Any, owner: str, name: str) -> Array:
    """`x` as an array of its namespace in native byte order, NumPy's for numbers and lists.

    Raises
    ------
    DTypeError
        For masked arrays, and for what holds no numbers, naming `owner` and the argument.
    """
    if type(x) is np.ndarray and x.dtype.isnative and x.dtype.kind in "biufc":
        return x
    if is_masked(x):
        raise masked_error(owner, name)
    if is_array(x) and not isinstance(x, np.ndarray):
        return x
    try:
        found = np.asarray(x)
    except ValueError as error:
        raise DTypeError(f"{owner} takes an array as {name}, got {x!r:.60}: {error}") from None
    if found.dtype.kind not in "biufc" and found.dtype.name != "bfloat16":
        came = type(x).__name__ if found.dtype.kind == "O" else f"an array of dtype {found.dtype}"
        raise DTypeError(f"{owner} takes an array of numbers as {name}, got {came}")
    return native_order(found)


def is_distributed(x: object) -> bool:
    """Whether `x` is a DTensor, of which this process holds a part; torch is not imported."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def is_first_process(x: object) -> bool:
    """Whether this process is the first of those that `x` is spread over, or the only one."""
    if is_distributed(x):
        return bool(sys.modules["torch.distributed"].get_rank() == 0)
    return not is_jax(x) or bool(sys.modules["jax"].process_index() == 0)


def tell_all(x: object, word: object) -> list[str]:
    """What each process that `x` is spread over says, empty for None; ranks of torch meet here."""
    return said_by_all(x, "" if word is None else f"{type(word).__name__}: {word}")


def said_by_all(x: object, word: str) -> list[str]:
    """The word of each process that `x` is spread over, in order; ranks of torch meet here."""
    if not is_distributed(x):
        return [word]
    dist = sys.modules["torch.distributed"]
    table: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(table, word)
    return table


def is_traced(x: object) -> bool:
    """Whether `x` is a JAX tracer, whose values are not known."""
    return is_jax(x) and isinstance(x, sys.modules["jax"].core.Tracer)


def is_concrete(x: object) -> bool:
    """Whether the values of `x` can be read now: not under a trace of JAX, nor mapped over."""
    if is_torch(x):
        functorch = sys.modules["torch"]._C._functorch
        while functorch.is_functorch_wrapped_tensor(x):
            if functorch.is_batchedtensor(x):
                return False
            x = functorch.get_unwrapped(x)
        return True
    return not is_traced(x)


def is_readable(x: object) -> bool:
    """Whether this process can read all of `x`: no tracer, and no part with another process."""
    return is_concrete(x) and bool(getattr(x, "is_fully_addressable", True))


def requires_gradient(x: object) -> bool:
    """Whether a derivative is being recorded through `x` (JAX tracer or torch leaf)."""
    return is_traced(x) or (is_torch(x) and bool(getattr(x, "requires_grad", False)))


def trainable(x: object) -> bool:
    """Whether an optimiser may change `x` in place: a Parameter of torch, or a tensor through
    which it records a derivative."""
    if not is_torch(x):
        return False
    return bool(getattr(x, "requires_grad", False)) or isinstance(
        x, sys.modules["torch"].nn.Parameter
    )


def on_host(x: Array) -> bool:
    """Whether `x` lies in CPU memory; a JAX tracer: whether JAX computes there by default."""
    if is_torch(x):
        return bool(x.device.type == "cpu")
    if is_traced(x):
        return bool(sys.modules["jax"].default_backend() == "cpu")
    if is_jax(x):
        return all(device.platform == "cpu" for device in x.devices())
    return is_numpy(x) or not hasattr(x, "__cuda_array_interface__")


def namespace(*arrays: Array) -> Any:
    """The array-API namespace of the arrays.

    Raises
    ------
    DTypeError
        For no array at all, for lists, and for arrays of two libraries.
    """
    first = arrays[0]
    if type(first) is np.ndarray and all(type(x) is np.ndarray for x in arrays[1:]):
        return _numpy_namespace()
    try:
        xp = array_api_compat.array_namespace(*arrays)
    except TypeError as error:
        kinds = ", ".join(sorted({f"{type(x).__module__}.{type(x).__name__}" for x in arrays}))
        raise DTypeError(
            f"expected arrays of one namespace (NumPy, JAX, torch, ...), got {kinds}; "
            "convert them first, e.g. with numpy.asarray"
        ) from error
    if xp.__name__ == "jax.numpy":
        jax_sums.warn_once()
    return xp


def has_float64(x: Array) -> bool:
    """Whether the namespace and device of `x` have float64 (JAX without x64, MPS: no)."""
    if is_jax(x):
        return bool(sys.modules["jax"].config.jax_enable_x64)
    return not (is_torch(x) and x.device.type == "mps")


def dtype_of(x: Array) -> np.dtype:
    """The dtype of `x` as a NumPy dtype.

    bfloat16, which NumPy lacks, is reported as float16: another half precision. Big-endian
    numbers are reported as what they become on entry, in the machine's own order.
    """
    dtype = x.dtype
    if not isinstance(dtype, np.dtype):
        found = _numpy_dtypes.get(dtype)
        if found is None:
            name = str(dtype).rsplit(".", 1)[-1]
            found = np.dtype("float16" if name == "bfloat16" else name)
            _numpy_dtypes[dtype] = found
        return found
    if dtype.kind == "V" and dtype.name == "bfloat16":
        return np.dtype("float16")
    return dtype if dtype.isnative else np.dtype(dtype.name)


_numpy_dtypes: dict[Any, np.dtype] = {}


def native_order(x: np.ndarray) -> np.ndarray:
    return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="), copy=False)


@functools.cache
def _numpy_namespace() -> Any:
    # Imported on first use: it pulls in a third of a NumPy import again.
    return importlib.import_module("array_api_compat.numpy")
