"""Where compiled code cannot be kept on disk it is compiled in memory, with one warning."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

import linops
from linops.compiled import caching

_PROJECT = """
import warnings
import numpy as np
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    from geometries import Detector, Grid, ParallelBeam, Projector
    from linops.compiled.caching import kept_njit
    from geometries.kernels.compiling import compiled
    one, two = compiled(lambda x: x + 1), compiled(lambda x: x - 1)
    import geometries.kernels.gather
print(one(41), two(43), [str(w.message) for w in told].__len__(), told[0].message)
"""


@pytest.mark.slow
def test_no_place_for_a_cache(tmp_path: Path) -> None:
    root = Path(linops.__file__).parent.parent
    for name in ("linops", "geometries"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(root / name, tmp_path / name, ignore=ignored)
    # Whoever is root may write anywhere: plain files stand in the way of folders.
    for folder, _, _ in os.walk(tmp_path):
        (Path(folder) / "__pycache__").touch()
    home = tmp_path / "home"
    home.mkdir()
    (home / ".cache").touch()
    kept = {k: v for k, v in os.environ.items() if k not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    kept |= {"PYTHONPATH": str(tmp_path), "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    (tmp_path / "project.py").write_text(_PROJECT)
    done = subprocess.run(
        [sys.executable, "project.py"], env=kept, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("42 42 1 compiled code is not kept on disk")
    assert "NUMBA_CACHE_DIR" in done.stdout


def test_a_folder_that_is_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full, or a folder that goes between import and first call."""
    monkeypatch.setattr(caching, "_told", [])
    function = caching.kept_njit()(_plus_one)
    monkeypatch.setattr(function._cache._cache_file, "save", _full)
    monkeypatch.setattr(function._cache._cache_file, "load", _full)
    with pytest.warns(RuntimeWarning, match="No space left on device.*NUMBA_CACHE_DIR") as told:
        assert function(1) == 2
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert function(1.5) == 2.5


def test_processes_that_share_a_folder_never_load_each_others_code(tmp_path: Path) -> None:
    """Two compile one function for two types at one time; one is stopped in the middle."""

    def files(stamp: int) -> Any:
        return caching._Files(str(tmp_path), "function", stamp)

    index = tmp_path / "function.nbi"
    files(1).save("float32", "code of float32")
    first = index.read_bytes()
    # Another process had read the folder before, when it was empty.
    index.unlink()
    files(1).save("float64", "code of float64")
    assert files(1).load("float64") == "code of float64"
    for left in (first, index.read_bytes()):
        index.write_bytes(left)
        found = {name: files(1).load(name) for name in ("float32", "float64")}
        assert all(code in (None, f"code of {name}") for name, code in found.items())

    # The source is edited, and a process is stopped, or its disk is full, before the code is there.
    edited = files(2)
    edited._save_data = _full
    with pytest.raises(OSError, match="No space"):
        edited.save("float32", "code after the edit")
    assert files(2).load("float32") is None


def test_compiled_functions_use_those_files() -> None:
    assert isinstance(caching.kept_njit()(_plus_one)._cache._cache_file, caching._Files)


def _full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def _plus_one(x: float) -> float:
    return x + 1
