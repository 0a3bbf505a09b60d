"""Fields of operators: copies with others in their place, and what follows from rule and fields."""

from __future__ import annotations

import numpy as np
import pytest

import geometries as g
import linops as lo
from linops.errors import DTypeError, ShapeError
from linops.testing import check_operator

SPACE = lo.Space((3, 4), "float64", axes=("y", "x"))
X = SPACE.random(0)


class Tinted(lo.LinearOperator):
    """A leaf of fields and two functions: weights along one axis of two."""

    blockwise = True

    def __init__(self, space: lo.Space, weights: np.ndarray, factor: float = 2.0) -> None:
        super().__init__(space, space, rule="y x; x -> y x")
        self.weights, self.factor = np.array(weights), factor

    def _apply(self, x):
        return self.factor * self.weights * x

    def _apply_adjoint(self, y):
        return self.factor * self.weights * y


class Folded(lo.LinearOperator):
    """Pairs of a last axis of two added up: other axes are aligned, that one is contracted."""

    blockwise = True

    def __init__(self, space: lo.Space) -> None:
        super().__init__(space, lo.Space(space.shape[:1], space.dtype), rule="y x -> y")

    def _apply(self, x):
        return x.sum(axis=-1)

    def _apply_adjoint(self, y):
        return np.broadcast_to(y[:, None], self.domain.shape).copy()


class Smoothed(lo.LinearOperator):
    """Each plane and its neighbors, fewer at the ends; a halo of one plane."""

    blockwise = True

    def __init__(self, space: lo.Space) -> None:
        super().__init__(space, space, rule="y~1 x -> y x")

    def _apply(self, x):
        out = np.array(x)
        out[1:] += x[:-1]
        out[:-1] += x[1:]
        return out

    _apply_adjoint = _apply


class Curved(lo.Operator):
    """A map that is not linear, with an array of its own."""

    blockwise = True

    def __init__(self, space: lo.Space, shift: np.ndarray) -> None:
        super().__init__(space, space, rule="y x; y x -> y x")
        self.shift = shift

    def _apply(self, x):
        return x**2 + self.shift

    def _jacobian(self, x):
        return lo.Diagonal(2 * x, self.domain)


SKIP = {"device": "code of NumPy"}
WEIGHTS = np.array([1.0, -2.0, 3.0, 0.5])
LEAVES = {
    "weights": Tinted(SPACE, WEIGHTS),
    "sum": Folded(SPACE),
    "halo": Smoothed(SPACE),
    "map": Curved(SPACE, np.arange(12.0).reshape(3, 4)),
}


@pytest.mark.parametrize("name", ["weights", "sum", "halo"])
def test_blocks_of_a_leaf_follow_from_its_rule_and_its_arrays(name):
    check_operator(LEAVES[name], libraries=[], skip=SKIP)


@pytest.mark.parametrize("name", LEAVES)
@pytest.mark.parametrize("axis", ["y", "x"])
def test_blocks_are_parts_and_touch_no_more_than_their_planes(name, axis):
    A = LEAVES[name]
    whole, number = A(X), "yx".index(axis)
    parts = []
    for start, stop in ((0, 1), (1, 3)):
        halo = A.rule.halo(axis)
        lo_, hi = max(start - halo, 0), min(stop + halo, X.shape[number])
        block = A.block(axis, start, stop)
        assert max(leaf.domain.size for leaf in _leaves(block)) < SPACE.size or halo
        parts.append(block(X.take(range(lo_, hi), axis=number)))
        padded = A.block(axis, start, stop, padded=True)
        ends = [(0, 0), (0, 0)]
        ends[number] = (max(halo - start, 0), max(stop + halo - X.shape[number], 0))
        wide = np.pad(X.take(range(lo_, hi), axis=number), ends, constant_values=np.nan)
        np.testing.assert_array_equal(padded(wide), parts[-1])
    if A.codomain.ndim == 2 or axis == "y":
        rest = whole.take(range(3), axis=number) if axis == "x" else whole
        np.testing.assert_array_equal(np.concatenate(parts, axis=number), rest)
    else:
        np.testing.assert_allclose(sum(parts), X[:, :3].sum(axis=1))


def _leaves(operator):
    parts = getattr(operator, "terms", (operator,))
    return [leaf for part in parts for leaf in (_leaves(part) if part is not operator else [part])]


def test_replace_makes_a_copy_with_other_values():
    D = lo.Diagonal(np.array([1.0, 2.0, 3.0]))
    tags = D.tags
    E = D.replace(array=np.array([-1.0, 0.0, 1.0], "float32"))
    assert "psd" in tags and "psd" not in E.tags
    assert E.array.dtype == np.float64 and not E.array.flags.writeable
    np.testing.assert_array_equal(E @ np.ones(3), [-1, 0, 1])
    np.testing.assert_array_equal(E.H @ np.ones(3), [-1, 0, 1])
    np.testing.assert_array_equal(D @ np.ones(3), [1, 2, 3])
    own = LEAVES["weights"].replace(factor=3)
    np.testing.assert_array_equal(own @ X, 3 * WEIGHTS * X)
    convolved = lo.Convolve(SPACE, np.ones(3)).replace(kernel=np.array([0.0, 1.0, 0.0]))
    np.testing.assert_array_equal(convolved @ X, X)
    whole = 2 * lo.Diagonal(np.ones((3, 4)), SPACE)
    np.testing.assert_array_equal(whole.replace(base=lo.Identity(SPACE)) @ X, 2 * X)
    f = lo.LeastSquares(SPACE, target=X).replace(target=0 * X)
    assert f(X) == pytest.approx(0.5 * np.sum(X**2))


def test_replace_refuses_what_does_not_fit():
    D = lo.Diagonal(np.ones(3))
    with pytest.raises(TypeError, match="no 'domain'.*array"):
        D.replace(domain=lo.Space(3))
    with pytest.raises(ShapeError, match=r"\(3,\), got \(4,\)"):
        D.replace(array=np.ones(4))
    with pytest.raises(DTypeError, match="complex"):
        D.replace(array=np.ones(3) * 1j)
    with pytest.raises(ValueError, match="weights"):
        lo.LeastSquares(SPACE, weights=np.ones((3, 4))).replace(weights=-np.ones((3, 4)))
    with pytest.raises(TypeError, match="index"):
        lo.Restriction(lo.Space(3), [0]).replace(index=np.array([7]))
    A = g.Projector(g.ParallelBeam([0.0], g.Detector(3)), g.Grid((3, 3)))
    with pytest.raises(TypeError, match="geometry"):
        A.replace(frames=A.frames)
    turned = g.ParallelBeam([1.0], g.Detector(3))
    x = np.ones((3, 3), "float32")
    np.testing.assert_array_equal(
        A.replace(geometry=turned) @ x, g.Projector(turned, g.Grid((3, 3))) @ x
    )


def test_complex_forms_follow_from_the_arrays():
    kernel = np.array([1.0, 2j, -1.0])
    A = lo.Convolve(SPACE.complexify(), kernel)
    Z = A.domain.random(1)
    assert type(A.conj()) is lo.Convolve
    np.testing.assert_allclose(A.conj() @ Z, np.conj(A @ np.conj(Z)))
    plain = lo.Interpolate(SPACE, np.array([[0.5], [1.5]]))
    assert plain.conj() is plain
