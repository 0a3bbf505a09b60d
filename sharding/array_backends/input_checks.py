"""JAX arrays as callers bring them: from other placements, on other meshes, typed by other meshes.

An array in shares is taken where it lies as a plan has it, or refused with both places in the
message. A trace knows neither devices nor their order; it knows the shape of the mesh that an array
came from, and, outside of `jit`, the array itself.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from linops import arrays
from linops.errors import PlacementError

if TYPE_CHECKING:
    from sharding.placement import Placement

__all__ = ["plain", "refuse_misplaced", "typed_elsewhere"]


def refuse_misplaced(placement: Placement, x: Any) -> None:
    """Raise where `x` lies in shares that are not those of a placement, or in copies on other
    devices, as far as that is known.

    Raises
    ------
    PlacementError
        With what came, what is wanted, and the fix.
    """
    if not arrays.is_jax(x):
        return
    if arrays.is_traced(x):
        beneath = _beneath(x)
        if beneath is None:
            mesh = _mesh_of_type(x)
            if mesh.empty or mesh.size == len(placement.devices):
                return
            _refuse(placement, x, f"came from a mesh {dict(mesh.shape)}")
        if _order(beneath.sharding) == placement.devices:
            return  # whatever its shares are: a trace may move it
        x = beneath
    found = x.sharding.device_set
    here = x.sharding.is_fully_replicated and found == set(placement.devices)
    if len(found) > 1 and not here:
        spec = getattr(x.sharding, "spec", x.sharding)
        where = ", ".join(map(str, _order(x.sharding)))
        _refuse(placement, x, f"lies on [{where}] in shares {spec}")


def typed_elsewhere(x: Any) -> bool:
    """Whether the type of a traced array, or the sharding of another, names an `Explicit` mesh."""
    from jax.sharding import AxisType

    mesh = _mesh_of_type(x) if arrays.is_traced(x) else getattr(x.sharding, "mesh", None)
    return mesh is not None and AxisType.Explicit in mesh.axis_types


def plain(x: Any) -> Any:
    """A traced array, of a type that names no mesh."""
    return _forgetful().bind(x)


def _refuse(placement: Placement, x: Any, what: str) -> None:
    wanted = ", ".join(map(str, placement.devices))
    raise PlacementError(
        f"an array of shape {tuple(x.shape)} {what}, wanted is one on {placement}: [{wanted}]; "
        "take it back with gather of its own placement and pass that, or make both plans with the "
        "same devices and partition"
    )


def _beneath(x: Any) -> Any:
    """The array of which a tracer of `grad`, `jvp` or `vmap` follows the use; None within `jit`."""
    while arrays.is_jax(x) and arrays.is_traced(x):
        x = getattr(x, "primal", getattr(x, "val", None))
    return x if arrays.is_jax(x) else None


def _order(sharding: Any) -> tuple[Any, ...]:
    mesh = getattr(sharding, "mesh", None)
    if mesh is not None:
        return tuple(mesh.devices.flat)
    return tuple(sorted(sharding.device_set, key=lambda device: int(device.id)))


def _mesh_of_type(x: Any) -> Any:
    import jax

    return jax.typeof(x).sharding.mesh


@functools.cache
def _forgetful() -> Any:
    """The identity, whose result is a plain array: its type names no mesh."""
    import jax
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir
    from jax.sharding import AxisType

    primitive = Primitive("linops_gathered")

    def run(x: Any) -> Any:
        return jax.numpy.array(np.asarray(x))  # free to join arrays on any device

    def transpose(cotangent: Any, x: Any) -> Any:
        sharding = x.aval.sharding
        if AxisType.Explicit not in sharding.mesh.axis_types:
            return [cotangent]
        with jax.sharding.use_abstract_mesh(sharding.mesh):
            return [jax.sharding.reshard(cotangent, sharding)]

    def batch(operands: Any, dims: Any) -> Any:
        return primitive.bind(*operands), dims[0]

    primitive.def_impl(run)
    primitive.def_abstract_eval(lambda x: jax.core.ShapedArray(x.shape, x.dtype))
    mlir.register_lowering(primitive, lambda _, x: [x])
    ad.deflinear2(primitive, transpose)
    batching.primitive_batchers[primitive] = batch
    return primitive
