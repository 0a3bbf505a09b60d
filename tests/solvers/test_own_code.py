"""What a user's own code is made of is part of the problem: globals, classes, methods, sets."""

from __future__ import annotations

import functools
import subprocess
import sys
import types

import numpy as np
import pytest

import linops as lo
from linops.errors import CheckpointError
from solvers import cgls
from solvers.fingerprint import fingerprint

SPACE = lo.Space(3, "float64")
BODY = "def f(x):\n    return x * {}\n"


class Gain:
    def __init__(self, gain):
        self.gain = gain


def module(gain):
    made = types.ModuleType("gains")
    made.gain = gain
    return made


def leaf(gain):
    """An operator of a class whose method says what it does, as in a script that was edited."""
    source = (
        "class Scaled(lo.LinearOperator):\n"
        "    def __init__(self): super().__init__(SPACE, SPACE)\n"
        f"    def _apply(self, x): return {gain} * x\n"
        f"    def _apply_adjoint(self, y): return {gain} * y\n"
    )
    names = {"lo": lo, "SPACE": SPACE, "__name__": __name__}
    exec(source, names)
    return names["Scaled"]()


def constant(gain):
    return type("Constant", (Gain,), {"level": gain, "__module__": __name__})(0)


def reading(body, **names):
    """A function that reads globals, as the functions of a script do."""
    names["__name__"] = __name__
    exec(BODY.format(body), names)
    return names["f"]


CASES = {
    "an object": lambda k: reading("settings.gain", settings=Gain(k)),
    "a namespace": lambda k: reading("settings.gain", settings=types.SimpleNamespace(gain=k)),
    "a module": lambda k: reading("settings.gain", settings=module(k)),
    "a class": lambda k: reading("Settings.gain", Settings=type("Settings", (), {"gain": k})),
    "a set": lambda k: reading("max(gains)", gains={1.0, k}),
    "a partial": lambda k: reading("g(1)", g=functools.partial(np.multiply, k)),
    "a constant of a class": constant,
    "a method": leaf,
    "objects in a set": lambda k: {Gain(k)},
    "objects in an array": lambda k: np.array([Gain(k)], object),
    "the kind of a key": lambda k: {k: 1} if k == 2 else {str(2): 1},
}


@pytest.mark.parametrize("name", CASES)
def test_another_value_is_another_problem(name):
    first, again, other = (fingerprint(CASES[name](k)) for k in (2, 2, 3))
    assert first == again
    assert first != other


def test_an_operator_whose_global_has_changed_is_refused(tmp_path):
    def solve(gain, **options):
        f = reading("settings.gain", settings=Gain(gain))
        A = lo.from_functions(f, f, domain=SPACE)
        return cgls(A, np.ones(3), iterations=2, **options)

    solve(2.0, checkpoint_directory=tmp_path)
    assert solve(2.0, resume=tmp_path).iterations >= 1
    with pytest.raises(CheckpointError, match="operator differs"):
        solve(3.0, resume=tmp_path)


@pytest.mark.slow
def test_another_process_finds_the_same(tmp_path):
    """Whatever the order of its sets and the modules that it has imported."""
    script = tmp_path / "script.py"
    script.write_text(
        "import importlib, sys\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "from solvers.fingerprint import fingerprint\n"
        "class Gain:\n"
        "    names = {'a', 'b', 'c'}\n"
        "    def __call__(self, x): return x in ('a', 'b') or x in {'d', 'e', 'f'}\n"
        "gain = Gain()\n"
        "import numpy as np\n"
        "def read(x): return sys.modules['numpy'].pi * np.e * x\n"
        "print(fingerprint([read, gain, lambda x: gain(x), {'x', 'y', 'z'}]))\n"
    )
    found = {
        subprocess.run(
            [sys.executable, str(script), *more],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed, more in (("1", ()), ("2", ("wave", "mailbox")))
    }
    assert len(found) == 1
