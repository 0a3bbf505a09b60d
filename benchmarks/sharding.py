"""What a plan gains and what it costs: python -m benchmarks.sharding

Strong scaling (one problem, more shares), weak scaling (a problem that grows with the shares),
what a step costs on tiny work, the bytes that programs move, and, from the model of prices alone, a
projection to 8 and 64 described devices. Cases of a table run interleaved in one process; the
median of the repeats counts. Ratios to the operator as it is, on as many threads.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import geometries as ct
import linops as lo
from linops.compiled import pool
from sharding import Described, plan

Cases = dict[str, Callable[[], Any]]


def medians(cases: Cases, repeats: int) -> dict[str, float]:
    """Seconds of each case, interleaved."""
    found: dict[str, list[float]] = {name: [] for name in cases}
    for case in cases.values():
        case()
    for _ in range(repeats):
        for name, case in cases.items():
            begin = time.perf_counter()
            case()
            found[name].append(time.perf_counter() - begin)
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def cone(size: int, views: int) -> ct.Projector:
    """A circular cone beam scan of a cube."""
    angles = np.linspace(0, 2 * np.pi, views, endpoint=False)
    detector = ct.Detector((size + size // 2,) * 2)
    return ct.Projector(ct.ConeBeam(angles, detector, 4.0 * size, 6.0 * size), ct.Grid((size,) * 3))


def operators(size: int) -> dict[str, lo.LinearOperator]:
    """A projector and a stencil of about equal memory."""
    space = lo.Space((size,) * 3, "float32", ("z", "y", "x"))
    return {"cone projector": cone(size, size // 2), "gradient": lo.Gradient(space)}


def scaling(size: int, repeats: int) -> None:
    """Strong scaling of each executor in shared memory."""
    cores = pool.workers()
    print(f"strong scaling at {size}^3 on {cores} cores (seconds, ratio to serial)")
    for name, A in operators(size).items():
        x, y = A.domain.ones(), A.codomain.ones()
        cases: Cases = {}
        with pool.limit(1):
            serial = plan(A, devices=1, executor="serial").lower()
        cases["serial"] = lambda B=serial: B @ x
        cases["serial, adjoint"] = lambda B=serial: B.H @ y
        for n in sorted({1, 2, cores, 2 * cores}):
            B = plan(A, devices=n, executor="threads").lower()
            cases[f"threads {n}"] = lambda B=B: B @ x
            cases[f"threads {n}, adjoint"] = lambda B=B: B.H @ y
        chosen = plan(A).lower()
        cases["chosen by plan()"] = lambda B=chosen: B @ x
        cases["the operator itself"] = lambda A=A: A @ x
        found = medians(cases, repeats)
        for case, seconds in found.items():
            base = found["serial, adjoint" if case.endswith("adjoint") else "serial"]
            print(f"  {name:16} {case:24} {seconds:9.4f}  {base / seconds:6.2f}x")


def on_jax_devices(size: int, repeats: int) -> None:
    """`shard_map` and a worker a device, on host devices that share the cores."""
    try:
        import jax
    except ImportError:
        print("jax is not installed: left out")
        return
    print(f"JAX host devices, {size}^3 (seconds, ratio to one device)")
    for name, A in operators(size).items():
        cases: Cases = {}
        for executor in ("shard_map", "threads"):
            for n in (1, 2, 4):
                p = plan(A, devices=list(jax.devices()[:n]), executor=executor)
                B, x = p.lower(), p.domain_placement.put(A.domain.ones())
                cases[f"{executor} {n}"] = lambda B=B, x=x: (B @ x).block_until_ready()
        found = medians(cases, repeats)
        for case, seconds in found.items():
            base = found[f"{case.rsplit(' ', 1)[0]} 1"]
            print(f"  {name:16} {case:24} {seconds:9.4f}  {base / seconds:6.2f}x")


def weak(size: int, repeats: int) -> None:
    """The stencil on planes that grow with the shares: time should stay."""
    cores = pool.workers()
    print(f"weak scaling, {size} planes a share (seconds, ratio to one share)")
    cases: Cases = {}
    for n in sorted({1, cores}):
        space = lo.Space((size * n, size, size), "float32", ("z", "y", "x"))
        A = lo.Gradient(space)
        B, x = plan(A, devices=n, executor="threads", partition="z").lower(), A.domain.ones()
        cases[f"{n} shares"] = lambda B=B, x=x: B @ x
    found = medians(cases, repeats)
    for case, seconds in found.items():
        print(f"  {case:24} {seconds:9.4f}  {found['1 shares'] / seconds:6.2f}x")


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
    for case, seconds in found.items():
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
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    # JAX reads it once, when its back end starts.
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    scaling(given.size, given.repeats)
    weak(given.size, given.repeats)
    on_jax_devices(given.size, given.repeats)
    overhead(given.repeats)
    projected(512)


if __name__ == "__main__":
    main()
