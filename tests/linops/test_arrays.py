"""The gateway between libraries: values, dtypes, layouts, what shares memory and what must not."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from linops import arrays
from linops.errors import DTypeError

from .builders import to

DTYPES = ("bool", "int8", "int32", "int64", "uint8", "float32", "float64", "complex64",
          "complex128")  # fmt: skip
LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "plain": lambda x: x,
    "Fortran": np.asfortranarray,
    "sliced": lambda x: x[1:, ::2],
    "reversed": lambda x: x[::-1, ::-1],
    "empty": lambda x: x[:0],
    "scalar": lambda x: np.array(x[1, 2]),
    "read-only": lambda x: _locked(x),
}
WITHOUT_X64 = ("int64", "float64", "complex128")


def _locked(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x.setflags(write=False)
    return x


def values(dtype: str) -> np.ndarray:
    x: Any = np.arange(12).reshape(3, 4) - 3
    return np.asarray(x + 2j * x if dtype.startswith("complex") else x).astype(dtype)


def like(namespace: str) -> Any:
    return to(np.zeros(1, "float32"), namespace)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "source, target", list(itertools.product(("numpy", "torch", "jax", "strict"), repeat=2))
)
def test_values_and_dtypes_survive_every_pair(source: str, target: str, dtype: str) -> None:
    if "jax" in (source, target) and dtype in WITHOUT_X64:
        pytest.skip("JAX runs without x64: the next tests")
    for name, layout in LAYOUTS.items():
        x = layout(values(dtype))
        came = to(x, source) if source != "numpy" else x
        got = arrays.convert(came, like(target))
        assert arrays.namespace(got) is arrays.namespace(like(target)), name
        assert arrays.dtype_of(got) == np.dtype(dtype), name
        assert tuple(got.shape) == x.shape, name
        np.testing.assert_array_equal(arrays.to_numpy(got), x)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_jax_without_x64_is_refused_and_never_narrowed(dtype: str) -> None:
    for source in ("numpy", "torch"):
        with pytest.raises(DTypeError, match="x64"):
            arrays.convert(to(values(dtype), source), like("jax"))
    with pytest.raises(DTypeError, match="x64"):
        arrays.cast(like("jax"), np.dtype(dtype))
    with pytest.raises(DTypeError, match="x64"):
        arrays.zeros((2,), np.dtype(dtype), like("jax"))


@pytest.mark.slow
def test_negative_strides_do_not_end_the_process() -> None:
    # torch.from_dlpack aborts on them: only another process can tell.
    code = (
        "import numpy as np, torch\n"
        "from linops import arrays\n"
        "x = np.arange(6.0)[::-1]\n"
        "y = arrays.convert(x, torch.zeros(1))\n"
        "assert y.tolist() == x.tolist()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_numpy_and_torch_share_memory() -> None:
    import torch

    x = np.zeros(4, "float32")
    y = arrays.convert(x, torch.zeros(1))
    y[1] = 5
    assert x[1] == 5
    assert arrays.to_numpy(y).ctypes.data == x.ctypes.data


def test_no_write_reaches_a_jax_array() -> None:
    import jax.numpy as jnp
    import torch

    theirs = jnp.arange(4.0)
    tensor = arrays.convert(theirs, torch.zeros(1))
    tensor[0] = 9
    assert theirs[0] == 0
    host = arrays.to_numpy(theirs)
    assert not host.flags.writeable
    mine = np.zeros(64, "float32")
    copy = arrays.convert(mine, theirs)
    mine[0] = 9
    assert copy[0] == 0
    source = torch.zeros(64)
    copy = arrays.convert(source, theirs)
    source[0] = 9
    assert copy[0] == 0


def test_lazy_views_and_gradients_of_torch() -> None:
    import torch

    x = torch.tensor([1 + 2j, 3 - 1j])
    np.testing.assert_array_equal(arrays.to_numpy(x.conj()), [1 - 2j, 3 + 1j])
    np.testing.assert_array_equal(arrays.to_numpy(x.conj().imag), [-2, 1])
    leaf = torch.ones(2, requires_grad=True)
    np.testing.assert_array_equal(arrays.to_numpy(leaf), [1, 1])


def test_tracers_are_refused_with_a_message() -> None:
    import jax
    import jax.numpy as jnp

    with pytest.raises(DTypeError, match="no values"):
        jax.jit(arrays.to_numpy)(jnp.zeros(2))
    with pytest.raises(DTypeError, match="no values"):
        jax.jit(lambda x: arrays.convert(x, np.zeros(1)))(jnp.zeros(2))


def test_bfloat16_passes_between_torch_and_itself() -> None:
    import torch

    x = torch.ones(3, dtype=torch.bfloat16)
    assert arrays.dtype_of(x) == np.dtype("float16")
    assert arrays.cast(x, np.dtype("float32")).dtype == torch.float32


@pytest.mark.parametrize("library", ["numpy", "jax.numpy", "torch"])
def test_the_largest_of_no_entries_is_zero(library: str) -> None:
    xp = pytest.importorskip(library)
    assert float(arrays.largest(xp.zeros((2, 0)))) == 0
    assert float(arrays.largest(xp.asarray([[1.0, 3.0], [2.0, 0.0]]))) == 3
