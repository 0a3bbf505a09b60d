"""Bytes that a plan holds on each device: predicted from shapes alone, before anything is made."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from linops.algebra.blocks import extent
from linops.cost import bytes_of
from linops.operator import Operator
from linops.structure import leaves
from sharding.banding import exchanged_bands
from sharding.program import Program
from sharding.states import Partial, Replicated, Sharded, Windowed, share_of
from sharding.steps import AllGather, AllToAll, Compute, Extend, Halo, Loop, Slice, Step
from sharding.tiling import Pair, paired

if TYPE_CHECKING:
    from sharding.plans import Plan

__all__ = [
    "SMALL",
    "Account",
    "MemoryUse",
    "counted",
    "explained",
    "footprint",
    "peaks",
    "peaks_of",
    "shortage",
]

SMALL = 1 << 24
"""Bytes that are not worth a question to the machine before every run."""


@dataclass(frozen=True)
class Account:
    """A compiler's count of the bytes of one program on one device.

    Attributes
    ----------
    inputs, operators
        Arguments: the elements that come in, and the operators' arrays.
    results, temporaries
        What a run allocates.
    """

    inputs: int
    operators: int
    results: int
    temporaries: int

    @property
    def run(self) -> int:
        """What a run holds beyond the operators' arrays, elements included."""
        return self.inputs + self.results + self.temporaries


@dataclass(frozen=True)
class MemoryUse:
    """Bytes on one device; where all devices see one memory, bytes of the process.

    Attributes
    ----------
    resident
        Elements of domain and codomain, and the operators' arrays.
    peak
        What a run holds at most beyond the operators' arrays, elements included.
    step
        The step at which that is.
    """

    resident: int
    peak: int
    step: str

    @property
    def total(self) -> int:
        """Bytes that must be free."""
        return max(self.resident, self.peak + self.operators)

    operators: int = 0


@contextlib.contextmanager
def explained(plan: Plan) -> Iterator[None]:
    """Where what runs for a plan finds no memory, the error says what was predicted, and what
    would help."""
    try:
        yield
    except Exception as error:
        # JAX and torch have no class of their own for it.
        text = str(error)
        known = "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower()
        if not (isinstance(error, MemoryError) or known):
            raise
        held = plan.footprint
        where = next(iter(getattr(error, "__notes__", [])), f"on {plan.devices[0]} or beside it")
        raise MemoryError(
            f"{plan.operator.name} ran out of memory {where}: its plan needs {held.total:,} bytes "
            f"on each of {plan.mesh.size} devices, at most {held.peak:,} in {held.step}; plan with "
            "memory= (it then runs in bands), more devices, or another partition"
        ) from error


def counted(accounts: Sequence[Account]) -> MemoryUse:
    """The footprint of a plan whose programs, forward and adjoint, a compiler has counted."""
    operators = max(account.operators for account in accounts)
    elements = max(account.inputs + account.results for account in accounts)
    worst = max(accounts, key=lambda account: account.run)
    where = "the compiled " + ("forward", "adjoint")[accounts.index(worst)]
    return MemoryUse(elements + operators, worst.run, where, operators)


def footprint(plan: Plan) -> MemoryUse:
    """The footprint of a plan, of the larger of its two programs, by what its leaves state."""
    batch = math.prod(plan.batch)
    shared = plan.machine.at_once(plan.mesh.size) if plan.machine.shared else None
    operators = _operators(plan.forward, shared is None)
    programs = [plan.forward] + ([] if plan.adjoint is None else [plan.adjoint])
    ends = plan.forward
    elements = batch * sum(
        ends.values[k].local_bytes(ends.mesh) if shared is None else _whole_bytes(ends, k)
        for k in (*ends.inputs, *ends.outputs)
    )
    worst, where = 0, "none"
    for program in programs:
        for step, held in zip(program.steps, peaks_of(plan, program), strict=True):
            if held > worst:
                worst, where = held, step.kind
    return MemoryUse(elements + operators, max(worst, elements), where, operators)


def shortage(needed: float, free: float | None, where: Any) -> MemoryError | None:
    """The error of a run that would allocate more than is free there; None where there is room.

    Where nobody knows what is free (None), or next to nothing is needed, there is.
    """
    if free is None or needed <= free or needed < SMALL:
        return None
    error = MemoryError(
        f"out of memory before the run began: {where} would allocate {int(needed):,} bytes, "
        f"{int(free):,} are free"
    )
    error.add_note(f"on {where}")
    return error


def peaks_of(plan: Plan, program: Program) -> list[int]:
    """`peaks` of a program of a plan, on its machine."""
    shared = plan.machine.at_once(plan.mesh.size) if plan.machine.shared else None
    traced = shared is None and plan.executor != "torch"
    exchanged: dict[int, int] = {}
    if shared is None and plan.executor in ("shard_map", "threads"):
        exchanged = _in_bands_of_shares(program)
    elif plan.executor == "torch":
        exchanged = _in_tiles(program)
    return peaks(program, math.prod(plan.batch), shared, traced, exchanged)


def peaks(
    program: Program,
    batch: int = 1,
    shared: int | None = None,
    traced: bool = False,
    exchanged: Mapping[int, int] | None = None,
) -> list[int]:
    """For each step the bytes that are held while it runs.

    What is read or will be read again, what is made, and the leaf's workspace: on one device, or,
    where `shared` devices work at a time in one memory, in all of it. `traced` where JAX compiles
    the leaves; `exchanged` has the bytes of those values that are gathered and scattered in bands.
    """
    if shared is not None:
        return _peaks_of_process(program, batch, shared)
    last: dict[int, int] = {}
    for position, step in enumerate(program.steps):
        for k in step.inputs:
            last[k] = position
    for k in (*program.inputs, *program.outputs):
        last[k] = len(program.steps)  # the caller holds both
    sizes = [value.local_bytes(program.mesh) for value in program.values]
    for k, held in (exchanged or {}).items():
        sizes[k] = held
    alive = set(program.inputs)
    found = []
    for position, step in enumerate(program.steps):
        alive |= set(step.outputs)
        held = sum(sizes[k] for k in alive)
        found.append(batch * (held + _workspace(program, step, traced)))
        alive = {k for k in alive if last.get(k, -1) > position}
    return found


def _in_bands_of_shares(program: Program) -> dict[int, int]:
    """The values that are exchanged in bands of every share, by number: bytes of such a band."""
    found = {}
    for loop, move in exchanged_bands(program).items():
        step = program.steps[loop]
        assert isinstance(step, Loop)
        (k,) = set(step.inputs + step.outputs) & set(
            program.steps[move].inputs + program.steps[move].outputs
        )
        found[k] = _band_bytes(program, step, k, max(program.mesh))
    return found


def _in_tiles(program: Program) -> dict[int, int]:
    """The same on ranks: one tile travels while the next one is computed."""
    pairs = [unit for unit in paired(program) if isinstance(unit, Pair)]
    return {
        (k := pair.parts[0].outputs[0]): _band_bytes(program, pair.loop, k, 2) for pair in pairs
    }


def _band_bytes(program: Program, step: Loop, k: int, count: int) -> int:
    """Bytes of `count` bands of a value."""
    name, length = step.bands
    n = extent(step.operator, name)
    return program.values[k].local_bytes(program.mesh) * min(length * count, n) // n


def _block(program: Program, step: Compute) -> Operator:
    """The leaf's block on the first device, whose share is full."""
    block = step.operator
    for n, name in zip(program.mesh, step.cuts, strict=True):
        if name is not None:
            block = block.block(name, 0, share_of(extent(block, name), n))
    return block


def _workspace(program: Program, step: Step, traced: bool = False) -> int:
    """What the leaf holds beside its input and result."""
    if not isinstance(step, Compute):
        return 0
    block = _block(program, step)
    if isinstance(step, Loop):
        name, length = step.bands
        block = block.block(name, 0, min(length, extent(block, name)))
    cost = block.cost().reversed if step.adjoint else block.cost()
    if traced and getattr(block, "_host_orders", None) is not None:
        # XLA copies input and result of a kernel that has an order of its own; the copy of the
        # input lies where the result will be, if it is no larger.
        read, written = bytes_of(block.domain), bytes_of(block.codomain)
        if step.adjoint:
            read, written = written, read
        return int(read if read <= written else read + written)
    return int(cost.workspace)


def _operators(program: Program, apart: bool) -> int:
    """Bytes of the leaves' arrays: all of them in one memory, or those of a device's blocks."""
    found = {step.number: step for step in program.computes()}
    return sum(
        math.prod(a.shape) * a.dtype.itemsize
        for step in found.values()
        for a in leaves(_block(program, step) if apart else step.operator)
        if hasattr(a.dtype, "itemsize")
    )


def _peaks_of_process(program: Program, batch: int, workers: int) -> list[int]:
    # Shares and halos are views: a value has the array that it looks into.
    root = list(range(len(program.values)))
    for step in program.steps:
        if isinstance(step, (Slice, AllGather, AllToAll, Halo)) or (
            isinstance(step, Extend) and _kept(program, step)
        ):
            root[step.outputs[0]] = root[step.inputs[0]]
    last: dict[int, int] = {}
    for position, step in enumerate(program.steps):
        for k in step.inputs:
            last[root[k]] = position
    for k in (*program.inputs, *program.outputs):
        last[root[k]] = len(program.steps)
    alive = {root[k] for k in program.inputs}
    found = []
    for position, step in enumerate(program.steps):
        alive |= {root[k] for k in step.outputs}
        held = sum(_whole_bytes(program, k) for k in alive)
        found.append(batch * (held + workers * _block_bytes(program, step)))
        alive = {k for k in alive if last.get(k, -1) > position}
    return found


def _kept(program: Program, step: Extend) -> bool:
    """Whether it keeps a copy as it is, without zeros around it."""
    return isinstance(program.values[step.inputs[0]].states[step.mesh_axis], Replicated)


def _whole_bytes(program: Program, k: int) -> int:
    """Bytes of a value in one memory: once where it is whole, for each device where it is not."""
    value = program.values[k]
    if any(isinstance(state, (Partial, Windowed)) for state in value.states):
        pieces = math.prod(
            n
            for n, state in zip(program.mesh, value.states, strict=True)
            if not isinstance(state, Replicated)
        )
        return pieces * value.local_bytes(program.mesh)
    return math.prod(value.space.shape) * value.space.dtype.itemsize


def _block_bytes(program: Program, step: Step) -> int:
    """What a worker holds beside the arrays: its block's result before it is written in place."""
    if not isinstance(step, Compute):
        return 0
    if math.prod(program.mesh) == 1:
        return _workspace(program, step)
    cut = [
        k
        for k in step.outputs
        if any(isinstance(state, Sharded) for state in program.values[k].states)
        and not any(isinstance(s, (Partial, Windowed)) for s in program.values[k].states)
    ]
    made = sum(program.values[k].local_bytes(program.mesh) for k in cut)
    return made + _workspace(program, step)
