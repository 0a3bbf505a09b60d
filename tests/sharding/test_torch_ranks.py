"""Plans on real processes that talk by gloo: 2 and 4 of them run the checks of `rank_checks.py`."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

FOLDER = Path(__file__).resolve().parent
CHECKS = FOLDER / "rank_checks.py"
ROOT = FOLDER.parent.parent


def _names() -> list[str]:
    """The checks, without importing torch here."""
    tree = ast.parse(CHECKS.read_text())
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(d, ast.Name) and d.id == "check" for d in node.decorator_list)
    ]


_RESULTS: dict[int, list[dict[str, str]]] = {}


def _results(world: int, folder: Path) -> list[dict[str, str]]:
    """What each rank found; the processes run once for all checks."""
    if world not in _RESULTS:
        _RESULTS[world] = _run(world, folder)
    return _RESULTS[world]


def _run(world: int, folder: Path) -> list[dict[str, str]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.update(dict.fromkeys(("OMP_NUM_THREADS", "LINOPS_NUM_THREADS"), "1"))
    command = [sys.executable, "-W", "ignore", str(CHECKS)]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(world), str(folder)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    printed = []
    try:
        printed = [rank.communicate(timeout=400)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    found = []
    for rank in range(world):
        file = folder / f"{rank}.json"
        found.append(json.loads(file.read_text()) if file.exists() else {"start": printed[rank]})
    return found


@pytest.mark.parametrize(
    "world",
    [2, 4, pytest.param(1, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("name", _names())
def test_on_every_rank(name: str, world: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    results = _results(world, tmp_path_factory.mktemp(f"ranks{world}"))
    failures = [
        f"rank {rank}, {which}:\n{text}"
        for rank, found in enumerate(results)
        for which, text in found.items()
        if text and which in (name, "start")
    ]
    assert not failures, "\n".join(failures)
    assert all(name in found for found in results), "a check before this one ended the ranks"


def test_a_latecomer_is_named(tmp_path_factory: pytest.TempPathFactory) -> None:
    results = _results(2, tmp_path_factory.mktemp("ranks2"))
    assert [found.get("a_latecomer_is_named") for found in results] == ["", ""]
