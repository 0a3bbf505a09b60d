"""Compiled kernels inside JAX: a custom call of XLA's FFI that runs them on XLA's own buffers.

One handler serves all leaves. It reads the call frame, makes NumPy arrays of the buffers, and runs
the leaf's host function on them, which takes the GIL for its Python part and releases it in the
kernels; no array is copied and no callback of JAX is involved. So a compiled leaf runs in jit,
vmap, grad, scan and shard_map, its tiles spread over the pool as in an eager call, with the same
bits. The Python part takes about 16 us a call, and 0.4 us more for each kB of the leaf's tables;
for that long, not for the kernel, the handlers of several devices wait for each other.

The arrays of a leaf are operands like x, so programs are shared by structure. Tables in float64
travel as bits (`linops/transforms/pytree.py`). Layout of the call frame: `xla/ffi/api/c_api.h` in
jaxlib, API 0.3.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.errors import DTypeError
from linops.space import AnySpace
from linops.structure import Skeleton, skeleton
from linops.transforms.jax_primitive import PrimitiveProgram, bind
from linops.transforms.pytree import pack, unpack

__all__ = ["apply", "attend"]

_TARGET = "linops_host"


def apply(operator: Any, x: Array, adjoint: bool) -> Array:
    """The compiled leaf on a JAX array, traced or not."""
    program, leaves = _program(operator)
    if arrays.is_traced(x) or any(map(arrays.is_traced, leaves)):
        return bind(program, x, leaves, adjoint)
    return program.execute(x, leaves, adjoint)


class _Kernel(PrimitiveProgram):
    """A compiled leaf; its host functions run on the buffers that XLA hands over."""

    def __init__(
        self, structure: Skeleton, domain: AnySpace, codomain: AnySpace, orders: Any
    ) -> None:
        super().__init__(structure, domain, codomain)
        self.structure = structure
        rows = tuple(range(domain.members[0].ndim)), tuple(range(codomain.members[0].ndim))
        self._orders = rows if orders is None else orders
        self._tokens = (next(_numbers), next(_numbers))
        self._kept = _operators.setdefault(structure, {})
        for adjoint, token in enumerate(self._tokens):
            _programs[token] = (self, bool(adjoint))

    def execute(self, x: Any, leaves: Sequence[Array], adjoint: bool) -> Any:
        jax = sys.modules["jax"]
        source, target = (space.members[0] for space in self.spaces(adjoint))
        batch = tuple(x.shape)[: x.ndim - source.ndim]
        orders = self._orders[::-1] if adjoint else self._orders
        _register()
        call = jax.ffi.ffi_call(
            _TARGET,
            jax.ShapeDtypeStruct((*batch, *target.shape), target.dtype),
            vmap_method="sequential",
            input_layouts=[
                _behind(batch, orders[0]),
                *(tuple(range(leaf.ndim)) for leaf in leaves),
            ],
            output_layouts=_behind(batch, orders[1]),
        )
        return call(x, *leaves, token=np.int64(self._tokens[adjoint]))

    def differentiates(self) -> None:
        raise DTypeError(
            f"{self.structure.name} is compiled and has no derivative in its own arrays; "
            "differentiate in x, or hold them fixed with jax.lax.stop_gradient"
        )

    def run_host(self, inputs: list[np.ndarray], out: np.ndarray, adjoint: bool) -> None:
        """The host function on NumPy arrays; `out` is written."""
        orders = self._orders[::-1] if adjoint else self._orders
        operator = _make_operator(self.structure, iter(inputs[1:]), self._kept)
        hook = operator._adjoint_host if adjoint else operator._forward_host
        x = _logical(inputs[0], orders[0])
        result = _logical(out, orders[1])
        if operator._host_out:
            hook(x, out=result)
        else:
            result[...] = hook(x)

    def __repr__(self) -> str:
        return f"{self.structure.name} (compiled)"


_attended: dict[int, list[BaseException]] = {}


@contextlib.contextmanager
def attend(devices: Sequence[Any]) -> Iterator[None]:
    """Raise the errors of kernels of a program that runs to its end, here, on these devices.

    A device that gave up would leave the others waiting in their next collective, until XLA ends
    the process. So a kernel that fails leaves NaN, all go on, and its error is raised here.
    """
    faults: list[BaseException] = []
    numbers = [int(device.local_hardware_id) for device in devices]
    before = {number: _attended[number] for number in numbers if number in _attended}
    _attended.update(dict.fromkeys(numbers, faults))
    try:
        yield
    finally:
        for number in numbers:
            _attended.pop(number, None)
        _attended.update(before)
    if faults:
        raise faults[0]


_KEPT = 16  # operators, with their set-up, that are kept for one structure
_STRUCTURES = 64  # structures for which any are kept
_Kept = dict[tuple[bytes, ...], Any]
_operators: dict[Skeleton, _Kept] = {}
_filled: dict[int, _Kept] = {}  # those with operators, the one that was added to last at the end
_keeping = threading.Lock()
_numbers = itertools.count()
_registering = threading.Lock()
# One entry a structure, as in JAX's own caches: programs that JAX has compiled hold the number.
_programs: dict[int, tuple[_Kernel, bool]] = {}
_by_structure: dict[Any, _Kernel] = {}


def _make_operator(
    structure: Skeleton, leaves: Iterator[np.ndarray], kept: _Kept | None = None
) -> Any:
    """The operator with these arrays, made once; its branches are kept too.

    So columns of a projector, with an index that changes from call to call, keep its set-up.
    """
    own = list(itertools.islice(leaves, structure.slots))
    kept = _operators.setdefault(structure, {}) if kept is None else kept
    key = tuple(leaf.tobytes() for leaf in own)
    found = kept.get(key)
    if found is None:
        found = structure.build((leaf.copy() for leaf in own), unpack, _make_operator)
        with _keeping:
            while len(kept) >= _KEPT:
                del kept[next(iter(kept))]
            kept[key] = found
            _filled.pop(id(kept), None)
            _filled[id(kept)] = kept
            while len(_filled) > _STRUCTURES:
                _filled.pop(next(iter(_filled))).clear()
    return found


def _program(operator: Any) -> tuple[_Kernel, tuple[Array, ...]]:
    found = operator.__dict__.get("_cache_kernel")
    if found is None:
        packing = functools.partial(_pack_operator, operator)
        structure, leaves = skeleton(operator, lambda _: True, packing, alike=True)
        program = _by_structure.get(structure)
        if program is None:
            program = _Kernel(structure, operator.domain, operator.codomain, operator._host_orders)
            _by_structure[structure] = program
        found = program, leaves
        if not any(map(arrays.is_traced, leaves)):
            operator.__dict__["_cache_kernel"] = found
    return found  # type: ignore[no-any-return]


def _pack_operator(operator: Any, table: Array) -> Array:
    if arrays.is_jax(table) and not str(table.dtype).startswith("uint32"):
        if arrays.is_traced(table):
            raise DTypeError(
                f"{operator.name} is compiled and reads its tables as float64 on the host, got a "
                f"traced {table.dtype}; pass the operator itself as an argument of jit"
            )
        table = arrays.to_numpy(table)
    return pack(table)


def _behind(batch: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    n = len(batch)
    return (*range(n), *(n + axis for axis in order))


def _logical(memory: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    """An array whose buffer runs through its axes in `order`, in the user's order of axes."""
    if order == tuple(range(len(order))):
        return memory
    n = memory.ndim - len(order)
    return memory.transpose((*range(n), *(n + order.index(axis) for axis in range(len(order)))))


# --- the handler -------------------------------------------------------------------------

_DTYPES = {
    1: "?", 2: "i1", 3: "i2", 4: "i4", 5: "i8", 6: "u1", 7: "u2", 8: "u4", 9: "u8",
    10: "f2", 11: "f4", 12: "f8", 15: "c8", 18: "c16",
}  # fmt: skip
_EXECUTE = 3
_METADATA = 1
_INTERNAL = 13


class _Buffer:
    """A buffer of XLA's, for `numpy.asarray`."""

    def __init__(self, address: int, shape: tuple[int, ...], dtype: str) -> None:
        self.__array_interface__ = {
            "data": (address, False),
            "shape": shape,
            "typestr": np.dtype(dtype).str,
            "version": 3,
        }


class _DeviceArguments(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("number", ctypes.c_int32),
    )


class _ErrorArguments(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("message", ctypes.c_char_p),
        ("code", ctypes.c_int),
    )


def _words(address: int, count: int) -> Any:
    return (ctypes.c_int64 * count).from_address(address)


def _handle(address: int) -> int | None:
    frame = _words(address, 21)
    out: np.ndarray | None = None
    try:
        if frame[1]:
            extension = _words(frame[1], 4)
            if extension[1] & 0xFFFFFFFF == _METADATA:
                metadata = _words(extension[3], 5)
                metadata[3], metadata[4] = 3 << 32, 0  # API 0.3, no traits
                return None
        if frame[4] & 0xFFFFFFFF != _EXECUTE:
            return None
        token = ctypes.c_int64.from_address(_words(_words(frame[20], 1)[0], 2)[1]).value
        program, adjoint = _programs[token]
        order_in, order_out = program._orders[::-1] if adjoint else program._orders
        inputs = [
            _array(pointer, order_in if i == 0 else None)
            for i, pointer in enumerate(_words(frame[9], frame[7]))
        ]
        out = _array(_words(frame[14], 1)[0], order_out)
        program.run_host(inputs, out, adjoint)
        return None
    except BaseException as error:  # nothing may pass through XLA's frames
        number = _device(frame) if _attended else -1
        if out is not None and number in _attended:
            out.fill(np.nan if out.dtype.kind in "fc" else 0)
            error.add_note(f"on device {number}")
            _attended[number].append(error)
            return None
        message = f"{type(error).__name__}: {error}".encode()
        create = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_ErrorArguments))(
            _words(frame[2], 7)[6]
        )
        arguments = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, message, _INTERNAL)
        made: int | None = create(ctypes.byref(arguments))
        return made


def _device(frame: Any) -> int:
    """The number of the device, within this process, that a call frame belongs to."""
    get = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_DeviceArguments))(
        _words(frame[2], 24)[23]
    )
    arguments = _DeviceArguments(ctypes.sizeof(_DeviceArguments), None, frame[3], 0)
    get(ctypes.byref(arguments))
    return int(arguments.number)


def _array(address: int, order: tuple[int, ...] | None) -> np.ndarray:
    """The buffer as a C-contiguous array, its axes in the order they have in memory."""
    words = _words(address, 6)
    rank = words[4]
    shape = tuple(_words(words[5], rank)) if rank else ()
    if order is not None:
        n = rank - len(order)
        shape = (*shape[:n], *(shape[n + axis] for axis in order))
    return np.asarray(_Buffer(words[3], shape, _DTYPES[words[2] & 0xFFFFFFFF]))


def _register() -> Any:
    with _registering:  # two threads may ask for the first time at once
        return _register_handler()


@functools.cache
def _register_handler() -> Any:
    import jax

    handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(_handle)
    pointer = ctypes.cast(handler, ctypes.c_void_p)
    jax.ffi.register_ffi_target(_TARGET, jax.ffi.pycapsule(pointer), platform="cpu")
    return handler  # kept alive by the cache
