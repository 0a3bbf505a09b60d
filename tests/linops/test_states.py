"""`trajectory_of`: powers of a step, each applied once; the contract, planned too."""

from __future__ import annotations

import numpy as np
import pytest

import linops as lo
from linops.stencils import AcousticWave
from linops.testing import check_operator
from sharding import plan

SPACE = lo.Space((3, 4), "float64", axes=("y", "x"))


def mixing() -> lo.LinearOperator:
    """Every entry along x mixed with every other; aligned along y."""
    rows = lo.Space(3, "float64", axes=("y",)), lo.Space(4, "float64", axes=("x",))
    return 0.4 * lo.kron(
        lo.Identity(rows[0]), lo.Matrix(rows[1].random(0) + np.eye(4), *rows[1:] * 2)
    )


CASES = {
    "diagonal": lambda: lo.trajectory_of(lo.Diagonal(SPACE.random(0), SPACE), 5, [0, 2, 5]),
    "halo": lambda: lo.trajectory_of(lo.Convolve(SPACE, np.ones(3) / 3, "x"), 2),
    "wave": lambda: lo.trajectory_of(AcousticWave(SPACE, 1.0, 0.3), 3, [1, 3]),
    "none": lambda: lo.trajectory_of(mixing(), 3, []),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_contract(name: str) -> None:
    A = CASES[name]()
    check_operator(A)
    check_operator(A.H @ (2 * A), libraries=())
    x, y = A.domain.random(2), A.codomain.random(3)
    B = plan(A, devices=3, executor="threads", probe=False).lower()
    for got, wanted in (
        (B.codomain.home.gather(B @ x), A @ x),
        (B.domain.home.gather(B.H @ y), A.H @ y),
    ):
        pairs = zip(got, wanted, strict=True) if isinstance(got, tuple) else [(got, wanted)]
        assert all(np.allclose(*pair, atol=1e-12) for pair in pairs)


def test_states_are_powers_in_one_pass_each_way() -> None:
    calls = []
    M = mixing()

    def counted(function, name):  # type: ignore[no-untyped-def]
        return lambda x: calls.append(name) or function(x)

    step = lo.from_functions(counted(M, "forward"), counted(M.H, "back"), domain=SPACE)
    A = lo.trajectory_of(step, 6, [0, 1, 4, 6])
    x, y = SPACE.random(1), A.codomain.random(2)
    assert np.allclose(A @ x, np.stack([(M**k) @ x if k else x for k in (0, 1, 4, 6)]))
    assert calls == ["forward"] * 6
    calls.clear()
    A.H @ y
    assert calls == ["back"] * 6
    powers = lo.concat([lo.Reshape(SPACE, (1, 3, 4)) @ (M**k) for k in (1, 2, 3)])
    assert np.allclose(lo.trajectory_of(M, 3).to_dense(), powers.to_dense())
    assert str(CASES["diagonal"]().rule) == "y x -> time y x"
    assert str(CASES["halo"]().rule) == "y x! -> time y x!"


def test_mistakes() -> None:
    for keep in ([2, 1], [1, 1], [7], [-1]):
        with pytest.raises(lo.errors.ShapeError, match="rising numbers of steps"):
            lo.trajectory_of(mixing(), 6, keep)
    with pytest.raises(lo.errors.ShapeError, match="from a space to itself"):
        lo.trajectory_of(lo.Gradient(SPACE), 2)
