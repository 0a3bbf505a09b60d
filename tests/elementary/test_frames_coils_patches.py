"""Operators along one more axis, coil sensitivities and patches: values, contract, plans."""

from __future__ import annotations

import numpy as np
import pytest

import linops as lo
from linops.testing import check_operator
from sharding import plan

SPACE = lo.Space((3, 4), "float64", axes=("y", "x"))
FINE = lo.Space((4, 5), "float32", axes=("y", "x"))
IMAGE = lo.Space((3, 4), "complex64", axes=("y", "x"))
MAPS = lo.Space((2, 3, 4), "complex64").random(5)


def frames() -> lo.LinearOperator:
    return lo.block_diagonal([lo.Diagonal(SPACE.random(i), SPACE) for i in range(4)], axis="time")


CASES = {
    "repeat": lambda: lo.Repeat(lo.Gradient(lo.Space(5)), 3, axis="time"),
    "repeat of a pair": lambda: lo.Repeat(lo.vstack([lo.Identity(SPACE), lo.Gradient(SPACE)]), 3),
    "repeat over the reals": lambda: lo.Repeat(lo.FFT(SPACE, "x"), 3, axis="energy"),
    "repeat of a matrix": lambda: lo.Repeat(np.arange(6.0).reshape(2, 3), 2),
    "frames": frames,
    "frames of transforms": lambda: lo.block_diagonal(
        [lo.FFT(SPACE, "x"), 2 * lo.FFT(SPACE, "x")], axis="time"
    ),
    "coils": lambda: lo.Coils(MAPS, IMAGE, mask=np.arange(12.0).reshape(3, 4) > 3),
    "patches": lambda: lo.Patches(FINE, (3, 2), (1, 2)).average().H,
    "patches of one axis": lambda: lo.Patches(FINE.with_dtype("complex64"), 3, 2, "x"),
}


def planned(A: lo.LinearOperator, **options: object) -> lo.LinearOperator:
    return plan(A, devices=3, executor="threads", probe=False, **options).lower()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_contract(name: str) -> None:
    A = CASES[name]()
    check_operator(A)
    check_operator(A.H @ (2 * A), libraries=())
    B, x, y = planned(A), A.domain.random(2), A.codomain.random(3)
    forward, back = B.codomain.home.gather(B @ x), B.domain.home.gather(B.H @ y)
    for got, wanted in ((forward, A @ x), (back, A.H @ y)):
        pairs = zip(got, wanted, strict=True) if isinstance(got, tuple) else [(got, wanted)]
        assert all(np.allclose(*pair, rtol=1e-6, atol=1e-6) for pair in pairs)


def test_planes_meet_their_operators_and_plans_cut_them() -> None:
    A, G = frames(), lo.Gradient(SPACE)
    x = A.domain.random(0)
    assert np.allclose(A @ x, np.stack([SPACE.random(i) * x[i] for i in range(4)]))
    R = lo.Repeat(G, 4, axis="time")
    assert np.array_equal(R @ x, np.stack([G @ part for part in x]))
    assert np.allclose(R.to_dense(), np.kron(np.eye(4), G.to_dense()))
    assert R.norm() == pytest.approx(G.norm(), rel=1e-3)
    every = lo.kron(lo.Identity(lo.Space(4, "float64", axes=("time",))), G)
    assert R.cost().flops == every.cost().flops == 4 * G.cost().flops
    for one in (A, R):
        assert one.rule.domain[0][0].name == "time" and one.rule.domain[0][0].splits
        assert "time" in str(plan(one, devices=2, partition={"time": 2}).explain())
    with pytest.raises(lo.errors.ShapeError, match="with one domain"):
        lo.block_diagonal([G, lo.Gradient(FINE)], axis="time")
    with pytest.raises(lo.errors.ShapeError, match="got -1"):
        lo.Repeat(G, -1)


def test_coils_are_diagonals() -> None:
    mask = np.arange(12.0).reshape(3, 4) > 3
    A, x = lo.Coils(MAPS, IMAGE, mask=mask), IMAGE.random(1)
    assert np.allclose(A @ x, MAPS * mask * x)
    assert np.allclose(A.gram().diagonal(), np.sum(np.abs(MAPS * mask) ** 2, axis=0))
    assert lo.Coils(MAPS).domain == lo.Space((3, 4), "complex64")
    with pytest.raises(lo.errors.ShapeError, match="complex arrays of shape"):
        lo.Coils(MAPS, SPACE)
    with pytest.raises(lo.errors.ShapeError, match="mask"):
        lo.Coils(MAPS, IMAGE, mask=mask[0])


@pytest.mark.parametrize(
    ("size", "stride", "axes"), [((3, 2), (2, 1), None), (2, 3, None), (3, 1, "y"), (2, 2, (1, 0))]
)
def test_patches_are_those_of_scikit_image(size, stride, axes) -> None:  # type: ignore[no-untyped-def]
    util = pytest.importorskip("skimage.util")
    P, x = lo.Patches(FINE, size, stride, axes), FINE.random(0)
    if axes is None:
        wanted = util.view_as_windows(x, size, stride)
    else:
        numbers = [0] if axes == "y" else list(axes)
        windows = np.lib.stride_tricks.sliding_window_view(x, [size] * len(numbers), numbers)
        index = [slice(None, None, stride if i in numbers else 1) for i in range(2)]
        wanted = windows[tuple(index)]
    assert np.array_equal(P @ x, wanted)
    assert P.norm() == pytest.approx(np.linalg.norm(P.to_dense(), 2), rel=1e-6)
    covered = P.H @ P.codomain.ones() > 0
    assert np.allclose(P.average() @ (P @ x), np.where(covered, x, 0), atol=1e-6)


def test_mistaken_patches() -> None:
    with pytest.raises(lo.errors.ShapeError, match="1 to the"):
        lo.Patches(FINE, 6)
    with pytest.raises(lo.errors.ShapeError, match="got 3"):
        lo.Patches(FINE, (1, 2, 3))
