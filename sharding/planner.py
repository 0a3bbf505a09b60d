"""`plan`: from a composition to a program, its placements, and what it costs.

It decides how many devices are worth having where nobody names them, and whether stencils are run
as one. One plan for one mesh is made in `sharding/drafts.py`; what is done where memory is short is
in `sharding/fitting.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from linops.algebra.blocks import axis_name, extent
from linops.errors import PlacementError, ShapeError
from linops.operator import Operator
from linops.structure import within
from sharding import fusion, partitions
from sharding.devices import choose, machine_of, more, of_ranks
from sharding.drafts import draft
from sharding.fitting import within_memory
from sharding.graph import Graph, flatten
from sharding.grids import taken
from sharding.mesh import Mesh
from sharding.plans import Plan, Settings
from sharding.states import real_range

__all__ = ["Plan", "plan"]


def plan(
    A: Operator,
    devices: Any = None,
    executor: str = "auto",
    partition: str | int | Mapping[Any, Any] = "auto",
    memory: float | None = None,
    chunks: Mapping[str | int, int] | None = None,
    batch: Sequence[int] = (),
    deterministic: bool = False,
    probe: bool = True,
) -> Plan:
    """How an operator or functional runs on several devices.

    Parameters
    ----------
    A
        Any composition; its leaves' rules say what may be split.
    devices
        None (all that are worth having), a number, a platform such as `"gpu"`, or a list of
        devices, of their numbers, or of `Described` ones that are not here. A `jax.sharding.Mesh`
        or `DeviceMesh` is taken as it is: an axis name cuts along all its axes, `partition=` says
        else which go where, `{"view": ("a", "b"), "z": "c"}` (the last one fastest).
    executor
        `"threads"`, `"shard_map"`, `"torch"`, `"serial"`, or `"auto"`.
    partition
        `"auto"`, the name of an axis of a rule (`"view"`), a grid of two of them
        (`{"view": 2, "z": 3}`; None for a near-square factorisation), or `"batch"`: each device
        takes its share of the first leading axis. An axis may be given by its number, counted in
        the codomain (in the domain of a functional). `{"domain": "z", "codomain": "view"}` says
        along which axis elements of each side are cut (None: copies; a side that is left out is
        free), and leaves what happens in between to the price.
    memory
        Bytes that each device may hold; by default nine tenths of what is free. Leaves that choose
        the size of their temporaries take at most a quarter of it.
    chunks
        Lengths of bands by axis name, such as `{"z": 16}`; they win over `memory`.
    batch
        Leading axes of the arrays to come, for the prices.
    deterministic
        Whether results are to be the same bits on any number of devices: no contracted axis is
        split, forward or adjoint.
    probe
        Whether copies between accelerators are tried out before the first program.

    Returns
    -------
    Plan

    Raises
    ------
    PlacementError
        For devices that are not there, an axis that nobody has or that must not be split (the
        leaf is named, and what may be split), or a plan that does not fit the memory.
    """

    def make(limit: float | None = None) -> Plan:
        if not isinstance(A, Operator):
            raise PlacementError(f"plan takes an Operator or Functional, got {type(A).__name__}")
        _check(memory, chunks, batch)
        for name, value in (("deterministic", deterministic), ("probe", probe)):
            if value is not True and value is not False:
                raise PlacementError(f"{name} is {value!r}; it is True or False")
        grid, asked = taken(devices, partition)
        available, engine = choose(devices if grid is None else grid.devices, executor)
        machine = machine_of(available, engine)
        if limit is not None:
            machine = replace(machine, memory=limit)
        settings = Settings(engine, machine, deterministic, memory, tuple(batch), probe)
        bounded = A if memory is None else within(A, memory / 4)
        lengths = {_axis(A, name): length for name, length in (chunks or {}).items()}
        wanted = _named(A, asked)
        return _chosen(bounded, devices, available, wanted, lengths, settings, grid)

    if not of_ranks(devices, executor):
        return make()
    from sharding.ranks import planned_together

    return planned_together(make, f"{partition} {memory} {chunks} {batch} {deterministic}")


def _named(A: Operator, partition: Any) -> Any:
    """The partition with axes by name."""
    if isinstance(partition, Mapping):
        if any(side in partition for side in partitions.SIDES):
            return partition
        return {_axis(A, axis): parts for axis, parts in partition.items()}
    return _axis(A, partition)


def _axis(A: Operator, axis: Any) -> Any:
    if isinstance(axis, bool) or not hasattr(axis, "__index__"):
        return axis
    try:
        return axis_name(A, int(axis))
    except ShapeError as error:
        raise PlacementError(f"partition is {axis}: {error}") from error


def _check(memory: Any, chunks: Any, batch: Any) -> None:
    if memory is not None and (isinstance(memory, str) or not memory > 0):
        raise PlacementError(f"memory is {memory!r}; give the bytes of one device, or None")
    if chunks is not None and not isinstance(chunks, Mapping):
        raise PlacementError(f"chunks is {chunks!r}; give lengths by axis, such as {{'z': 16}}")
    if not isinstance(batch, Sequence) or any(n < 0 for n in batch):
        raise PlacementError(f"batch is {batch!r}; give the lengths of the leading axes")


def _chosen(
    A: Operator,
    devices: Any,
    available: tuple[Any, ...],
    partition: str | Mapping[str, Any],
    chunks: dict[str, int],
    settings: Settings,
    grid: Mesh | None = None,
) -> Plan:
    """The plan for so many of the available devices as are worth having; all of a given `grid`."""
    engine = settings.executor
    if partition == "batch" or (isinstance(partition, Mapping) and "batch" in partition):
        asked = {"batch": None} if isinstance(partition, str) else partition
        return _by_batch(A, available, settings, asked, devices is None)
    # Ranks run all together: none of them is left out.
    fixed = None if devices is None and engine != "torch" else len(available)
    graph = flatten(A)
    request = partitions.request(graph, partition, fixed)
    if request.shape and math.prod(request.shape) > len(available):
        raise PlacementError(
            f"partition {partition!r} takes {math.prod(request.shape)} devices, there are "
            f"{len(available)}{more(available)}"
        )

    def drafted(shape: tuple[int, ...], names: tuple[str, ...]) -> Plan:
        mesh = grid or Mesh(available[: math.prod(shape)], shape, names)
        return _cheapest(A, graph, mesh, settings, request)

    free = devices is None and engine != "torch"
    if request.shape or grid is not None:
        plans = [drafted(request.shape, request.names)]
    else:
        counts = range(1, len(available) + 1) if free else [len(available)]
        plans = [drafted((count,), request.names or ("devices",)) for count in counts]
        if request.free and not settings.machine.shared:
            plans += [
                drafted(shape, ("outer", "inner"))
                for count in sorted({_best(plans, free).mesh.size, len(available)})
                for shape in _grids(count)
            ]
    best = _with_notes(_best(plans, free), plans, devices is None, len(available))
    return within_memory(best, request, chunks)


def _best(plans: Sequence[Plan], free: bool) -> Plan:
    """The cheapest; of those that cost nearly the same the first. None with an idle device where
    their number is free."""
    best, *others = [p for p in plans if not (free and _idle(p))] or plans
    for other in others:
        if other.seconds < 0.98 * best.seconds:
            best = other
    return best


def _grids(count: int) -> list[tuple[int, int]]:
    """The meshes of two axes on so many devices."""
    return [(a, count // a) for a in range(2, count // 2 + 1) if count % a == 0]


def _cheapest(
    operator: Operator,
    graph: Graph,
    mesh: Mesh,
    settings: Settings,
    request: partitions.Request,
) -> Plan:
    """The plan of the leaves, or one with neighboring stencils fused where that costs less."""
    best = draft(operator, mesh, settings, request, graph)
    if mesh.size == 1:
        return best
    summed = fusion.with_whole_sums(operator, graph)
    if summed is not None:
        best = min(best, draft(operator, mesh, settings, request, summed), key=lambda p: p.seconds)
    for strided in fusion.in_strides(operator, graph):
        together = draft(operator, mesh, settings, request, strided)
        if together.seconds >= best.seconds:
            break
        best = together
    improved = True
    while improved:
        improved = False
        for other in fusion.merged(best.graph):
            fused = draft(operator, mesh, settings, request, other)
            if fused.seconds < best.seconds:
                best, improved = fused, True
                break
    return best


def _by_batch(
    operator: Operator,
    available: tuple[Any, ...],
    settings: Settings,
    partition: Mapping[str, int | None],
    free: bool,
) -> Plan:
    """A plan in which nothing is cut but the leading axis of the arrays."""
    count = partition["batch"] or len(available)
    if free and settings.executor != "torch":
        available = available[:count]
    if len(partition) > 1 or count != len(available):
        raise PlacementError(
            f"partition {dict(partition)}: devices share the batch alone, and all "
            f"{len(available)} of them; take partition='batch'"
        )
    mesh = Mesh(available, (len(available),), ("batch",))
    found = draft(operator, mesh, settings)
    notes = (f"{len(available)} devices share the leading axis",)
    return replace(found, notes=notes)


def _idle(found: Plan) -> bool:
    """Whether the last device along a mesh axis has only padding in every step that is cut."""
    for m, n in enumerate(found.mesh.shape):
        cuts = [(step.operator, step.cuts[m]) for step in found.forward.computes()]
        sizes = [extent(leaf, cut) for leaf, cut in cuts if cut is not None]
        if sizes and all(real_range(size, n, n - 1)[0] >= size for size in sizes):
            return True
    return False


def _with_notes(best: Plan, plans: Sequence[Plan], free: bool, available: int) -> Plan:
    notes = [f"{best.mesh.size} of {available} devices, executor {best.executor}"]
    others = [p for p in plans if p is not best]
    if free and others:
        second = min(others, key=lambda p: p.seconds)
        notes.append(
            f"priced at {best.seconds:.3g} s for apply and adjoint; next choice: "
            f"{' x '.join(map(str, second.mesh.shape))} devices at {second.seconds:.3g} s"
        )
    return replace(best, notes=tuple(notes))
