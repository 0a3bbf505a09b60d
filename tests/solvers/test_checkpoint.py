"""Checkpoints: every solver goes on bit for bit, and what does not fit is refused by name."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

import linops as lo
from linops.errors import CheckpointError
from linops.functionals import QGGMRF
from solvers import cgls, sirt, step_files, tv, vcd

from .system import Counting, golden_data, golden_matrix, golden_operator, to


def run_vcd(A, y, **options):
    return vcd(A, y, QGGMRF(A.domain, sigma_x=0.3), partitions=[1, 2, 3], **options)


def run_pdhg(A, y, **options):
    return tv(A, y, weight=0.1, method="pdhg", **options)


def run_adam(A, y, **options):
    return tv(A, y, weight=0.1, **options)


def run_damped(A, y, **options):
    return cgls(A, y, damp=0.2, **options)


SOLVERS = [cgls, run_damped, sirt, run_adam, run_pdhg, run_vcd]


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    ("namespace", "dtype"),
    [("numpy", "float32"), ("numpy", "float64"), ("torch", "float64"), ("jax", "float32")],
)
def test_two_of_five_and_on_is_five(solver, dtype, namespace, tmp_path):
    A, y = golden_operator((2, 3), dtype), to(golden_data().astype(dtype), namespace)
    whole = solver(A, y, iterations=5)
    solver(A, y, iterations=2, checkpoint_directory=tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["step-000001", "step-000002"]
    for place in (tmp_path, tmp_path / "step-000002", tmp_path / "step-000002" / "rank-00000"):
        resumed = solver(A, y, iterations=5, resume=place)
        np.testing.assert_array_equal(np.asarray(resumed.solution), np.asarray(whole.solution))
        assert type(resumed.solution) is type(whole.solution)
        assert resumed.residual_history == whole.residual_history
        assert resumed.histories == whole.histories
        assert (resumed.iterations, resumed.reason) == (5, whole.reason)
    # Going on in the same place adds steps.
    solver(A, y, iterations=4, resume=tmp_path, checkpoint_directory=tmp_path)
    assert sorted(os.listdir(tmp_path))[-1] == "step-000004"


def test_home_is_where_its_sign_says(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    A, y = golden_operator((2, 3), "float64"), golden_data()
    whole = cgls(A, y, iterations=3, checkpoint_directory="~/steps")
    assert sorted(os.listdir(tmp_path)) == ["steps"]
    resumed = cgls(A, y, iterations=3, resume="~/steps/step-000001")
    np.testing.assert_array_equal(resumed.solution, whole.solution)


@pytest.mark.parametrize("solver", [cgls, sirt, run_adam])
def test_batches_and_starts_resume(solver, tmp_path):
    A = golden_operator((2, 3))
    y = np.stack([golden_data(), np.zeros(15), np.cos(np.arange(15.0)) ** 2])
    options = dict(x0=np.full((2, 3), 0.1), rtol=0.3)
    whole = solver(A, y, iterations=6, **options)
    solver(A, y, iterations=3, checkpoint_directory=tmp_path, **options)
    resumed = solver(A, y, iterations=6, resume=tmp_path, **options)
    np.testing.assert_array_equal(resumed.solution, whole.solution)
    assert resumed.residual_history == whole.residual_history
    assert resumed.reason == whole.reason


def test_product_spaces_resume(tmp_path):
    A = lo.hstack([golden_operator(), 0.5 * golden_operator()])
    whole = cgls(A, golden_data(), iterations=5)
    cgls(A, golden_data(), iterations=2, checkpoint_directory=tmp_path)
    resumed = cgls(A, golden_data(), iterations=5, resume=tmp_path)
    for a, b in zip(resumed.solution, whole.solution, strict=True):
        np.testing.assert_array_equal(a, b)


def test_another_namespace_goes_on(tmp_path):
    A = golden_operator()
    whole = cgls(A, golden_data(), iterations=5)
    cgls(A, to(golden_data(), "torch"), iterations=2, checkpoint_directory=tmp_path)
    resumed = cgls(A, golden_data(), iterations=5, resume=tmp_path)
    np.testing.assert_allclose(resumed.solution, whole.solution, rtol=1e-12)


def test_interval_retention_and_the_last_step(tmp_path):
    A, y = golden_operator(), golden_data()
    sirt(A, y, iterations=7, checkpoint_directory=tmp_path / "a", checkpoint_every=3)
    assert sorted(os.listdir(tmp_path / "a")) == ["step-000003", "step-000006", "step-000007"]
    sirt(A, y, iterations=7, checkpoint_directory=tmp_path / "b", keep=2)
    assert sorted(os.listdir(tmp_path / "b")) == ["step-000006", "step-000007"]
    # Of runs before this one too; steps of other solves stay.
    for n in (1, 2, 3, 4):
        resume = tmp_path / "d" if n > 1 else None
        cgls(A, y, iterations=3 * n, checkpoint_directory=tmp_path / "d", resume=resume, keep=2)
        assert len(os.listdir(tmp_path / "d")) == 2
    assert sorted(os.listdir(tmp_path / "d")) == ["step-000011", "step-000012"]
    sirt(A, y, iterations=9, checkpoint_directory=tmp_path / "d", keep=1)
    assert sorted(os.listdir(tmp_path / "d")) == ["step-000009", "step-000011", "step-000012"]
    sirt(
        A,
        y,
        iterations=7,
        checkpoint_directory=tmp_path / "c",
        checkpoint_every=4,
        callback=lambda k, r, x: k != 2,
    )
    assert sorted(os.listdir(tmp_path / "c")) == ["step-000002"]


def test_a_step_is_never_replaced(tmp_path):
    A, y = golden_operator(), golden_data()
    cgls(A, y, iterations=2, checkpoint_directory=tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(CheckpointError, match="never replaced"):
        cgls(A, y, iterations=3, checkpoint_directory=tmp_path)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(
    "change",
    ["measurement", "matrix", "spacing", "dtype", "algorithm", "damp", "x0", "target"],
)
def test_what_differs_is_named(change, tmp_path):
    matrix, y = golden_matrix(), golden_data()
    cgls(Counting(matrix), y, iterations=3, checkpoint_directory=tmp_path)
    solver, options, expected = cgls, dict(iterations=5), change
    if change == "measurement":
        y = y.copy()
        y[4] += 1e-12
    if change == "matrix":
        matrix = matrix.copy()
        matrix[2, 2] += 1e-12
        expected = "operator"
    if change == "dtype":
        matrix, expected = matrix.astype("float32"), "domain"
    if change == "algorithm":
        solver = sirt
    if change == "damp":
        options["damp"], expected = 0.1, "setting damp"
    if change == "x0":
        options["x0"] = np.zeros(6)
    if change == "target":
        options["iterations"], expected = 2, "total target"
    A = Counting(matrix)
    if change == "spacing":
        A = lo.Matrix(matrix, domain=lo.Space(6, "float64", spacing=0.5))
        expected = "operator"
    with pytest.raises(CheckpointError, match=expected):
        solver(A, y, resume=tmp_path, **options)
    if isinstance(A, Counting):
        assert A.calls == {"forward": 0, "adjoint": 0}


def test_tolerances_callbacks_and_iterations_may_change(tmp_path):
    A, y = golden_operator(), golden_data()
    cgls(A, y, iterations=3, rtol=0.2, checkpoint_directory=tmp_path)
    resumed = cgls(A, y, iterations=9, rtol=1e-9, callback=lambda *_: None, resume=tmp_path)
    assert resumed.converged
    np.testing.assert_allclose(golden_matrix() @ resumed.solution, y, rtol=1e-7)


@pytest.mark.parametrize("name", ["sampler", "closure"])
def test_functions_enter_by_what_they_do(name, tmp_path):
    M = golden_matrix()

    def operator(factor, turned=False):
        if name == "sampler" and turned:
            forward = lambda x: (M @ x) * factor + 0  # noqa: E731
        else:
            forward = lambda x: (M @ x) * factor  # noqa: E731
        return lo.from_functions(
            forward,
            lambda y: factor * (M.T @ y),
            domain=lo.Space(6, "float64"),
            codomain=lo.Space(15, "float64"),
        )

    cgls(operator(1.0), golden_data(), iterations=2, checkpoint_directory=tmp_path)
    cgls(operator(1.0), golden_data(), iterations=3, resume=tmp_path)
    other = operator(1.0, turned=True) if name == "sampler" else operator(2.0)
    with pytest.raises(CheckpointError, match="operator"):
        cgls(other, golden_data(), iterations=3, resume=tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        "zero bytes",
        "truncated",
        "one bit",
        "missing array",
        "list at the root",
        "no json",
        "null spec",
        "list spec",
        "schema",
        "iteration",
        "escape",
        "pickle",
        "nothing",
        "deep",
        "history",
        "state renamed",
        "iteration of another step",
        "huge header",
        "bit in a header",
        "another array",
    ],
)
def test_damage_is_found_and_named(damage, tmp_path):
    cgls(golden_operator(), golden_data(), iterations=2, checkpoint_directory=tmp_path)
    folder = tmp_path / "step-000002" / "rank-00000"
    array, metadata = folder / "p.npy", folder / "metadata.json"
    content, named = json.loads(metadata.read_text()), "metadata.json"
    raw = array.read_bytes()
    if damage == "zero bytes":
        array.write_bytes(b"")
        named = "p.npy"
    elif damage == "truncated":
        array.write_bytes(raw[:-5])
        named = "p.npy"
    elif damage == "one bit":
        array.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
        named = "p.npy"
    elif damage == "missing array":
        array.unlink()
        named = "p.npy"
    elif damage == "pickle":
        np.save(array, np.array([{}], object), allow_pickle=True)
        named = "p.npy"
    elif damage == "list at the root":
        metadata.write_text("[1]")
    elif damage == "no json":
        metadata.write_text("{")
    elif damage == "nothing":
        metadata.write_text("{}")
    elif damage == "deep":
        metadata.write_text("[" * 200000)
    elif damage == "history":  # one bit of a digit
        text = metadata.read_text()
        k = next(i for i in range(text.index('"history"') + 10, len(text)) if text[i].isdigit())
        metadata.write_text(text[:k] + chr(ord(text[k]) ^ 1) + text[k + 1 :])
    elif damage == "state renamed":
        content["state"]["z"] = content["state"].pop("x")
        metadata.write_text(json.dumps(content))
    elif damage == "iteration of another step":
        (tmp_path / "step-000002").rename(tmp_path / "step-000004")
        folder = tmp_path / "step-000004" / "rank-00000"
        array, metadata = folder / "p.npy", folder / "metadata.json"
    elif damage == "huge header":  # 80 TB
        array.write_bytes(raw.replace(b"(6,), }" + b" " * 13, b"(60000000000000,), }"))
        named = "p.npy"
    elif damage == "bit in a header":
        array.write_bytes(raw.replace(b"'shape': (", b"'shape': ", 1).replace(b", }", b"(, }", 1))
        named = "p.npy"
    elif damage == "another array":
        (folder / "p.npy").write_bytes((folder / "x.npy").read_bytes())
        named = "p.npy"
    else:
        if damage == "null spec":
            content["state"]["x"] = None
        elif damage == "list spec":
            content["state"]["x"] = []
        elif damage == "schema":
            content["schema"] = 99
        elif damage == "iteration":
            content["iteration"] = 1
        elif damage == "escape":
            content["state"]["x"]["arrays"][0]["file"] = "../../step-000001/rank-00000/x"
        metadata.write_text(json.dumps(content))
    with pytest.raises(CheckpointError) as caught:
        cgls(golden_operator(), golden_data(), iterations=5, resume=tmp_path)
    assert str(folder / named) in str(caught.value)


def test_what_a_step_holds_is_what_its_solver_keeps(tmp_path):
    A, y = golden_operator(), golden_data()
    cgls(A, y, iterations=2, checkpoint_directory=tmp_path)
    folder = tmp_path / "step-000002" / "rank-00000"
    metadata, source = step_files.read_metadata(folder)
    for change, said in (
        (lambda m: m["state"].pop("p"), "it holds the state g, r, x, the solve has g, p, r, x"),
        (lambda m: m["history"].__setitem__(1, "a"), "history is none of this solve"),
        (lambda m: m.update(ended=[[[9], "x", True]]), "history is none of this solve"),
        (lambda m: m["state"].update(r=m["state"]["x"]), "expects \\(15,\\)"),
    ):
        edited = json.loads(json.dumps(metadata))
        change(edited)
        source.write_text(json.dumps(edited | {"digest": step_files._digest(edited)}))
        with pytest.raises(CheckpointError, match=said) as caught:
            cgls(A, y, iterations=5, resume=tmp_path)
        assert str(folder) in str(caught.value)


def test_incomplete_steps_do_not_exist(tmp_path):
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        cgls(golden_operator(), golden_data(), iterations=5, resume=tmp_path)
    cgls(golden_operator(), golden_data(), iterations=3, checkpoint_directory=tmp_path)
    (tmp_path / "step-000003" / "rank-00000" / "metadata.json").unlink()
    resumed = cgls(golden_operator(), golden_data(), iterations=2, resume=tmp_path)
    assert resumed.iterations == 2
    # The next run into the folder takes its place.
    cgls(golden_operator(), golden_data(), iterations=4, resume=tmp_path,
         checkpoint_directory=tmp_path)  # fmt: skip
    assert sorted(os.listdir(tmp_path)) == [f"step-{k:06d}" for k in (1, 2, 3, 4)]


def test_a_failing_write_publishes_nothing(tmp_path, monkeypatch):
    A, y = golden_operator(), golden_data()
    calls = []

    def failing(file, array, **options):
        calls.append(1)
        if len(calls) > 6:
            raise OSError("no space left on device")
        file.write(b"")
        np.lib.format.write_array(file, array)

    monkeypatch.setattr(np, "save", failing)
    with pytest.raises(OSError, match=r"step-000002 could not be written: no space"):
        cgls(A, y, iterations=3, checkpoint_directory=tmp_path)
    monkeypatch.undo()
    resumed = cgls(A, y, iterations=4, resume=tmp_path)
    assert resumed.residual_history == cgls(A, y, iterations=4).residual_history
    assert os.listdir(tmp_path) == ["step-000001"]


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    def full(file, array, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OSError, match="step-000001") as caught:
        cgls(golden_operator(), golden_data(), iterations=3, checkpoint_directory=tmp_path)
    assert caught.value.errno == errno.ENOSPC and not os.listdir(tmp_path)


@pytest.mark.parametrize("place", ["a file", "in a file", "no rights"])
def test_a_folder_that_cannot_be_written_is_told_before_any_product(place, tmp_path, monkeypatch):
    A, root = Counting(golden_matrix()), tmp_path / "steps"
    if place == "a file":
        root.write_text("mine")
    elif place == "in a file":
        root.write_text("mine")
        root = root / "deeper"
    else:
        make = Path.mkdir

        def forbidden(path, *args, **options):
            if path.parent == root:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            make(path, *args, **options)

        monkeypatch.setattr(Path, "mkdir", forbidden)
    with pytest.raises(CheckpointError, match="cannot be written") as caught:
        cgls(A, golden_data(), iterations=3, checkpoint_directory=root)
    assert str(root) in str(caught.value) and A.calls == {"forward": 0, "adjoint": 0}


@pytest.mark.slow
def test_a_solve_killed_while_it_saves_goes_on_into_the_same_folder(tmp_path):
    script = textwrap.dedent(
        """
        import os, signal, sys
        from pathlib import Path
        import numpy as np
        import linops as lo
        from solvers import cgls, sirt, tv, vcd

        A = lo.Matrix(np.random.default_rng(0).random((15, 6)), domain=lo.Space(6, "float64"))
        y, save = A @ np.arange(6.0), np.save
        solvers = {
            "cgls": cgls, "sirt": sirt, "vcd": vcd,
            "adam": lambda *a, **o: tv(*a, weight=0.1, learning_rate=0.1, **o),
            "pdhg": lambda *a, **o: tv(*a, weight=0.1, method="pdhg", **o),
        }

        def die(*arguments, **options):
            save(*arguments, **options)
            os.kill(os.getpid(), signal.SIGKILL)

        for name, solve in solvers.items():
            root = Path(sys.argv[1], name)
            if not (child := os.fork()):
                armed = lambda k, *_: setattr(np, "save", die) if k == 3 else None
                solve(A, y, iterations=8, checkpoint_directory=root, callback=armed)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == signal.SIGKILL, name
            left = sorted(p.name for p in root.iterdir())
            assert len(left) == 4 and left[1:] == [f"step-{k:06d}" for k in (1, 2, 3)], left
            found = solve(A, y, iterations=8, checkpoint_directory=root, resume=root)
            assert np.array_equal(found.solution, solve(A, y, iterations=8).solution), name
            names = sorted(p.name for p in root.iterdir())
            assert names == [f"step-{k:06d}" for k in range(1, 9)], names
        """
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env=dict(os.environ, PYTHONPATH=os.getcwd()),
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr


def test_an_exception_in_a_callback_keeps_the_step(tmp_path):
    def fail(k, r, x):
        if k == 3:
            raise KeyError("mine")

    with pytest.raises(KeyError):
        sirt(
            golden_operator(),
            golden_data(),
            iterations=9,
            callback=fail,
            checkpoint_directory=tmp_path,
        )
    resumed = sirt(golden_operator(), golden_data(), iterations=9, resume=tmp_path)
    whole = sirt(golden_operator(), golden_data(), iterations=9)
    assert resumed.residual_history == whole.residual_history


@pytest.mark.slow
def test_a_killed_solve_goes_on_bit_for_bit(tmp_path):
    script = textwrap.dedent(
        """
        import sys
        import numpy as np
        import linops as lo
        from solvers import cgls

        M = np.random.default_rng(0).random((300, 200))
        y = M @ np.ones(200)
        print("ready", flush=True)
        options = dict(resume=sys.argv[2]) if len(sys.argv) > 2 else {}
        cgls(lo.Matrix(M), y, iterations=5000, checkpoint_directory=sys.argv[1], keep=3, **options)
        """
    )
    for delay in (0.15, 0.4):
        root = tmp_path / str(delay)
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(root)],
            stdout=subprocess.PIPE,
            cwd=os.getcwd(),
            env=dict(os.environ, PYTHONPATH=os.getcwd()),
        )
        process.stdout.readline()
        deadline = time.monotonic() + 20
        while (
            not list(root.glob("step-*/rank-00000/metadata.json")) and time.monotonic() < deadline
        ):
            time.sleep(0.01)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        M = np.random.default_rng(0).random((300, 200))
        A, y = lo.Matrix(M), M @ np.ones(200)
        at = cgls(A, y, iterations=5000, resume=root, callback=lambda *_: False)
        whole = cgls(A, y, iterations=at.iterations)
        assert at.residual_history == whole.residual_history
        np.testing.assert_array_equal(at.solution, whole.solution)
