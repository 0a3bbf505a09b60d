"""Arrays on JAX devices: equal shares on a mesh, padded at the end, made share by share.

Every array that reaches a JAX device in this wing goes through `send`. An element is a `jax.Array`
of the padded shape with the `NamedSharding` of its placement. A tracer carries no sharding: it is
an element where its cut axes have padded lengths, or its type names the mesh. Nothing here builds
a full array on one device but `gather`, whose result is one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from linops import arrays
from linops.reductions import dot
from sharding.array_backends import input_checks
from sharding.array_backends.device_locks import together

if TYPE_CHECKING:
    from sharding.array_backends import Term
    from sharding.mesh import Mesh
    from sharding.placement import Placement

__all__ = [
    "BACKEND",
    "JaxDevices",
    "constrained",
    "distrust",
    "jax_mesh",
    "joined",
    "named_sharding",
    "on_shards",
    "pieces",
    "send",
    "spec",
    "stacked",
]


class JaxDevices:
    """Devices of JAX, of this process or of all of `jax.distributed`."""

    apart = True

    def put(self, placement: Placement, x: Any) -> Any:
        """`x` in shares; each is sent for itself, and its zero tail is made on its device."""
        import jax

        if arrays.is_traced(x):
            target = placement.padded_shape(tuple(x.shape))
            widths = [(0, wide - n) for wide, n in zip(target, x.shape, strict=True)]
            return constrained(jax.numpy.pad(x, widths), self.lies(placement, target))
        with jax.ensure_compile_time_eval():
            return _in_shares(placement, x)

    def gather(self, placement: Placement, x: Any) -> Any:
        """The real entries on the first device of this process that has some."""
        if arrays.is_traced(x):
            part = x[tuple(map(slice, placement.real_shape(tuple(x.shape))))]
            return input_checks.plain(part)
        if not _lies_on(placement, x):
            self.forbid(placement, x)
            placement.check(x)
            return x
        shape = placement.real_shape(tuple(x.shape))
        if not (x.is_fully_addressable or x.is_fully_replicated):
            x = together(_replicated(x.sharding.mesh), placement.devices, x)
        if x.sharding.is_fully_replicated:
            whole = np.asarray(x.addressable_data(0))[tuple(map(slice, shape))]
        else:
            whole = np.empty(shape, x.dtype)
            for shard in x.addressable_shards:
                if shard.replica_id == 0:
                    target = whole[shard.index]
                    target[...] = np.asarray(shard.data)[tuple(map(slice, target.shape))]
        first = next(device for device in placement.devices if _is_here(device))
        return send(whole, first)

    def holds(self, placement: Placement, x: Any) -> bool:
        """Whether `x` has the placement's sharding; of a tracer, its padded lengths or its mesh."""
        if not arrays.is_jax(x) or (placement.ndim is not None and x.ndim < placement.ndim):
            return False
        shape = tuple(x.shape)
        for axis, wide in zip(placement.axes, placement.padded_sizes, strict=True):
            if axis is not None:
                position = placement.position(axis, x.ndim)
                if position >= x.ndim or shape[position] != wide:
                    return False
        if arrays.is_traced(x):
            # Its type names the mesh where it came from one; a padded length says it too.
            return shape != placement.real_shape(shape) or _knows(x, placement.mesh)
        return bool(x.sharding.is_equivalent_to(self.lies(placement, shape), x.ndim))

    def forbid(self, placement: Placement, x: Any) -> None:
        """Raise where `x` lies in shares of another placement."""
        input_checks.refuse_misplaced(placement, x)

    def taken(self, placement: Placement, x: Any) -> Any:
        """An element with the placement's own sharding: no `Explicit` mesh stays in its type."""
        if not input_checks.typed_elsewhere(x):
            return x
        sharding = self.lies(placement, tuple(x.shape))
        if arrays.is_traced(x):
            return constrained(x, sharding)
        assert placement.mesh is not None
        return joined(tuple(x.shape), sharding, pieces(x, placement.mesh))

    def full(
        self, placement: Placement, shape: tuple[int, ...], dtype: Any, value: Any, like: Any
    ) -> Any:
        """`value` in the real entries; each share is made on its device."""
        import jax

        parts = []
        with jax.ensure_compile_time_eval():
            _refuse_missing_x64(np.dtype(dtype))
            for number, device in enumerate(placement.devices):
                if _is_here(device):
                    index, padding = _cut(placement, shape, number)
                    real = tuple(len(range(n)[cut]) for cut, n in zip(index, shape, strict=True))
                    with jax.default_device(device):
                        part = _padded(jax.numpy.full(real, value, dtype), padding)
                    parts.append(send(part, device))
        padded = placement.padded_shape(shape)
        return joined(padded, self.lies(placement, padded), parts)

    def mask(self, placement: Placement, ndim: int) -> Any:
        """Booleans of the padded lengths along the cut axes, length 1 along the others."""
        shape = [1] * ndim
        for axis, size in zip(placement.axes, placement.real_sizes, strict=True):
            if axis is not None and size is not None:
                shape[placement.position(axis, ndim)] = size
        return self.full(placement, tuple(shape), bool, True, None)

    def sharding(self, placement: Placement, ndim: int) -> Any:
        """The `NamedSharding` of arrays of `ndim` axes."""
        assert placement.mesh is not None
        cut = [None if a is None else placement.position(a, ndim) for a in placement.axes]
        return named_sharding(placement.mesh, tuple(cut), ndim)

    def lies(self, placement: Placement, shape: tuple[int, ...]) -> Any:
        """The `NamedSharding` of an array of this padded shape, batch axes in front."""
        assert placement.mesh is not None
        if placement.mesh.deals(_batch(placement, shape)):
            return named_sharding(placement.mesh, (0,), len(shape))
        return self.sharding(placement, len(shape))

    def dots(self, terms: Sequence[Term], host: bool, ordered: bool) -> list[Any]:
        """One reduction in one program: padding is left out, whatever stands there."""
        from sharding.array_backends import jax_reductions

        found: list[Any] = [None] * len(terms)
        placed: dict[int, tuple[Placement, int]] = {}
        operands: list[Any] = []
        for k, (placement, a, b, ndim) in enumerate(terms):
            if not (arrays.is_jax(a) and arrays.is_jax(b)):
                a, b = (x if placement.holds(x) else arrays.to_numpy(x) for x in (a, b))
                if arrays.is_numpy(a) and arrays.is_numpy(b):
                    found[k] = dot(a, b, ndim, host)
                    continue
            placed[k] = placement, ndim
            operands += (self._held(placement, x) for x in (a, b))
        if not placed:
            return found
        program = jax_reductions.program(tuple(placed.values()), ordered)
        traced = any(map(arrays.is_traced, operands))
        pairs = together(program, terms[0][0].devices, *operands)
        for k, (high, low) in zip(placed, pairs, strict=True):
            on_host = host and not traced and not high.ndim
            found[k] = _read(high, low) if on_host else high + low
        return found

    def _held(self, placement: Placement, x: Any) -> Any:
        x = placement.put(x)
        return self.pinned(placement, x) if arrays.is_traced(x) else x

    def pinned(self, placement: Placement, x: Any) -> Any:
        """A traced element, held to its devices."""
        return constrained(x, self.lies(placement, tuple(x.shape)))


BACKEND = JaxDevices()


def send(x: Any, device: Any) -> Any:
    """`x`, of the host or of another device, on a device: the door."""
    import jax

    if arrays.is_jax(x):
        if not any((other, device) in _distrusted for other in x.devices()):
            return jax.device_put(x, device)
    # A copy of the host's memory: a device may look at it later, or for good.
    return jax.device_put(np.array(x, order="C"), device)


_distrusted: set[tuple[Any, Any]] = set()


def distrust(pairs: Sequence[tuple[Any, Any]]) -> None:
    """From now on copies between these devices, `(from, to)`, go through the host."""
    _distrusted.update(pairs)


def constrained(x: Any, sharding: Any) -> Any:
    """A traced array, held to a sharding."""
    import jax

    if input_checks.typed_elsewhere(x):
        x = input_checks.plain(x)
    with jax.sharding.use_abstract_mesh(sharding.mesh.abstract_mesh):
        return jax.lax.with_sharding_constraint(x, sharding)


def on_shards(body: Callable[..., Any], mesh: Mesh, specs: Any, outs: Any) -> Callable[..., Any]:
    """`body` on every device's shares: `jax.shard_map`, whatever mesh `jax.set_mesh` has set."""
    import jax

    own = jax_mesh(mesh)
    mapped = jax.shard_map(body, mesh=own, in_specs=specs, out_specs=outs, check_vma=False)

    def run(*operands: Any) -> Any:
        with jax.sharding.use_abstract_mesh(own.abstract_mesh):
            return mapped(*operands)

    return run


def joined(shape: tuple[int, ...], sharding: Any, parts: list[Any]) -> Any:
    """One array of its shares, in the order of the mesh, without a copy."""
    import jax

    return jax.make_array_from_single_device_arrays(shape, sharding, parts)


def pieces(x: Any, mesh: Mesh) -> list[Any]:
    """The shares of an array in the order of the mesh, None for devices of other processes."""
    found = {shard.device: shard.data for shard in x.addressable_shards}
    return [found.get(device) for device in mesh.devices]


def stacked(mesh: Mesh, rows: list[Any]) -> Any:
    """Arrays of one shape, one a device, as one array with a leading axis over the mesh.

    Parameters
    ----------
    mesh
        The devices.
    rows
        In the order of the mesh; None for devices of other processes.
    """
    import jax

    first = next(row for row in rows if row is not None)
    shape = (len(rows), *first.shape)
    sharding = named_sharding(mesh, tuple(0 for _ in mesh.shape), len(shape))
    if any(map(arrays.is_traced, rows)):
        return constrained(jax.numpy.stack(rows), sharding)
    with jax.ensure_compile_time_eval():
        _refuse_missing_x64(arrays.dtype_of(first))
        parts = [
            send(row[None, ...], device)
            for row, device in zip(rows, mesh.devices, strict=True)
            if row is not None and _is_here(device)
        ]
    return joined(shape, sharding, parts)


@functools.lru_cache(maxsize=256)
def jax_mesh(mesh: Mesh) -> Any:
    """JAX's own mesh: its axes are `Auto`, so that arrays may come from anywhere."""
    from jax.sharding import AxisType
    from jax.sharding import Mesh as JaxMesh

    devices = np.array(mesh.devices, dtype=object).reshape(mesh.shape)
    return JaxMesh(devices, mesh.names, axis_types=(AxisType.Auto,) * len(mesh.names))


@functools.lru_cache(maxsize=1024)
def named_sharding(mesh: Mesh, cut: tuple[int | None, ...], ndim: int) -> Any:
    """The sharding of arrays of `ndim` axes of which mesh axis k cuts `cut[k]`."""
    from jax.sharding import NamedSharding, PartitionSpec

    return NamedSharding(jax_mesh(mesh), PartitionSpec(*spec(mesh.names, cut, ndim)))


def spec(names: tuple[str, ...], cut: tuple[int | None, ...], ndim: int) -> tuple[Any, ...]:
    """For each array axis the names of the mesh axes that cut it."""
    entries: list[Any] = []
    for axis in range(ndim):
        here = tuple(name for name, a in zip(names, cut, strict=True) if a == axis)
        entries.append(here if len(here) > 1 else (here[0] if here else None))
    return tuple(entries)


def _refuse_missing_x64(dtype: np.dtype) -> None:
    import jax

    if dtype.kind not in "fc":
        return  # indices are as good in 32 bits
    arrays.zeros((0,), dtype, jax.numpy.zeros(()))  # raises, instead of halving the precision


def _knows(x: Any, mesh: Any) -> bool:
    import jax

    return bool(jax.typeof(x).sharding.mesh == jax_mesh(mesh).abstract_mesh)


def _lies_on(placement: Placement, x: Any) -> bool:
    """Whether `x` is a padded array on these devices, as a program of the user's may split it."""
    if not arrays.is_jax(x) or x.sharding.device_set != set(placement.devices):
        return False
    shape = tuple(x.shape)
    return placement.padded_shape(shape) == shape


def _is_here(device: Any) -> bool:
    import jax

    return bool(device.process_index == jax.process_index())


def _platform(x: Any) -> str:
    return str(next(iter(x.devices())).platform)


def _cut(
    placement: Placement, shape: tuple[int, ...], number: int
) -> tuple[tuple[slice, ...], list[tuple[int, int]]]:
    """The real range of a share, and the planes of padding behind it."""
    index = [slice(0, n) for n in shape]
    padding = [(0, 0)] * len(shape)
    wide = placement.padded_ranges(number)
    for axis, (lo, hi) in placement.ranges(number).items():
        position = placement.position(axis, len(shape))
        index[position] = slice(lo, hi)
        first, last = wide[axis]
        padding[position] = (0, last - first - (hi - lo))
    assert placement.mesh is not None
    if placement.mesh.deals(_batch(placement, shape)):
        share = shape[0] // placement.mesh.size
        index[0] = slice(number * share, (number + 1) * share)
    return tuple(index), padding


def _batch(placement: Placement, shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape[: len(shape) - placement.ndim] if placement.ndim is not None else ()


def _in_shares(placement: Placement, x: Any) -> Any:
    if arrays.is_jax(x):
        x = x.addressable_data(0)
        if _platform(x) == "cpu":
            x = np.asarray(x)
    else:
        x = arrays.to_numpy(x)
    _refuse_missing_x64(arrays.dtype_of(x))
    made = [
        _share(placement, x, number, device)
        for number, device in enumerate(placement.devices)
        if _is_here(device)
    ]
    padded = placement.padded_shape(tuple(x.shape))
    return joined(padded, BACKEND.lies(placement, padded), made)


def _share(placement: Placement, x: Any, number: int, device: Any) -> Any:
    index, padding = _cut(placement, tuple(x.shape), number)
    part = send(x[index], device)
    return send(_padded(part, padding), device)


def _padded(part: Any, padding: list[tuple[int, int]]) -> Any:
    import jax

    return jax.numpy.pad(part, padding) if any(after for _, after in padding) else part


@functools.cache
def _replicated(mesh: Any) -> Any:
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    return jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec()))


def _read(high: Any, low: Any) -> Any:
    """The number of which two 0-d arrays are the halves."""
    value = np.asarray(high.addressable_data(0)).astype(
        "complex128" if high.dtype.kind == "c" else "float64"
    )
    return (value + np.asarray(low.addressable_data(0))).item()
