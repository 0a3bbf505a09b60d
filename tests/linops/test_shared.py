"""Parts that members of a sum or a stack share run once, forward and back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import linops as lo
from linops.testing import check_operator
from sharding import plan

SPACE = lo.Space((3, 4), "float64", axes=("y", "x"))
A, B, C = (lo.Diagonal(SPACE.random(i), SPACE) @ lo.Flip(SPACE, "x") for i in range(3))


CALLS: dict[lo.LinearOperator, list[int]] = {}


class Counted(lo.LinearOperator):
    """A matrix that counts its applications, by direction."""

    def __init__(self, seed: int = 7) -> None:
        super().__init__(SPACE, SPACE)
        self.matrix = lo.Matrix(lo.Space((12, 12), "float64").random(seed))
        CALLS[self] = [0, 0]

    def _apply(self, x):  # type: ignore[no-untyped-def]
        CALLS[self][0] += 1
        return (self.matrix @ x.reshape(12)).reshape(3, 4)

    def _apply_adjoint(self, y):  # type: ignore[no-untyped-def]
        CALLS[self][1] += 1
        return (self.matrix.H @ y.reshape(12)).reshape(3, 4)


# Built of P, with the matrix in blocks as NumPy joins them, by the dense forms of P and the others.
CASES: dict[str, tuple[Callable[..., lo.LinearOperator], Callable[..., np.ndarray]]] = {
    "sum": (lambda P: A @ P + B @ P, lambda p, a, b, c: a @ p + b @ p),
    "difference": (lambda P: P @ A - 2 * (P @ B), lambda p, a, b, c: p @ a - 2 * p @ b),
    "three": (lambda P: A @ P + B @ P + C @ P, lambda p, a, b, c: (a + b + c) @ p),
    "alone": (lambda P: P + A @ P, lambda p, a, b, c: p + a @ p),
    "both ends": (lambda P: P @ A @ B + P @ C @ B, lambda p, a, b, c: p @ (a + c) @ b),
    "vstack": (
        lambda P: lo.vstack([A @ P, P, B @ P]),
        lambda p, a, b, c: np.vstack([a @ p, p, b @ p]),
    ),
    "hstack": (
        lambda P: lo.hstack([P @ A, P @ B, C]),
        lambda p, a, b, c: np.hstack([p @ a, p @ b, c]),
    ),
    "concat": (
        lambda P: lo.concat([A @ P, 3 * (B @ P)]),
        lambda p, a, b, c: np.vstack([a @ p, 3 * b @ p]),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_shared_parts_run_once(name: str) -> None:
    build, dense = CASES[name]
    P = Counted()
    S = build(P)
    matrices = [one.to_dense() for one in (P, A, B, C)]
    assert np.allclose(S.to_dense(), dense(*matrices), atol=1e-12)
    assert np.allclose(S.H.to_dense(), dense(*matrices).T, atol=1e-12)
    CALLS[P][:] = 0, 0
    S @ S.domain.random(0)
    S.H @ S.codomain.random(1)
    assert CALLS[P] == [1, 1]
    check_operator(build(lo.Convolve(SPACE, np.array([1.0, 2.0, 3.0]), "y")), libraries=())
    T = build(lo.CumulativeSum(SPACE, "x"))
    x = T.domain.random(2)
    lowered = plan(T, devices=3, executor="threads", probe=False).lower()
    got, wanted = lowered.codomain.home.gather(lowered @ x), T @ x
    pairs = zip(got, wanted, strict=True) if isinstance(got, tuple) else [(got, wanted)]
    assert all(np.allclose(*pair) for pair in pairs)


def test_what_is_equal_but_not_the_same_stays_apart() -> None:
    first, second = Counted(1), Counted(1)
    S = lo.vstack([A @ first, B @ second])
    S @ SPACE.random(0)
    assert CALLS[first] == CALLS[second] == [1, 0]
    # Complex multiples do not pass a part that is linear over the reals.
    F = lo.FFT(SPACE, "x")
    S = 1j * (F @ A) + F @ B
    wanted = 1j * F.to_dense() @ A.to_dense() + F.to_dense() @ B.to_dense()
    assert np.allclose(S.to_dense(), wanted)
