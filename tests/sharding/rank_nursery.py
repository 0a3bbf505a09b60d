"""One process that imports everything once and forks groups of ranks, as many as it is told.

`python rank_nursery.py`, then a line "WORLD FOLDER" on its input for each group. Every rank of the
group runs all checks of `rank_checks` and writes what it found to FOLDER/RANK.json; "done" comes
back when all of them have ended.
"""

from __future__ import annotations

import datetime
import gc
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import compositions
import numpy as np
import pytest
import torch
import torch._dynamo  # DTensors import it with their first derivative
import torch.distributed as dist
from rank_checks import CHECKS
from rank_checks.register import projector, raises

import linops as lo
from linops.errors import PlacementError
from sharding import plan
from sharding.agreement import agree_or_raise

LIMIT = 300.0
SECONDS = 60.0  # the limit of a group


def main() -> None:
    """Serve groups until the input ends."""
    torch.set_num_threads(1)  # no thread may run where processes are forked
    _warm()
    for line in sys.stdin:
        world, folder = line.split(maxsplit=1)
        _group(int(world), Path(folder.strip()))
        print("done", flush=True)


def _warm() -> None:
    """Compiled kernels and lazy imports, once for all ranks."""
    for A in (projector((5, 4), 5), *(make() for make in compositions.LINEAR.values())):
        A.H @ (A @ A.domain.ones())
    v = torch.ones(2)
    torch.func.vmap(lambda t: torch.func.jvp(torch.square, (t,), (t,))[1])(v)
    gc.freeze()  # pages of what exists now stay shared


def _group(world: int, folder: Path) -> None:
    ranks = [_forked(rank, world, folder) for rank in range(world)]
    until = time.monotonic() + LIMIT
    while ranks:
        ranks = [pid for pid in ranks if os.waitpid(pid, os.WNOHANG)[0] == 0]
        if time.monotonic() > until:
            for pid in ranks:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            return
        time.sleep(0.02)


def _forked(rank: int, world: int, folder: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        output = os.open(folder / f"{rank}.txt", os.O_CREAT | os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        code = _rank(rank, world, folder)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    # Past the threads of the group: a rank that failed ends at once.
    os._exit(code)


def _rank(rank: int, world: int, folder: Path) -> int:
    _start(rank, world, folder / "group", SECONDS)
    found: dict[str, str] = {}
    file = folder / f"{rank}.json"
    spent: dict[str, float] = {}
    for name, check in CHECKS.items():
        begin = time.process_time()
        try:
            check(rank, world)
            found[name] = ""
        except (Exception, pytest.fail.Exception):
            found[name] = traceback.format_exc()
        spent[name] = round(time.process_time() - begin, 2)
        try:
            # Where all failed alike, the next check can run.
            fine = torch.tensor([not found[name]], dtype=torch.int64)
            dist.all_reduce(fine)
        except RuntimeError:
            break
        if 0 < int(fine) < world:
            break
    else:
        if world == 2:
            found["a_latecomer_is_named"] = _latecomer(rank, world, folder)
        if world == 4:
            name = "a_rank_that_dies_is_named"
            file.write_text(json.dumps({**found, name: ""}))
            found[name] = _death(rank, world)
    file.write_text(json.dumps(found))
    print("processor seconds:", dict(sorted(spent.items(), key=lambda item: -item[1])))
    return any(found.values())


def _latecomer(rank: int, world: int, folder: Path) -> str:
    """A rank that does not come is named once the group's time is up."""
    try:
        dist.destroy_process_group()
        _start(rank, world, folder / "late", seconds=3)
        agree_or_raise("all here")
        if rank == 1:
            time.sleep(5)
        else:
            raises(PlacementError, "[1] did not come", lambda: agree_or_raise("one is missing"))
    except (Exception, pytest.fail.Exception):
        return traceback.format_exc()
    return ""


def _death(rank: int, world: int) -> str:
    """The last rank ends within a program: the others stop waiting, and name it."""
    space = lo.Space((world, 3), "float64", ("z", "y"))

    def dying(x: Any) -> Any:
        if rank == world - 1:
            os._exit(0)
        return x

    L = lo.from_functions(
        dying, dying, domain=space, codomain=space, rule="z y -> z y", blockwise=True
    )
    S = lo.Convolve(space, np.ones((3, 1)))
    try:
        B = plan(S @ L @ S, None, "torch", "z").lower()
        started = time.monotonic()
        with pytest.raises(PlacementError, match=rf"ranks \[.*{world - 1}\] did not come"):
            B @ space.ones()
        assert time.monotonic() - started < SECONDS + 10
    except (Exception, pytest.fail.Exception):
        return traceback.format_exc()
    return ""


def _start(rank: int, world: int, file: Path, seconds: float) -> None:
    dist.init_process_group(
        "gloo",
        init_method=f"file://{file}",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=seconds),
    )


if __name__ == "__main__":
    main()
