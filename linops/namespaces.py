"""Namespaces: NumPy, JAX and torch told apart, dtypes in NumPy's terms, conversion, new arrays.

What others use of it is in `linops.arrays`. JAX and torch are never imported, only recognised.
"""

from __future__ import annotations

import functools
import importlib
import sys
from types import ModuleType
from typing import Any

import array_api_compat
import numpy as np

from linops import jax_sums
from linops.errors import DTypeError

__all__ = [
    "Array",
    "asarray",
    "cast",
    "combine",
    "constant",
    "convert",
    "copy",
    "dtype_of",
    "everywhere",
    "exemplar",
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
    "item",
    "largest",
    "masked_error",
    "may_share_memory",
    "namespace",
    "on_host",
    "ones",
    "owned",
    "requires_gradient",
    "resident",
    "said_by_all",
    "snapshot",
    "to_numpy",
    "told_to_all",
    "trainable",
    "unify",
    "zeros",
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
    return _native(found)


def is_distributed(x: object) -> bool:
    """Whether `x` is a DTensor, of which this process holds a part; torch is not imported."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def is_first_process(x: object) -> bool:
    """Whether this process is the first of those that `x` is spread over, or the only one."""
    if is_distributed(x):
        return bool(sys.modules["torch.distributed"].get_rank() == 0)
    return not is_jax(x) or bool(sys.modules["jax"].process_index() == 0)


def told_to_all(x: object, word: object) -> list[str]:
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


def cast(x: Array, dtype: np.dtype) -> Array:
    """`x` in another dtype (in NumPy's terms), itself where it has it already.

    Raises
    ------
    DTypeError
        For complex values to real ones, and where the namespace would quietly give less: 64-bit
        numbers in JAX without x64.
    """
    if isinstance(x, np.ndarray):
        if is_masked(x):
            raise masked_error("a cast", "array")
        x = np.asarray(x)  # no subclass, whose rules are others
        if x.dtype.kind == "c" and dtype.kind != "c":
            raise _lossy(x.dtype, dtype)
        return x if x.dtype is dtype else x.astype(dtype, copy=False)
    if dtype.kind != "c" and dtype_of(x).kind == "c":
        raise _lossy(dtype_of(x), dtype)
    xp = namespace(x)
    if is_jax(x):
        _refuse_missing_x64(dtype)
        return x if x.dtype == dtype else x.astype(dtype)
    target = getattr(xp, dtype.name)
    return x if x.dtype == target else xp.astype(x, target)


def unify(*values: Array) -> tuple[Array, ...]:
    """The values as arrays of one namespace and device, float64 where it has that, else float32.

    Numbers, lists and NumPy arrays join the first array of another library; graphs are kept.

    Raises
    ------
    DTypeError
        For arrays of two libraries besides NumPy.
    """
    if any(map(is_masked, values)):
        raise masked_error("a conversion", "array")
    others = [x for x in values if is_array(x) and not is_numpy(x)]
    if not others:
        return tuple(np.asarray(x, np.float64) for x in values)
    namespace(*others)
    like = others[0]
    dtype = np.dtype("float64" if has_float64(like) else "float32")
    return tuple(
        convert(cast(x if is_array(x) else np.asarray(x, np.float64), dtype), like) for x in values
    )


def to_numpy(x: Array) -> np.ndarray:
    """`x` as a NumPy array, sharing memory where the library allows it.

    JAX arrays come back read-only. Tensors on an accelerator are copied to the host, those of
    several processes gathered: all of them call this together.

    Raises
    ------
    DTypeError
        For a JAX tracer: its values do not exist yet.
    """
    if isinstance(x, np.ndarray):
        if is_masked(x):
            raise masked_error("a conversion", "array")
        return x if x.dtype.isnative else _native(x)
    if is_traced(x):
        raise DTypeError(
            "a traced JAX array has no values to hand to NumPy; this step runs compiled host "
            "code: move it out of jit, grad or vmap"
        )
    if is_torch(x):
        torch = sys.modules["torch"]
        if is_distributed(x):
            x = x.detach().full_tensor()
        if not torch._C._functorch.is_functorch_wrapped_tensor(x):
            return np.asarray(x.detach().resolve_conj().resolve_neg().cpu().numpy())
        while torch._C._functorch.is_gradtrackingtensor(x):
            x = torch._C._functorch.get_unwrapped(x)
        with torch._C._DisableFuncTorch():
            return np.asarray(x.detach().resolve_conj().resolve_neg().cpu().numpy())
    if is_jax(x):
        return np.asarray(x)
    try:
        return np.from_dlpack(x)
    except (TypeError, AttributeError, BufferError, RuntimeError):
        return np.asarray(x)


def convert(x: Array, like: Array) -> Array:
    """`x` in the namespace and on the device of `like`; the gateway between libraries.

    NumPy and torch share memory; JAX gets and gives copies wherever a later write could
    reach an array that JAX believes immutable. The dtype is kept.

    Raises
    ------
    DTypeError
        For 64-bit numbers to JAX without x64, and for tracers that change library.
    """
    if type(x) is type(like) and not is_torch(x):
        if is_numpy(x):
            return _native(x)
        if is_jax(x):
            return x
    if is_numpy(like):
        return to_numpy(x)
    if is_torch(like):
        torch = sys.modules["torch"]
        if is_torch(x):
            return x if x.device == like.device else x.to(like.device)
        host = to_numpy(x)
        if any(stride < 0 for stride in host.strides) or not host.flags.writeable or is_jax(x):
            host = host.copy()
        return torch.from_numpy(host).to(like.device)
    if is_jax(like):
        if is_jax(x):
            return x
        host = to_numpy(x)
        _refuse_missing_x64(host.dtype)
        # jnp.array copies: the caller may still write into its own memory.
        return sys.modules["jax"].numpy.array(host, copy=True, device=_jax_device(like))
    xp = namespace(like)
    device = array_api_compat.device(like)
    return xp.asarray(np.array(to_numpy(x)), device=device)


def everywhere(x: Array, like: Array) -> Array:
    """A small array, the same in every process, as an operand beside `like`: a copy with each part.

    NumPy beside JAX stays as it is: JAX sends it from the host to all devices of `like`.
    """
    if is_jax(like):
        return x
    x = convert(x, like)
    if not is_distributed(like):
        return x
    module, mesh = sys.modules["torch.distributed.tensor"], like.device_mesh
    copies = [module.Replicate()] * mesh.ndim
    return module.DTensor.from_local(x, mesh, copies, run_check=False)


def item(x: Array) -> Any:
    """The Python number in a 0-d array; of several processes all get the same, reduced over them.

    DTensor's own `item()` gives what one rank has of a sum.
    """
    return (x.full_tensor() if is_distributed(x) else x).item()


def largest(x: Array) -> Array:
    """The largest of non-negative entries, 0 of none; of several processes over all of them.

    Torch takes no maximum over a part without entries, which a process may well hold.
    """
    if not is_distributed(x):
        xp = namespace(x)
        return xp.sum(x) if 0 in x.shape else xp.max(x)
    part = x.to_local()
    top = part.max() if part.numel() else part.sum()
    module = sys.modules["torch.distributed.tensor"]
    states = [module.Partial("max") if p.is_shard() else p for p in x.placements]
    copies = [module.Replicate()] * x.device_mesh.ndim
    return module.DTensor.from_local(top, x.device_mesh, states).redistribute(placements=copies)


def snapshot(x: Array) -> Array:
    """A copy that the caller cannot change: NumPy arrays are copied and made read-only.

    JAX arrays are immutable already. Tensors of torch are copied too, but for those that are
    trained: they are kept as they are, so that they are followed and gradients reach them.
    """
    if is_numpy(x):
        copy = np.array(x, dtype_of(x) if x.dtype.kind in "biufc" else None, order="C", copy=True)
        copy.setflags(write=False)
        return copy
    return x.clone() if is_torch(x) and not trainable(x) else x


def owned(x: Array, dtype: np.dtype) -> Array:
    """An array that an operator holds, as `snapshot` has it, in that dtype.

    A tensor that is trained keeps its own; `resident` casts it where it is used.
    """
    return x if trainable(x) else snapshot(cast(x, dtype))


def constant(x: Array) -> Array:
    """`x` without its graph: what is made of it has no derivative."""
    if is_jax(x):
        return sys.modules["jax"].lax.stop_gradient(x)
    return x.detach() if is_torch(x) else x


def copy(x: Array) -> Array:
    """`x` in memory of its own; JAX arrays, which nobody can write to, as they are."""
    if isinstance(x, np.ndarray):
        return x.copy()
    if is_torch(x):
        return x.clone()
    return x if is_jax(x) else namespace(x).asarray(x, copy=True)


def may_share_memory(a: Array, b: Array) -> bool:
    """Whether writing into `a` may change `b`; never for JAX arrays."""
    if type(a) is np.ndarray or type(b) is np.ndarray:
        return is_numpy(a) and is_numpy(b) and np.may_share_memory(a, b)
    if is_jax(a) or is_jax(b):
        return False
    if is_torch(a) and is_torch(b):
        try:
            return bool(a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr())
        except (RuntimeError, NotImplementedError):  # wrapped by torch.func, or without storage
            return True
    return type(a) is type(b)


def resident(
    cache: dict[Any, Array],
    name: str,
    constant: Array,
    like: Array,
    dtype: np.dtype | None = None,
) -> Array:
    """An operator's constant in the namespace and on the device of `like`, kept in `cache`.

    A constant that is a tracer is used as it is, and one that is trained as it is now, in `dtype`.
    """
    if type(constant) is np.ndarray and type(like) is np.ndarray:
        return constant
    if trainable(constant):
        now = constant if is_torch(like) else convert(constant, like)
        return now if dtype is None else cast(now, dtype)
    if is_traced(constant):
        return constant
    if is_jax(like):
        if is_jax(constant):
            return constant
        key: Any = (name, "jax", _jax_device(like))
    else:
        key = (name, namespace(like).__name__, str(array_api_compat.device(like)))
    found = cache.get(key)
    if found is None:
        if is_jax(like):
            # Inside a trace the copy would be a tracer; a concrete one may be kept.
            with sys.modules["jax"].ensure_compile_time_eval():
                found = convert(constant, like)
        else:
            found = convert(constant, like)
        cache[key] = found
    return found


def zeros(shape: tuple[int, ...], dtype: np.dtype, like: Array | None = None) -> Array:
    """Zeros in the namespace and on the device of `like` (NumPy by default)."""
    return _full(shape, dtype, like, "zeros")


def ones(shape: tuple[int, ...], dtype: np.dtype, like: Array | None = None) -> Array:
    """Ones in the namespace and on the device of `like` (NumPy by default)."""
    return _full(shape, dtype, like, "ones")


def exemplar(like: Any) -> Array | None:
    """An array to imitate, from one, from a namespace, or from a pair (namespace, device)."""
    xp, device = like if isinstance(like, tuple) and len(like) == 2 else (like, None)
    if not isinstance(xp, ModuleType):
        return like
    if xp.__name__ in ("jax", "torch"):
        xp = xp.numpy if xp.__name__ == "jax" else xp
    return xp.zeros((), dtype=xp.float32, **({} if device is None else {"device": device}))


def combine(real: Array, imaginary: Array) -> Array:
    """`real + 1j * imaginary` in the complex dtype of the same precision."""
    if is_torch(real):
        return sys.modules["torch"].complex(real, imaginary)
    dtype = np.dtype("complex128" if dtype_of(real).itemsize >= 8 else "complex64")
    return cast(real, dtype) + cast(imaginary, dtype) * 1j


def _lossy(came: np.dtype, wanted: np.dtype) -> DTypeError:
    return DTypeError(
        f"{came} values came where {wanted} ones are wanted: their imaginary part would be lost; "
        "take the real part yourself if that is meant, or declare complex spaces"
    )


_numpy_dtypes: dict[Any, np.dtype] = {}


def _native(x: np.ndarray) -> np.ndarray:
    return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="), copy=False)


@functools.cache
def _numpy_namespace() -> Any:
    # Imported on first use: it pulls in a third of a NumPy import again.
    return importlib.import_module("array_api_compat.numpy")


def _full(shape: tuple[int, ...], dtype: np.dtype, like: Array | None, maker: str) -> Array:
    if like is None or isinstance(like, np.ndarray):
        return getattr(np, maker)(shape, dtype)
    xp = namespace(like)
    if is_jax(like):
        _refuse_missing_x64(dtype)
        return getattr(sys.modules["jax"].numpy, maker)(shape, dtype, device=_jax_device(like))
    device = array_api_compat.device(like)
    return getattr(xp, maker)(shape, dtype=getattr(xp, dtype.name), device=device)


def _jax_device(like: Array) -> Any:
    """The device of a concrete array on one device; None leaves the choice to JAX."""
    if is_traced(like):
        return None
    devices = like.devices()
    return next(iter(devices)) if len(devices) == 1 else None


def _refuse_missing_x64(dtype: np.dtype) -> None:
    if dtype.name in ("float64", "complex128") and not sys.modules["jax"].config.jax_enable_x64:
        raise DTypeError(
            f"{dtype.name} is not available: JAX runs without x64 and would compute in half the "
            "precision; call jax.config.update('jax_enable_x64', True) first, or use "
            'precision="float32"'
        )
