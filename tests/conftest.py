"""What every test shares: eight host devices, Hypothesis profiles, the folder of measured data."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# JAX reads these once, when its back end starts, so they stand before anything can import jax.
# Programs here are small: to compile one in a single piece takes a tenth less processor time.
for _flag, _value in (
    ("--xla_force_host_platform_device_count", 8),
    ("--xla_cpu_parallel_codegen_split_count", 1),
):
    if _flag not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_flag}={_value}".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")

# Programs that JAX compiles are kept for the next run, as Numba keeps its own: XLA is half of the
# time of most tests of JAX. An entry is found by the program, its options and the versions, so that
# a change in the code is a new entry. `make clean` takes the folder away. XLA logs of what it loads
# that the machine lacks "prefer-no-gather", a preference of its own and no instruction.
_COMPILED = Path(__file__).resolve().parent.parent / ".pytest_cache" / "xla"
if os.access(_COMPILED.parent.parent, os.W_OK):
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_COMPILED))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]  # kernels compile in the first example
settings.register_profile(
    "ci", derandomize=True, deadline=None, print_blob=True, suppress_health_check=_SLOW
)
settings.register_profile("dev", deadline=None, suppress_health_check=_SLOW)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))

_MARK = "parallel_tooth_aps.npz"
_COMPILING = ("geometries", "kernels", "examples", "interop", "functionals")
_LIBRARIES = ("jax", "torch", "shard_map")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Folders that compile kernels first: of two workers one then compiles, the other loads.

    They are about half of the tests, and each worker begins with one half of them all.

    Cases that compile programs of JAX or start torch, and the folder of transformations, which
    does nothing else, are slow.
    """
    here = Path(__file__).parent
    items.sort(key=lambda item: item.path.relative_to(here).parts[0] not in _COMPILING)
    for item in items:
        case = item.name.partition("[")[2]
        if item.path.parent.name == "transforms" or any(word in case for word in _LIBRARIES):
            item.add_marker("slow")


def pytest_collection_finish() -> None:
    """What imports and collection made lives as long as the process: no collector walks it."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def x64() -> Iterator[None]:
    """JAX computes in float64 where it is asked to."""
    with pytest.importorskip("jax").enable_x64(True):
        yield


@pytest.fixture
def quick_xla() -> Iterator[None]:
    """XLA compiles without its optimisations: half the time, for large programs that run once.

    For tests of what a program computes; those of what it is compiled to, or of bits, do without.
    """
    jax = pytest.importorskip("jax")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of measured scans, which the project does not ship.

    The environment variable LINOPS_DATA names it; without it, `shared/data` in the checkout or
    beside one of the folders above it is taken.
    """
    named = os.path.expanduser(os.environ.get("LINOPS_DATA", ""))
    if named:
        if not (Path(named) / _MARK).is_file():
            pytest.fail(f"LINOPS_DATA={named!r} has no {_MARK}: name the folder that holds it")
        return Path(named)
    root = Path(__file__).resolve().parent.parent
    for folder in (root, *root.parents):
        if (folder / "shared" / "data" / _MARK).is_file():
            return folder / "shared" / "data"
    pytest.skip("no measured data: set LINOPS_DATA to the folder that holds " + _MARK)
