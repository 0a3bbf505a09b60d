"""Plans on real processes that talk by gloo: groups of them run the checks of `rank_checks`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent


@pytest.fixture(scope="module")
def nursery() -> Iterator[subprocess.Popen[str]]:
    """The process that forks ranks."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.update(dict.fromkeys(("OMP_NUM_THREADS", "LINOPS_NUM_THREADS"), "1"))
    command = [sys.executable, "-W", "ignore", str(FOLDER / "rank_nursery.py")]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4, 1, 3])
def test_every_check_holds_on_every_rank(
    world: int, nursery: subprocess.Popen[str], tmp_path: Path
) -> None:
    nursery.stdin.write(f"{world} {tmp_path}\n")
    nursery.stdin.flush()
    assert nursery.stdout.readline() == "done\n", "the ranks could not be started"
    failures = []
    names = []
    for rank in range(world):
        file = tmp_path / f"{rank}.json"
        if not file.exists():
            failures.append(f"rank {rank} died:\n{(tmp_path / f'{rank}.txt').read_text()}")
            continue
        found = json.loads(file.read_text())
        names.append(list(found))
        failures += [f"rank {rank}, {name}:\n{text}" for name, text in found.items() if text]
    assert not failures, "\n".join(failures)
    assert all(each == names[0] for each in names)
    assert len(names[0]) > 25
    assert ("a_latecomer_is_named" in names[0]) == (world == 2)
    assert ("a_rank_that_dies_is_named" in names[0]) == (world == 4)


def test_ranks_on_gpus_take_the_one_of_their_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from sharding.devices import device_of

    chosen = [0]
    monkeypatch.setattr(torch.cuda, "set_device", lambda number: chosen.append(number))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: chosen[-1])
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: len(chosen) > 1)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert device_of("cuda") == torch.device("cuda", 0)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert device_of("cuda") == torch.device("cuda", 3)
    monkeypatch.setenv("LOCAL_RANK", "5")  # what was chosen stays
    assert device_of("cuda") == torch.device("cuda", 3)
    assert device_of("cpu") == torch.device("cpu")
