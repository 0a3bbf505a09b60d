"""One executor of `benchmarks.sharding`, in a process of its own: operations on request, measured.

A process a case, so that memory is that of the case alone and JAX has as many host devices as the
case asks for. Ranks of torch are several such processes.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["OPERATIONS", "Case", "cone", "serve"]

OPERATIONS = ("forward", "adjoint", "gram", "VCD pass")


@dataclass(frozen=True)
class Case:
    """An executor, its devices, and which of its processes this is; `"auto"` leaves both free."""

    executor: str
    devices: int
    rank: int = 0

    @property
    def processes(self) -> int:
        """One a rank; else one."""
        return self.devices if self.executor == "torch" else 1

    def __str__(self) -> str:
        return self.executor if self.executor == "auto" else f"{self.executor} {self.devices}"


def cone(size: int, views: int) -> Any:
    """A circular cone beam scan of a cube, float32."""
    import geometries as ct

    angles = np.linspace(0, 2 * np.pi, views, endpoint=False)
    beam = ct.ConeBeam(angles, ct.Detector((size + size // 2,) * 2), 4.0 * size, 6.0 * size)
    return ct.Projector(beam, ct.Grid((size,) * 3))


def serve(pipe: Connection, case: Case, size: int, folder: str) -> None:
    """Say what the plan is, then answer names of operations with seconds and bytes, until None."""
    if case.executor != "auto":
        threads = case.devices if case.executor == "threads" else 1
        os.environ["LINOPS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={case.devices}"
    sent = _joined(case, folder) if case.executor == "torch" else None
    p, made = _operations(case, size)
    pipe.send(f"{p.executor} {p.mesh.size}")
    for name in iter(pipe.recv, None):
        run, program, inputs = made[name]
        try:
            found = _measured(run, sent)
        except Exception as error:
            pipe.send(f"{type(error).__name__}: {error}")
            continue
        if program is not None:
            from sharding.memory import peaks

            apart = p.executor in _APART
            # How many shares are worked on at once in shared memory.
            at_once = None if apart else p.mesh.size
            found["bytes predicted"] = sum(map(program.volume, program.steps))
            found["peak predicted"] = max(peaks(program, 1, at_once), default=0) - inputs
            if p.executor == "shard_map":  # one process has all devices
                found["peak predicted"] *= p.mesh.size
        pipe.send(found)


_APART = ("shard_map", "torch")


def _operations(case: Case, size: int) -> tuple[Any, dict[str, tuple[Callable[[], Any], Any, int]]]:
    """The plan, and what to run: a call, its program, the bytes of inputs that are there before."""
    import solvers
    from sharding import plan

    A = cone(size, size // 2)
    p = plan(A, _devices(case), case.executor)
    B = p.lower()
    G = B.gram()
    x, y = A.domain.ones(), A.codomain.ones()
    placed = p.executor in _APART
    x, y = (B.domain.home.put(x), B.codomain.home.put(y)) if placed else (x, y)
    mesh = p.forward.mesh

    def inputs(program: Any) -> int:
        total = 0
        for k in program.inputs:
            value = program.values[k]
            total += value.local_bytes(mesh) if placed else value.space.size * 4
        return total

    def vcd() -> Any:
        return solvers.vcd(B, y, iterations=1, partitions=4).solution

    programs = {"forward": p.forward, "adjoint": p.adjoint, "gram": G.plan.forward}
    runs = {"forward": lambda: B @ x, "adjoint": lambda: B.H @ y, "gram": lambda: G @ x}
    made = {name: (runs[name], program, inputs(program)) for name, program in programs.items()}
    return p, {**made, "VCD pass": (vcd, None, 0)}


def _measured(run: Callable[[], Any], sent: list[int] | None) -> dict[str, float]:
    """One call: wall and processor seconds, bytes beyond what was held, bytes sent."""
    before = 0 if sent is None else sum(sent)
    _reset_peak()
    held = _memory("VmRSS")
    cpu = resource.getrusage(resource.RUSAGE_SELF)
    begin = time.perf_counter()
    made = run()
    if hasattr(made, "block_until_ready"):
        made.block_until_ready()
    seconds = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_SELF)
    found = {
        "seconds": seconds,
        "processor": after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime,
        "peak": _memory("VmHWM") - held,
    }
    if sent is not None:
        found["bytes"] = sum(sent) - before
    return found


def _devices(case: Case) -> Any:
    if case.executor in ("auto", "torch"):
        return None
    if case.executor != "shard_map":
        return case.devices
    import jax

    return list(jax.devices()[: case.devices])


def _joined(case: Case, folder: str) -> list[int]:
    """The process group; a list that grows by the bytes of each message to other ranks."""
    import torch
    import torch.distributed as dist

    from sharding import agreement

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/group{case.devices}",
        rank=case.rank,
        world_size=case.devices,
    )
    sent: list[int] = []
    gather, exchange, post = agreement.gather_rows, dist.all_to_all_single, dist.batch_isend_irecv

    def gathered(out: Any, rows: Any, group: Any = None, **options: Any) -> Any:
        if group is not None:  # else an agreement, of fixed size
            sent.append(rows.nbytes * (case.devices - 1))
        return gather(out, rows, group, **options)

    def exchanged(
        out: Any, rows: Any, got: Any = None, given: Any = None, group: Any = None, **options: Any
    ) -> Any:
        own = 1 / case.devices if given is None else given[case.rank] / max(sum(given), 1)
        sent.append(round(rows.nbytes * (1 - own)))
        return exchange(out, rows, got, given, group=group, **options)

    def posted(operations: list[Any]) -> Any:
        sent.extend(o.tensor.nbytes for o in operations if o.op is dist.isend)
        return post(operations)

    agreement.gather_rows = gathered
    dist.all_to_all_single, dist.batch_isend_irecv = exchanged, posted
    return sent


def _memory(field: str) -> int:
    """Bytes of a line of this process's status; 0 where there is no such file."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(lines[field].split()[0]) * 1024


def _reset_peak() -> None:
    with contextlib.suppress(OSError):  # the peak is then that of the process so far
        Path("/proc/self/clear_refs").write_text("5")
