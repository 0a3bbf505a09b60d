"""The pinned pair of JAX, and a probe for the sums that 0.10.2 gets wrong on the CPU.

jax#39103: there a fused multiply-and-reduce gives values wrong by up to 8e-3, at sizes above
16384 and depending on how the work falls on threads, which is why several sizes are tried.
"""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import linops as lo

jax = pytest.importorskip("jax")

PROJECT = Path(__file__).resolve().parent.parent


def _pins() -> dict[str, str]:
    with (PROJECT / "pyproject.toml").open("rb") as file:
        extra = tomllib.load(file)["project"]["optional-dependencies"]["jax"]
    return dict(requirement.split("==") for requirement in extra)


def test_jax_and_jaxlib_are_the_pinned_pair() -> None:
    pins = _pins()
    assert set(pins) == {"jax", "jaxlib"} and len(set(pins.values())) == 1
    assert {name: version(name) for name in pins} == pins


def test_constraints_hold_the_same_pair() -> None:
    text = (PROJECT / "constraints.txt").read_text()
    assert dict(re.findall(r"^(jax|jaxlib)==(\S+)$", text, flags=re.MULTILINE)) == _pins()


def reduction_error(dtype: str) -> float:
    """Worst error, relative to the largest value, of a fused square-and-sum over short rows."""
    import jax.numpy as jnp

    worst = 0.0
    for n in (16385, 32769, 40000):
        i = jnp.arange(n, dtype=dtype)
        x, m = jnp.stack((i, 0 * i, 0 * i), 1), jnp.eye(3, dtype=dtype)

        def squares(x: Any, m: Any = m) -> Any:
            return jax.vmap(lambda row: jnp.sum((m @ row) ** 2))(x)

        got = np.asarray(jax.jit(squares)(x), np.float64)
        right = np.asarray(x, np.float64)[:, 0] ** 2
        worst = max(worst, float(abs(got - right).max() / right.max()))
    return worst


@pytest.mark.parametrize(("dtype", "x64"), [("float32", False), ("float64", True)])
def test_fused_reductions_are_right(dtype: str, x64: bool) -> None:
    with jax.enable_x64(x64):
        error = reduction_error(dtype)
    assert error <= 1e-6, (
        f"jax {jax.__version__} sums wrongly on this machine (relative error {error:.1e}): "
        "install the pair that pyproject.toml pins"
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
