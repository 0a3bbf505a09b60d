"""Errors name the operator, the axis and both shapes, before anything is computed."""

from __future__ import annotations

import re

import numpy as np
import pytest

import linops as lo
from linops.errors import DTypeError, ShapeError

from .builders import OPERATORS

S = lo.Space((4, 5, 6), axes=("z", "y", "x"))


@pytest.mark.parametrize("name", OPERATORS)
def test_a_wrong_shape_names_the_operator_and_both_shapes(name: str) -> None:
    A = OPERATORS[name]()
    for B in (A, A.H):
        members = B.domain.members
        wrong = [np.zeros((*m.shape[:-1], (m.shape or (1,))[-1] + 1), m.dtype) for m in members]
        if not members[-1].shape:
            continue
        product = isinstance(B.domain, lo.ProductSpace)
        with pytest.raises(ShapeError) as error:
            B(tuple(wrong) if product else wrong[0])
        text = str(error.value)
        assert B.name in text
        assert members[0].describe_shape() in text
        assert str(wrong[0].shape) in text
        with pytest.raises(DTypeError, match=re.escape(B.name)):
            bad = tuple(np.zeros(m.shape, "U2") for m in members)
            B(bad if product else bad[0])


@pytest.mark.parametrize(
    "A",
    [lo.Gradient(S), lo.Identity(S), lo.FFT(S), lo.SumOver(S, "z"), lo.Crop(S, {"z": (0, 2)}),
     lo.Convolve(S, np.ones(3)), lo.Transpose(S), lo.Reshape(S, (20, 6)), 2 * lo.Gradient(S)],
    ids=lambda A: A.name,
)  # fmt: skip
def test_swapped_axes_are_named(A: lo.LinearOperator) -> None:
    wanted = f"{A.name} expects (z=4, y=5, x=6), got (4, 6, 5): axes y and x look swapped"
    with pytest.raises(ShapeError, match=re.escape(wanted)):
        A @ np.zeros((4, 6, 5), "float32")
    with pytest.raises(ShapeError, match="axes z, y, x look permuted"):
        A @ np.zeros((5, 6, 4), "float32")


def test_flat_vectors_and_compositions() -> None:
    G = lo.Gradient(S)
    with pytest.raises(ShapeError, match=r"Gradient expects .*unravel\(v\).*matvec"):
        G @ np.zeros(120, "float32")
    with pytest.raises(ShapeError, match="they differ along y"):
        G @ lo.Identity(lo.Space((4, 7, 6), axes=("z", "y", "x")))
    with pytest.raises(ShapeError, match="cannot add Gradient and Identity"):
        G + lo.Identity(S)


def test_functionals_name_themselves() -> None:
    with pytest.raises(ShapeError, match=re.escape("Huber expects (z=4, y=5, x=6), got (4, 6, 5)")):
        lo.Huber(S)(np.zeros((4, 6, 5), "float32"))
    with pytest.raises(ShapeError, match=re.escape("LeastSquares")):
        lo.LeastSquares(S).prox(np.zeros((4, 6, 5), "float32"), 1.0)
    with pytest.raises(ShapeError, match="cannot compose L1 @ Gradient"):
        lo.L1(S) @ lo.Gradient(S)
