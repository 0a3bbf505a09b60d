"""Meshes that users bring: of JAX or torch, with the axes of one plan's mesh made of theirs.

A plan has one or two mesh axes (`sharding/mesh.py`). One of them may be several of the user's, in
the order in which `partition=` names them, the last one fastest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from linops.errors import PlacementError
from sharding.devices import ranked
from sharding.mesh import Mesh
from sharding.partitions import SIDES

__all__ = ["taken"]

_Groups = list[tuple[str, ...]]


def taken(devices: Any, partition: Any) -> tuple[Mesh | None, Any]:
    """The mesh of a plan where `devices` is a `jax.sharding.Mesh` or a `DeviceMesh`, else None;
    and what `partition` asks for on it.

    Raises
    ------
    PlacementError
        For mesh axes that are left out, named twice or not there, numbers that are not those of
        the mesh, or more than two axes that nothing says how to join.
    """
    if isinstance(devices, Mesh):
        names, shape, flat = devices.names, devices.shape, devices.devices
    elif hasattr(devices, "axis_names") and hasattr(devices, "devices"):
        names, shape = tuple(map(str, devices.axis_names)), devices.devices.shape
        flat = tuple(devices.devices.flat)
    elif hasattr(devices, "mesh_dim_names") and hasattr(devices, "mesh"):
        shape = tuple(devices.mesh.shape)
        names = devices.mesh_dim_names or tuple(f"axis{m}" for m in range(len(shape)))
        flat = ranked(devices.mesh.flatten().tolist())
    else:
        return None, partition
    groups, asked = _grouped(tuple(names), tuple(shape), partition)
    order = [names.index(name) for group in groups for name in group]
    sizes = tuple(math.prod(shape[names.index(name)] for name in group) for group in groups)
    joined = tuple("_".join(group) for group in groups)
    # A mesh of that name shares the leading axis of arrays alone.
    joined = ("devices",) if joined == ("batch",) else joined
    return Mesh(tuple(flat[k] for k in _transposed(shape, order)), sizes, joined), asked


def _grouped(names: tuple[str, ...], shape: tuple[int, ...], partition: Any) -> tuple[_Groups, Any]:
    """Which mesh axes make one axis of the plan's mesh, and the partition of that."""
    apart: _Groups = [(name,) for name in names]
    there = f"the mesh has {dict(zip(names, shape, strict=True))}"
    if isinstance(partition, Mapping) and not set(SIDES) & set(partition):
        given = list(partition.values())
        if all(isinstance(value, (str, tuple, list)) for value in given):
            groups = [(v,) if isinstance(v, str) else tuple(v) for v in given]
            used = [name for group in groups for name in group]
            if sorted(map(str, used)) != sorted(names):
                raise PlacementError(
                    f"partition {dict(partition)} names mesh axes {used}; {there}: name each once"
                )
            sizes = dict(zip(names, shape, strict=True))
            counts = [math.prod(sizes[name] for name in group) for group in groups]
            return groups, dict(zip(partition, counts, strict=True))
        if len(given) == 1:
            return [names], partition
        if len(given) != len(names) or any(
            value not in (None, n) for value, n in zip(given, shape, strict=True)
        ):
            raise PlacementError(
                f"partition {dict(partition)} is not of this mesh: {there}; name its axes, such as "
                f"{{'view': {names[0]!r}, ...}}"
            )
        return apart, dict(zip(partition, shape, strict=True))
    if partition != "auto":
        return [names], partition
    if len(names) > 2:
        raise PlacementError(
            f"plans have meshes of one or two axes; {there}: say which go together, such as "
            f"partition={{'view': {names[:2]}, 'z': {names[2]!r}}}, or name one axis ('view') that "
            "all of them cut"
        )
    return apart, partition


def _transposed(shape: tuple[int, ...], order: list[int]) -> list[int]:
    """The numbers of a grid's entries with its axes in another order."""
    return np.arange(math.prod(shape)).reshape(shape).transpose(order).ravel().tolist()
