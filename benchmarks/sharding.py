"""What a plan gains and what it costs: python -m benchmarks.sharding --size 64 128 256

Strong scaling of every executor on one problem, with bytes moved and peak memory beside what the
plan predicts; weak scaling (a problem that grows with the shares); what a step costs on tiny work;
and, from the model of prices alone, a projection to 8 and 64 described devices. Cases of a table
run interleaved; the median of the repeats counts. "auto" is what `plan(A)` takes by itself.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import linops as lo
from benchmarks.sharding_worker import OPERATIONS, Case, cone, serve
from linops.compiled import pool
from sharding import Described, plan

Cases = dict[str, Callable[[], Any]]


def medians(cases: Cases, repeats: int) -> dict[str, tuple[float, float]]:
    """Seconds and processor seconds of each case, interleaved."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for case in cases.values():
        case()
    for _ in range(repeats):
        for name, case in cases.items():
            begin, processor = time.perf_counter(), time.process_time()
            case()
            found[name].append((time.perf_counter() - begin, time.process_time() - processor))
    return {
        name: (statistics.median(s for s, _ in rows), statistics.median(p for _, p in rows))
        for name, rows in found.items()
    }


def executors(size: int, repeats: int, cases: list[Case]) -> None:
    """Strong scaling of every executor: forward, adjoint, gram and a pass of VCD, interleaved."""
    print(f"cone projector {size}^3, {size // 2} views, {os.cpu_count()} cores")
    print("seconds, ratio to serial, processor seconds, bytes and peak (predicted)")
    with tempfile.TemporaryDirectory() as folder:
        teams = [_Team(case, size, folder) for case in cases]
        for name in OPERATIONS:
            warm = [team.ask(name) for team in teams]
            found: list[list[Any]] = [[] for _ in teams]
            longest = max((row["seconds"] for row in warm if isinstance(row, dict)), default=0.0)
            for _ in range(repeats if longest < _LONG else 1):
                for team, rows in zip(teams, found, strict=True):
                    rows.append(team.ask(name))
            for team, rows in zip(teams, found, strict=True):
                _print(name, team.label, rows, found[0])
        for team in teams:
            team.close()


_LONG = 5.0
"""Seconds of a first run from which on one more is enough."""

_PATIENCE = 300.0
"""Seconds after which a process that does not answer has failed."""


def _print(name: str, label: str, outcomes: list[Any], reference: list[Any]) -> None:
    faults = [outcome for outcome in outcomes if isinstance(outcome, str)]
    if faults:
        print(f"  {name:9} {label:17} failed: {faults[0][:100]}", flush=True)
        return

    def median(rows: list[Any], key: str) -> float:
        return statistics.median(row[key] for row in rows)

    seconds = median(outcomes, "seconds")
    line = f"  {name:9} {label:17} {seconds:8.3f} s"
    if not any(isinstance(row, str) for row in reference):
        line += f" {median(reference, 'seconds') / seconds:5.2f}x"
    line += f" {median(outcomes, 'processor'):8.3f} s"
    moved, predicted = outcomes[0].get("bytes"), outcomes[0].get("bytes predicted")
    if predicted is not None:
        line += f"  moved {'' if moved is None else f'{moved:,} '}({predicted:,})"
        peak = statistics.median(row["peak"] for row in outcomes)
        line += f"  peak {peak / 1e6:,.1f} ({outcomes[0]['peak predicted'] / 1e6:,.1f}) MB"
    print(line, flush=True)


class _Team:
    """The processes of a case; what they fail of is their answer from then on."""

    def __init__(self, case: Case, size: int, folder: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        self._fault: str | None = None
        for rank in range(case.processes):
            ours, theirs = context.Pipe()
            own = replace(case, rank=rank)
            process = context.Process(target=serve, args=(theirs, own, size, folder), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        chosen = self._answers()[0]
        self.label = f"auto: {chosen}" if case.executor == "auto" else str(case)

    def ask(self, name: str) -> Any:
        """One run: the slowest process's seconds, the sum of processor seconds and bytes."""
        if self._fault is None:
            try:
                for pipe in self._pipes:
                    pipe.send(name)
            except OSError as error:
                self._give_up(str(error))
        answers = self._answers()
        if any(isinstance(answer, str) for answer in answers):
            return next(answer for answer in answers if isinstance(answer, str))
        made = dict(answers[0])
        for key, join in (("seconds", max), ("peak", max), ("processor", sum), ("bytes", sum)):
            if key in made:
                made[key] = join(answer[key] for answer in answers)
        return made

    def close(self) -> None:
        """End the processes."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            with contextlib.suppress(OSError):
                pipe.send(None)
            process.join(30)
            if process.is_alive():
                process.kill()

    def _answers(self) -> list[Any]:
        """What every process says; the fault where one of them has ended or is silent."""
        found = []
        end = time.monotonic() + _PATIENCE
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            if self._fault is not None:
                break
            try:
                if pipe.poll(max(end - time.monotonic(), 0.0)):
                    found.append(pipe.recv())
                else:
                    self._give_up(f"no answer for {_PATIENCE:.0f} s")
            except (EOFError, OSError):
                process.join(30)
                self._give_up(f"its process ended with {process.exitcode}")
        return found if self._fault is None else [self._fault]

    def _give_up(self, fault: str) -> None:
        self._fault = fault
        for process in self._processes:
            process.kill()


def weak(size: int, repeats: int) -> None:
    """Work that grows with the shares: time should stay.

    Views of a projector are work of the cores. The stencil is work of the memory: a share makes its
    planes and copies them into the result, twice what the operator itself writes.
    """
    print(f"weak scaling, {size}^2 pixels (seconds, ratio to one share, processor seconds)")
    cases: Cases = {}
    counts = sorted({1, pool.workers()})
    for n in counts:
        space = lo.Space((size * n, size, size), "float32", ("z", "y", "x"))
        for A, axis in ((cone(size, size * n), "view"), (lo.Gradient(space), "z")):
            B, x = plan(A, devices=n, executor="threads", partition=axis).lower(), A.domain.ones()
            cases[f"{A.name} by {axis}, {n} shares"] = lambda B=B, x=x: B @ x
    found = medians(cases, repeats)
    for case, (seconds, processor) in found.items():
        first = found[case.replace(f"{counts[-1]} shares", "1 shares")][0]
        print(f"  {case:28} {seconds:9.4f}  {first / seconds:6.2f}x {processor:9.4f}")


def overhead(repeats: int) -> None:
    """What a step costs beside its work."""
    space = lo.Space((8,), "float32", ("x",))
    D = lo.Diagonal(np.ones(8, np.float32), space)
    x = space.ones()
    cases: Cases = {"the operator itself": lambda: D @ x}
    for executor in ("serial", "threads"):
        B = plan(D, devices=2, executor=executor, partition="x").lower()
        cases[f"one step, {executor}"] = lambda B=B: B @ x
    found = medians(cases, max(repeats, 3) * 300)
    print("overhead on 8 entries (microseconds)")
    for case, (seconds, _) in found.items():
        print(f"  {case:24} {seconds * 1e6:9.1f}")


def projected(size: int) -> None:
    """What the prices say of devices that are not here: no measurement."""
    properties = {"memory": 80e9, "bandwidth": 2e12, "link": 2e11, "flops": 2e13}
    print(f"projected from prices alone, cone projector {size}^3, devices of {properties}")
    A = cone(size, size)
    one = plan(A, devices=Described.several(1, **properties)).seconds
    for n in (8, 64):
        for partition in ("auto", "view", {"view": None, "z": None}):
            p = plan(A, devices=Described.several(n, **properties), partition=partition)
            moved = sum(p.forward.volume(step) for step in p.forward.steps)
            print(
                f"  {n:3} devices, {partition!s:28} {one / p.seconds:6.1f}x, {moved:>16,} bytes "
                f"forward, {p.footprint.total:>14,} bytes a device"
            )


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--executors", nargs="+", default=["serial", "auto", "threads", "shard_map", "torch"]
    )
    given = parser.parse_args()
    # Freed blocks go back to the machine, so that a peak is that of one call.
    os.environ["MALLOC_MMAP_THRESHOLD_"] = os.environ["MALLOC_TRIM_THRESHOLD_"] = "65536"
    counts = {"serial": {1}, "auto": {1}, "threads": {1, 2, pool.workers()}}
    counts |= {"shard_map": {2, 4}, "torch": {2}}
    cases = [Case(name, n) for name in given.executors for n in sorted(counts[name])]
    for size in given.size:
        executors(size, given.repeats, cases)
    weak(min(given.size), given.repeats)
    overhead(given.repeats)
    projected(512)


if __name__ == "__main__":
    main()
