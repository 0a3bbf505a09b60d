"""Ranges of the extras, the pinned pair of JAX, and the sums that 0.10.2 gets wrong on the CPU.

jax#39103: there a fused multiply-and-reduce gives values wrong by up to 8e-3, at sizes above
16384 and depending on how the work falls on threads, which is why several sizes are tried.
"""

from __future__ import annotations

import os
import re
import tomllib
import warnings
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import linops as lo
from linops import jax_sums

jax = pytest.importorskip("jax")

PROJECT = Path(__file__).resolve().parent.parent


def _extras() -> dict[str, list[str]]:
    with (PROJECT / "pyproject.toml").open("rb") as file:
        extras: dict[str, list[str]] = tomllib.load(file)["project"]["optional-dependencies"]
    return extras


def _pins() -> dict[str, str]:
    text = (PROJECT / "constraints.txt").read_text()
    return dict(re.findall(r"^([\w.-]+)==(\S+)$", text, flags=re.MULTILINE))


def test_extras_are_ranges_that_hold_what_is_pinned() -> None:
    """Exact versions are for constraints alone: an extra must not replace a user's build."""
    requirements = [Requirement(one) for extra in _extras().values() for one in extra]
    ranges = {one.name: one.specifier for one in requirements if one.name != "linops"}
    assert {"jax", "jaxlib", "torch"} <= set(ranges)
    pins = {canonicalize_name(name): pinned for name, pinned in _pins().items()}
    for name, specifier in ranges.items():
        assert not [part for part in specifier if part.operator in ("==", "===")], name
        assert pins[canonicalize_name(name)] in specifier, name
    for name in ("jax", "jaxlib"):
        assert "0.10.2" not in ranges[name] and "0.10.3" in ranges[name]
    assert "2.14.1+cu128" in ranges["torch"] and "2.13.0+cpu" in ranges["torch"]
    assert _pins()["jax"] == _pins()["jaxlib"] == jax_sums.TESTED


def test_the_pinned_pair_is_installed() -> None:
    assert {name: version(name) for name in ("jax", "jaxlib")} == {
        name: _pins()[name] for name in ("jax", "jaxlib")
    }


@pytest.mark.parametrize(
    ("installed", "error", "silenced", "message"),
    [
        ("0.10.2", 0.0, False, "jax 0.10.2 sums wrongly on the CPU: install jax==0.10.1"),
        ("0.10.2", 0.0, True, None),
        ("0.99.0", 8e-3, False, "sums of jax 0.99.0 on this CPU are off by 8.0e-03"),
        ("0.99.0", 1e-7, False, None),
        ("0.10.1", 8e-3, False, None),
    ],
)
def test_wrong_sums_are_told_once_where_they_are_used(
    installed: str, error: float, silenced: bool, message: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(jax, "__version__", installed)
    monkeypatch.setattr(jax_sums, "reduction_error", lambda: error)
    monkeypatch.setenv("LINOPS_ALLOW_UNSAFE_JAX", "1" if silenced else "")
    assert jax.devices() and jax_sums.FLAG not in os.environ.get("XLA_FLAGS", "")
    jax_sums.warn_once.cache_clear()
    A, x = lo.Matrix(np.eye(3, dtype="float32")), jax.numpy.ones(3)
    try:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            jax.jit(lambda x: A @ x)(x)
            A @ np.ones(3, "float32")
            A @ x
        told = [one for one in found if "sums" in str(one.message)]
        assert len(told) == (message is not None)
        assert message is None or str(told[0].message).startswith(message)
    finally:
        jax_sums.warn_once.cache_clear()
        monkeypatch.undo()
        jax_sums.warn_once()


@pytest.mark.parametrize("x64", [False, True])
def test_fused_reductions_are_right(x64: bool) -> None:
    with jax.enable_x64(x64):
        error = jax_sums.reduction_error()
    assert error <= 1e-6, (
        f"jax {jax.__version__} sums wrongly on this machine (relative error {error:.1e}): "
        "install the pair that constraints.txt pins"
    )


def test_eight_host_devices() -> None:
    assert len(jax.devices("cpu")) == 8


def test_products_of_many_axes_are_summed_flat() -> None:
    """Multiply-and-reduce of rank 7 and above crashes or hangs in 0.10.2 and 0.11.0 (jax#39257)."""
    space = lo.Space((2,) * 8, "float64")
    a, b = space.random(0), space.random(1)
    with jax.enable_x64(True):
        traced = jax.make_jaxpr(space.inner)(a, b)
        assert float(jax.jit(space.inner)(a, b)) == pytest.approx(float(np.sum(a * b)), rel=1e-14)
    assert not re.findall(r"f64\[(?:2,){6,}2\] = mul", str(traced)), traced


def test_no_map_is_split_into_batches() -> None:
    """`lax.map(..., batch_size=)` has given wrong results (jax#27591): nothing uses it."""
    wings = ("linops", "geometries", "sharding", "solvers")
    files = [path for wing in wings for path in (PROJECT / wing).rglob("*.py")]
    calls = [path for path in files if re.search(r"lax\.map\([^#]*?batch_size=", path.read_text())]
    assert len(files) > 100 and calls == []
