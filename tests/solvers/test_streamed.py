"""Solves from store to store: values of the solves in memory, small blocks, killed and resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import linops as lo
from linops.errors import CheckpointError, DTypeError, ShapeError
from linops.stores import NumpyStore
from solvers import cgls, cgls_into, sirt, sirt_into


class Blocks:
    """A store that raises on blocks of more entries than allowed."""

    def __init__(self, array: np.ndarray, most: int = 5) -> None:
        self.held, self.most = array, most
        self.shape, self.dtype = array.shape, array.dtype

    def read(self, slices: Any) -> np.ndarray:
        assert self.held[slices].size <= self.most
        return self.held[slices].copy()

    def write(self, slices: Any, block: np.ndarray) -> None:
        assert self.held[slices].shape == block.shape and block.size <= self.most
        self.held[slices] = block


def problem() -> tuple[lo.LinearOperator, np.ndarray]:
    """M (15 x 6), whose histories are known from an independent program."""
    M = (np.arange(90) % 11 * 0.013 + 0.025).reshape(15, 6)
    M[:6] += np.diag((0.8, 1.1, 0.9, 1.4, 1.2, 1.5))
    y = M @ (-0.3, 0.7, 1.1, 0.2, -0.15, 0.9)
    return lo.Matrix(M), y


_HISTORIES = {
    "cgls": [2.40600369128977, 0.81744582524406, 0.34165578089470, 0.11559865947583,
             0.02946858602816],
    "sirt": [2.40600369128977, 0.92287084924754, 0.62413240859575, 0.43764823424702,
             0.37299690424342],
}  # fmt: skip
_SOLVERS: dict[str, Any] = {"cgls": (cgls, cgls_into), "sirt": (sirt, sirt_into)}


@pytest.mark.parametrize("name", ["cgls", "sirt"])
def test_histories_are_the_known_ones_in_blocks_of_five(name: str, tmp_path: Path) -> None:
    A, y = problem()
    memory, into = _SOLVERS[name]
    target = Blocks(np.full(6, 73.0))
    seen: list[Any] = []
    result = into(
        A, Blocks(y), target, iterations=4, workspace=tmp_path / "w", block_elements=5,
        callback=lambda *given: seen.append(given),
    )  # fmt: skip
    assert result.solution is target and result.iterations == 4 and not result.converged
    np.testing.assert_allclose(result.residual_history, _HISTORIES[name], rtol=2e-11)
    np.testing.assert_allclose(target.held, memory(A, y, iterations=4).solution, rtol=0, atol=1e-11)
    assert [s[:2] for s in seen] == list(enumerate(result.residual_history[1:], 1))
    assert all(s[2] is target for s in seen)


@pytest.mark.slow
def test_endings_and_settings_are_those_in_memory(tmp_path: Path) -> None:
    A, y = problem()
    S = lo.vstack([A, 0.3 * lo.Identity(A.domain)])
    noisy = y + 0.1 * np.cos(np.arange(15))
    cases: list[tuple[str, Any, Any, dict[str, Any]]] = [
        ("cgls", A, y, {"rtol": 0.1}),
        ("cgls", A, y, {"rtol": 1.01}),
        ("cgls", A, np.zeros(15), {}),
        ("cgls", A, noisy, {"normal_rtol": 1e-3}),
        ("cgls", A, noisy, {"damp": 0.4}),
        ("cgls", A, noisy, {"iterations": 60, "damp": 1.5}),
        ("cgls", lo.Identity(lo.Space(2, "float64")), np.array((3.0, 4.0)), {}),
        ("cgls", S, (y, np.zeros(6)), {}),
        ("sirt", A, noisy, {"relaxation": 0.7, "bounds": (0.1, 0.8)}),
        ("sirt", A, y, {"bounds": None, "atol": 0.5}),
    ]
    for k, (name, operator, data, options) in enumerate(cases):
        memory, into = _SOLVERS[name]
        options = {"iterations": 10, **options}
        wanted = memory(operator, data, **options)
        target = np.full(operator.domain.shape, 73.0)
        found = into(operator, data, target, workspace=tmp_path / str(k), **options)
        assert (found.iterations, found.reason, found.converged) == (
            wanted.iterations, wanted.reason, wanted.converged
        ), k  # fmt: skip
        np.testing.assert_allclose(found.residual_history, wanted.residual_history, atol=1e-11)
        np.testing.assert_allclose(target, wanted.solution, rtol=0, atol=1e-11)


_CODE = """
    import os, signal, sys
    import numpy as np, linops as lo, solvers
    from linops.stores import NumpyStore
    folder, name, kill = sys.argv[1], sys.argv[2], int(sys.argv[3])
    rng = np.random.default_rng(3)
    A = lo.Matrix(rng.random((40, 30)).astype("float32"))
    y = A @ rng.random(30).astype("float32")

    class Deadly:
        "A target in whose write number `kill` the process is killed."
        def __init__(self, store):
            self.store, self.shape, self.dtype, self.count = store, store.shape, store.dtype, 0
        def read(self, slices):
            return self.store.read(slices)
        def write(self, slices, block):
            self.count += 1
            if self.count == kill:
                os.kill(os.getpid(), signal.SIGKILL)
            self.store.write(slices, block)

    target = Deadly(NumpyStore(f"{folder}/x.npy", 30))
    solve = getattr(solvers, name + "_into")
    solve(A, y, target, iterations=7, workspace=f"{folder}/w", block_elements=8)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal here")
@pytest.mark.parametrize("name", ["cgls", "sirt"])
def test_a_killed_solve_resumes_to_the_same_bits(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    A = lo.Matrix(rng.random((40, 30)).astype("float32"))
    y = A @ rng.random(30).astype("float32")
    into = _SOLVERS[name][1]
    whole = np.zeros(30, "float32")
    wanted = into(A, y, whole, iterations=7, workspace=tmp_path / "whole", block_elements=8)
    # Four blocks an iteration and four at the start: in the middle of the fourth update.
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_CODE), str(tmp_path), name, "18"], check=False
    )
    assert run.returncode == -signal.SIGKILL
    target = NumpyStore(tmp_path / "x.npy")
    with pytest.raises(FileExistsError, match="resume=True"):
        into(A, y, target, iterations=7, workspace=tmp_path / "w", block_elements=8)
    options = {"iterations": 7, "block_elements": 8, "resume": True}
    found = into(A, y, target, workspace=tmp_path / "w", **options)
    assert found.residual_history == wanted.residual_history and found.reason == wanted.reason
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), whole)
    # On from the last step, in another workspace.
    more = into(A, y, whole, iterations=9, workspace=tmp_path / "more", resume=tmp_path / "w",
                block_elements=8)  # fmt: skip
    again = np.zeros(30, "float32")
    straight = into(A, y, again, iterations=9, workspace=tmp_path / "straight", block_elements=8)
    assert more.residual_history == straight.residual_history
    np.testing.assert_array_equal(whole, again)


def test_nothing_is_made_where_something_is_wrong(tmp_path: Path) -> None:
    A, y = problem()
    target = np.full(6, 73.0)
    late = y.copy()
    late[-1] = np.nan
    fixed = target.copy()
    fixed.flags.writeable = False
    torch = pytest.importorskip("torch")
    tracked = torch.ones(15, dtype=torch.float64, requires_grad=True)
    cases: list[tuple[Any, Any, dict[str, Any], type[Exception], str]] = [
        (late, target, {}, ValueError, r"source\[14\] is not finite"),
        (y, target, {"block_elements": 0}, ValueError, "block_elements"),
        (y, target, {"iterations": -1}, ValueError, "iterations"),
        (y, target, {"checkpoint_every": 0}, ValueError, "checkpoint_every"),
        (y, target, {"callback": 7}, ValueError, "callback"),
        (y, fixed, {}, DTypeError, "read-only"),
        (y, np.full((1, 1), 73.0), {}, ShapeError, "target"),
        (y, target.astype("float32"), {}, DTypeError, "create it with dtype float64"),
        (y[None], target[None], {}, ShapeError, "batch axes"),
        (np.full(15, 73.0)[:15], None, {}, DTypeError, "target is a NoneType"),
        (tracked, target, {}, DTypeError, "requires a gradient"),
        (y, target, {"workspace": tmp_path / "no" / "w"}, FileNotFoundError, "is no folder"),
        (y, target, {"resume": True}, CheckpointError, "holds no step"),
    ]
    for source, goal, options, error, words in cases:
        for into in (cgls_into, sirt_into):
            asked = {"iterations": 3, "workspace": tmp_path / "w", "block_elements": 5, **options}
            with pytest.raises(error, match=words):
                into(A, source, goal, **asked)
            assert not os.listdir(tmp_path) and (target == 73).all()
    square = lo.Identity(lo.Space(6, "float64"))
    with pytest.raises(ShapeError, match="the same"):
        cgls_into(square, target, target, iterations=1, workspace=tmp_path / "w")
    with pytest.raises(ValueError, match="no tag 'nonnegative'"):
        sirt_into(-1.0 * square, target, target[:], iterations=1, workspace=tmp_path / "w")
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="what is in it stays"):
        cgls_into(A, y, target, iterations=3, workspace=tmp_path / "w")
    assert (tmp_path / "w" / "notes.txt").read_text() == "mine" and (target == 73).all()


def test_steps_of_another_solve_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    A, y = problem()
    x = np.zeros(6)
    options: dict[str, Any] = {"iterations": 3, "workspace": tmp_path / "w"}
    cgls_into(A, y, x, **options)
    # A solve that made no iteration is resumed too.
    for k, into in enumerate((cgls_into, sirt_into)):
        start, straight = np.zeros(6), np.zeros(6)
        into(A, y, start, iterations=0, workspace=tmp_path / f"s{k}")
        into(A, y, start, iterations=2, workspace=tmp_path / f"s{k}", resume=True)
        into(A, y, straight, iterations=2, workspace=tmp_path / f"t{k}")
        np.testing.assert_array_equal(start, straight)
    x[:] = 73
    for data, changed, words in (
        (y + 1, {}, "measurements differs"),
        (y, {"damp": 0.1}, "setting damp differs"),
        (y, {"iterations": 2}, "past iterations=2"),
        (y, {"block_elements": 5}, "block_elements differs"),
    ):
        with pytest.raises(CheckpointError, match=words):
            cgls_into(A, data, x, **{**options, "resume": True, **changed})
    with pytest.raises(CheckpointError, match="algorithm"):
        sirt_into(A, y, x, **options, resume=True)
    with pytest.raises(CheckpointError, match="operator differs"):
        cgls_into(2.0 * A, y, x, **options, resume=True)
    step = tmp_path / "w" / "step-000003"
    held = np.load(step / "r-0.npy")
    np.save(step / "r-0.npy", held + 1e-9)
    with pytest.raises(CheckpointError, match="damaged"):
        cgls_into(A, y, x, **{**options, "iterations": 5}, resume=True)
    assert (x == 73).all() and sorted(os.listdir(tmp_path / "w")) == ["step-000003"]
