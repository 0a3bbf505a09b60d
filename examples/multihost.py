"""One scan on the devices of several processes: `jax.distributed` and one compiled program.

On one machine, two processes of two CPU devices each:

    python examples/multihost.py --processes 2

On a cluster every host runs its part, the first one naming itself:

    python examples/multihost.py --processes 8 --process $RANK --coordinator host0:1234

Every process makes the same plan and calls the same functions; each touches its own shards alone.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

DEVICES = 2  # of each process; a GPU host would leave this to JAX


def work(process: int, processes: int, coordinator: str, checkpoints: Path | None) -> float:
    """Reconstruct on all devices of all processes; the relative residual that is left.

    With `checkpoints`, a folder that all processes see, the solve is also taken up at its tenth
    iteration, as after a crash, and must end in the same bits.
    """
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
    import jax
    import numpy as np

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(coordinator, processes, process, initialization_timeout=120)

    import geometries as ct
    import solvers
    from sharding import plan

    angles = np.linspace(0, 2 * np.pi, 15, endpoint=False)
    scan = ct.ConeBeam(angles, ct.Detector((6, 12), pitch=2.0), 40.0, 80.0)
    A = ct.Projector(scan, ct.Grid((5, 12, 12)))
    B = plan(A, devices=jax.devices(), executor="shard_map", partition="view").lower()

    truth = np.zeros(A.domain.shape, "float32")
    truth[1:4, 4:8, 3:9] = 1.0
    y = B.codomain.home.put(A @ truth)
    # Views that this process computed, against the operator without a plan.
    made = B @ B.domain.home.put(truth)
    for own in made.addressable_shards:
        views = range(*own.index[0].indices(len(angles)))
        np.testing.assert_allclose(
            np.asarray(own.data)[: len(views)], (A @ truth)[own.index[0]], rtol=1e-5, atol=1e-5
        )
    result = solvers.cgls(
        B, y, iterations=20, checkpoint_directory=checkpoints, checkpoint_every=10
    )
    if checkpoints is not None:
        again = solvers.cgls(B, y, iterations=20, resume=checkpoints / "step-000010")
        for one, other in zip(
            result.solution.addressable_shards, again.solution.addressable_shards, strict=True
        ):
            np.testing.assert_array_equal(np.asarray(one.data), np.asarray(other.data))
    left = float(B.codomain.norm(B @ result.solution - y) / B.codomain.norm(y))
    # With its end of line in one piece: processes share the output.
    print(
        f"process {process} of {processes}: {len(jax.local_devices())} of {len(jax.devices())} "
        f"devices, residual {left:.2e}\n",
        end="",
        flush=True,
    )
    jax.distributed.shutdown()
    return left


def start(processes: int, checkpoints: Path | None) -> int:
    """All processes on this machine; the worst exit code."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    arguments = ["--processes", str(processes), "--coordinator", f"localhost:{port}"]
    if checkpoints is not None:
        arguments += ["--checkpoints", str(checkpoints)]
    running = [
        subprocess.Popen([sys.executable, str(Path(__file__)), *arguments, "--process", str(i)])
        for i in range(processes)
    ]
    try:
        return max(abs(one.wait(timeout=300)) for one in running)
    finally:
        for one in running:
            one.kill()


def main(arguments: Sequence[str] | None = None) -> int:
    """Start all processes, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--process", type=int, default=None)
    parser.add_argument("--coordinator", default="localhost:1234")
    parser.add_argument("--checkpoints", type=Path, default=None, help="a folder that all see")
    given = parser.parse_args(arguments)
    if given.process is None:
        return start(given.processes, given.checkpoints)
    left = work(given.process, given.processes, given.coordinator, given.checkpoints)
    return 0 if left < 0.05 else 1


if __name__ == "__main__":
    sys.exit(main())
