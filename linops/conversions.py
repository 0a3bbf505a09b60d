"""Arrays moved between libraries, dtypes and owners: casts, conversions, copies, new arrays.

What others use of it is in `linops.arrays`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import array_api_compat
import numpy as np

from linops.errors import DTypeError
from linops.namespaces import (
    Array,
    dtype_of,
    has_float64,
    is_array,
    is_distributed,
    is_jax,
    is_masked,
    is_numpy,
    is_torch,
    is_traced,
    masked_error,
    namespace,
    native_order,
    trainable,
)

__all__ = [
    "cast",
    "combine",
    "constant",
    "convert",
    "copy",
    "everywhere",
    "exemplar",
    "item",
    "largest",
    "may_share_memory",
    "ones",
    "own",
    "resident",
    "snapshot",
    "to_numpy",
    "unify",
    "zeros",
]


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
        return x if x.dtype.isnative else native_order(x)
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
            return native_order(x)
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


def own(x: Array, dtype: np.dtype) -> Array:
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
