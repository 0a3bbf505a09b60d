"""`Flip`, `Roll`, `Real`, `Imag`, `Conj`: NumPy's values, and the contract, planned too."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import linops as lo
from linops.testing import check_operator
from sharding import plan

REAL = lo.Space((5, 4), "float64", axes=("y", "x"))
COMPLEX = lo.Space((5, 4), "complex128", axes=("y", "x"))
CASES: dict[str, tuple[Callable[[lo.Space], lo.LinearOperator], Callable[..., np.ndarray]]] = {
    "flip": (lambda s: lo.Flip(s, "x"), lambda x: x[..., ::-1]),
    "flip all": (lo.Flip, lambda x: np.flip(x, (-2, -1))),
    "roll": (lambda s: lo.Roll(s, 2, "y"), lambda x: np.roll(x, 2, -2)),
    "roll each": (lambda s: lo.Roll(s, (-1, 7)), lambda x: np.roll(x, (-1, 7), (-2, -1))),
    "real": (lo.Real, np.real),
    "imag": (lo.Imag, np.imag),
    "conj": (lo.Conj, np.conj),
}


@pytest.mark.slow
@pytest.mark.parametrize("space", [REAL, COMPLEX, REAL.with_dtype("complex64")], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_values_and_contract(name: str, space: lo.Space) -> None:
    build, reference = CASES[name]
    A = build(space)
    x = space.random(0)
    assert np.array_equal(A @ x, reference(x))
    check_operator(A)
    y = A.codomain.random(1)
    assert np.vdot(A @ x, y).real == pytest.approx(np.vdot(x, A.H @ y).real)
    B = plan(A, devices=3, executor="threads", probe=False).lower()
    assert np.array_equal(B.codomain.home.gather(B @ x), reference(x))
    assert np.array_equal(B.domain.home.gather(B.H @ y), A.H @ y)


def test_composed_and_mistaken() -> None:
    A = lo.Flip(REAL, "y") @ lo.Diagonal(REAL.random(2)) @ lo.Roll(REAL, 1, "y")
    check_operator(A)
    assert str(lo.Flip(REAL, "x").rule) == "y x! -> y x!"
    with pytest.raises(lo.errors.ShapeError, match="one for each of its 2 axes, got 3"):
        lo.Roll(REAL, (1, 2, 3))
    assert "real_linear" in lo.Real(COMPLEX).tags
