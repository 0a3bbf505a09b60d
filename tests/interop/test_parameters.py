"""Parameters that an optimiser changes in place: operators follow them, or refuse to run."""

from __future__ import annotations

import numpy as np
import pytest

import linops as lo
from linops.arrays import to_numpy
from linops.errors import StaleError
from linops.interop import to_torch_module
from sharding import plan

torch = pytest.importorskip("torch")

SPACE = lo.Space((2, 3), "float64", axes=("y", "x"))
COMPLEX = SPACE.complexify()
VALUES = [[1.0, 2.0, 3.0], [-1.0, 0.5, 4.0]]


def parameter(values=VALUES, dtype=torch.float64):
    return torch.nn.Parameter(torch.tensor(values, dtype=dtype))


def change(p) -> None:
    with torch.no_grad():
        p.mul_(-2).add_(1)


# What is made from a parameter, and what is asked of it. Each is compared with what is made anew.
MADE = {
    "diagonal": (VALUES, lambda p: lo.Diagonal(p)),
    "product": (VALUES, lambda p: lo.Diagonal(p) @ lo.Diagonal(p)),
    "sum": (VALUES, lambda p: lo.Diagonal(p) + lo.Diagonal(p)),
    "power": (VALUES, lambda p: lo.Diagonal(p) ** 3),
    "rounded": (VALUES, lambda p: lo.Diagonal(p, SPACE.with_dtype("float32"))),
    "complex diagonal": ([[1 + 2j, 2, 3j]] * 2, lambda p: lo.Diagonal(p, COMPLEX)),
    "complex on real": ([[1 + 2j, 2, 3j]] * 2, lambda p: lo.Diagonal(p, SPACE)),
    "convolution": ([0.0, 1.0, 0.5], lambda p: lo.Convolve(SPACE, p)),
    "through spectra": ([0.0, 1.0, 0.5], lambda p: lo.Convolve(SPACE, p, method="fft")),
    "symmetric": ([0.5, 1.0, 0.5], lambda p: lo.Convolve(SPACE, p, boundary="periodic")),
    "complex convolution": ([1j, 1.0, 0.5], lambda p: lo.Convolve(COMPLEX, p)),
    "matrix": ([[1.0, 2.0], [0.5, -1.0]], lambda p: lo.Matrix(p)),
    "multiple": (2.0, lambda p: p * (3 * lo.Identity(SPACE)) * 2),
    "complex multiple": (2 + 1j, lambda p: p * lo.Identity(COMPLEX)),
    "points": ([[0.5, 1.5], [0.5, 0.25]], lambda p: lo.Interpolate(SPACE, p)),
    "displacement": (
        [[[0.5, 0.1, 0.2]] * 2, [[0.3, 0.4, -0.5]] * 2],
        lambda p: lo.Interpolate(SPACE, displacement=p),
    ),
}
ASKED = {
    "A": lambda A: A,
    "A.H": lambda A: A.H,
    "A.T": lambda A: A.T,
    "conj": lambda A: A.conj(),
    "gram": lambda A: A.gram(),
    "H of a product": lambda A: (2 * A @ lo.Identity(A.domain)).H,
    "columns": lambda A: A.columns(np.array([1, 0])),
    "pickled": lambda A: A,
}


@pytest.mark.slow
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("made", MADE)
def test_what_is_derived_from_a_parameter_follows_it(made, asked) -> None:
    values, make = MADE[made]
    dtype = torch.complex128 if np.iscomplexobj(np.asarray(values)) else torch.float64
    p = parameter(values, dtype)
    A = make(p)
    B = ASKED[asked](A)
    x = torch.as_tensor(B.domain.random(0))
    tags, before = A.tags, B(x)
    change(p)
    fresh = ASKED[asked](make(p))
    torch.testing.assert_close(B(x), fresh(x))
    torch.testing.assert_close(B(x.numpy()), fresh(x).detach().numpy(), check_dtype=False)
    assert not torch.allclose(before, fresh(x))
    assert tags == A.tags == make(p).tags
    y = torch.as_tensor(B.codomain.random(1))
    torch.testing.assert_close(B.H(y), fresh.H(y))
    if A.domain.shape == A.codomain.shape:
        np.testing.assert_allclose(to_numpy(A.diagonal()), to_numpy(make(p).diagonal()))
    assert [q is p for q in to_torch_module(B).parameters()] == [True]


@pytest.mark.parametrize("recorded", [True, False])
def test_numbers_computed_from_a_parameter_are_refused_once_it_changes(recorded) -> None:
    p = parameter()
    with torch.set_grad_enabled(recorded):
        padded = lo.Diagonal(p).block(1, -1, 2, padded=True)
        ratio = lo.Identity(SPACE) / parameter(2.0)
        halved = lo.Diagonal(p * 0.5)
    torch.testing.assert_close(padded.H.H(torch.ones(2, 3).double())[:, 1:], p.detach()[:, :2])
    x = torch.ones(2, 3, dtype=torch.float64)
    halved(x), ratio(x)
    view = lo.Diagonal(p).block(1, 0, 2)
    change(p)
    with pytest.raises(StaleError, match="fresh operator"):
        padded(x)
    with pytest.raises(StaleError, match="fresh operator"):
        padded.gram().diagonal()
    if recorded:  # else nothing says what it came from
        with pytest.raises(StaleError, match="fresh operator"):
            halved.H(x)
    torch.testing.assert_close(view(x[:, :2]), p[:, :2])


def test_a_tensor_that_is_not_trained_is_copied() -> None:
    w = torch.ones(3)
    A, f = lo.Diagonal(w), lo.LeastSquares(lo.Space(3), target=w)
    assert "psd" in A.tags
    w.neg_()
    assert A(torch.ones(3)).tolist() == [1, 1, 1]
    assert f(torch.ones(3)) == 0


def test_functionals_follow_their_parameters() -> None:
    p, x = parameter(), torch.ones(2, 3, dtype=torch.float64)
    factor = parameter(2.0)
    f = factor * (3 * lo.LeastSquares(SPACE, target=p).translate(p))
    slope = f.gradient
    slope(x)
    change(p)
    change(factor)
    assert factor.item() == -3
    wanted = -9 * (x - 2 * p)
    torch.testing.assert_close(slope(x), wanted)
    torch.testing.assert_close(f(x), -4.5 * ((x - 2 * p) ** 2).sum())


@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_plans_follow_or_refuse(executor) -> None:
    p, x = parameter(), torch.ones(2, 3, dtype=torch.float64)
    B = plan(lo.Diagonal(p, SPACE), devices=2, executor=executor, partition="y").lower()
    torch.testing.assert_close(B(x), p * x)
    change(p)
    try:
        found = B(x)
    except StaleError:
        return
    torch.testing.assert_close(found, p * x)
