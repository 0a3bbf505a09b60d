"""A chain in single precision neither computes nor stores doubles, forward, back, complex too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import linops as lo

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

WIDE = (torch.float64, torch.complex128)
DTYPES = ("float32", "complex64")


def space(dtype: str) -> lo.Space:
    return lo.Space((3, 4), dtype, axes=("y", "x"), spacing=(1.0, 0.5))


def leaves(dtype: str) -> dict[str, lo.LinearOperator]:
    S = space(dtype)
    wide = np.linspace(0.5, 2.0, 12)  # double, as a user's own arrays are
    return {
        "Identity": lo.Identity(S),
        "Zero": lo.Zero(S, lo.Space(3, dtype)),
        "Diagonal": lo.Diagonal(wide.reshape(3, 4), S),
        "Matrix": lo.Matrix(wide.reshape(1, 12), S, lo.Space(1, dtype)),
        "Restriction": lo.Restriction(S, [3, -1, 0]),
        "Scatter": lo.Scatter(S, [3, -1, 0]),
        "Crop": lo.Crop(S, {"y": (1, 3)}),
        "Pad": lo.Pad(S, {"y": (1, 2)}),
        "Reshape": lo.Reshape(S, (12,)),
        "Transpose": lo.Transpose(S, (1, 0)),
        "SumOver": lo.SumOver(S, "y"),
        "FFT": lo.FFT(S),
        "FFT backward": lo.FFT(S, norm="backward"),
        "Convolve": lo.Convolve(S, np.ones((2, 3)) / 3),
        "Convolve by FFT": lo.Convolve(S, np.ones((2, 3)) / 3, method="fft"),
        "Interpolate": lo.Interpolate(S, np.array([[0.3, 1.2], [2.5, 0.1]])),
        "Gradient": lo.Gradient(S),
    }


def nodes(A: lo.LinearOperator) -> dict[str, lo.LinearOperator]:
    return {
        "alone": A,
        "times a double": np.float64(0.1) * A,
        "divided": A / 3,
        "sum": A + 0.1 * A,
        "gram": A.gram(),
        "vstack": lo.vstack([A, 0.5 * A]),
        "concat": lo.concat([A, A]),
        "block diagonal": lo.block_diagonal([A, 0.1 * A]),
    }


class Widest(TorchDispatchMode):
    """Every operation whose result is in double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for part in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(part, torch.Tensor) and part.dtype in WIDE:
                self.found.append(str(func))
        return out


def parts(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", list(leaves("float32")))
def test_no_operation_is_in_double_precision(name: str, dtype: str) -> None:
    A = leaves(dtype)[name]
    for node, B in nodes(A).items():
        for C in (B, B.H, B.T, B.conj()):
            x = C.domain.random(0, torch)
            C(x)  # geometry is set up in double precision, once
            with Widest() as widest:
                y = C(x)
            assert not widest.found, f"{node} of {name}: {widest.found}"
            for part, member in zip(parts(y), C.codomain.members, strict=True):
                assert str(part.dtype) == f"torch.{member.dtype}"
                assert member.dtype.name in ("float32", "complex64")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", list(leaves("float32")))
def test_results_in_numpy_are_single(name: str, dtype: str) -> None:
    # np.float64 scalars are strong in NumPy and weak elsewhere: only NumPy shows them.
    for node, B in nodes(leaves(dtype)[name]).items():
        for C in (B, B.H, B.T, B.conj(), B.gram()):
            for part in parts(C(C.domain.random(0))):
                assert part.dtype.name in ("float32", "complex64"), node
        diagonal = B.gram().diagonal()
        for part in parts(diagonal):
            assert part.dtype.name in ("float32", "complex64"), node


FUNCTIONALS = ("least squares", "L1", "L2", "Huber", "group", "quadratic", "tv", "qggmrf", "box",
               "scaled", "shifted", "sum", "composed")  # fmt: skip


def functionals(dtype: str) -> dict[str, Any]:
    S = space(dtype)
    wide = np.linspace(0.5, 2.0, 12).reshape(3, 4)
    found: dict[str, Any] = {
        "least squares": lo.LeastSquares(S, wide, wide),
        "L1": lo.L1(S, wide),
        "L2": lo.L2(S),
        "Huber": lo.Huber(S, 0.1),
        "group": lo.GroupL1(S),
        "scaled": 0.1 * lo.L1(S),
        "shifted": lo.L2(S).translate(wide),
        "composed": lo.Huber(lo.Gradient(S).codomain, 0.1) @ lo.Gradient(S),
    }
    if dtype == "float32":
        found |= {
            "quadratic": lo.Quadratic(S, 0.7, wide),
            "sum": lo.L1(S) + lo.Quadratic(S, 0.7, wide),
            "tv": lo.TotalVariation(S, eps=0.1),
            "qggmrf": lo.QGGMRF(S, p=2.0, q=1.3, sigma_x=0.5),
            "box": lo.Box(S, 0.0, 1.0),
        }
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONALS)
def test_gradients_and_proximal_maps_are_single(name: str, dtype: str) -> None:
    f = functionals(dtype).get(name)
    if f is None:
        pytest.skip("of real values alone")
    for x in (f.domain.random(0), f.domain.random(0, torch)):
        if name != "box":
            assert str(f.gradient(x).dtype).endswith(dtype)
            assert str(f.surrogate(x)(x).dtype).endswith(dtype)
        if name not in ("tv", "qggmrf", "composed"):
            assert str(f.prox(x, 0.3).dtype).endswith(dtype)
            assert str(f.conjugate_prox(x, np.float64(0.3)).dtype).endswith(dtype)
