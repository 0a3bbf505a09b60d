"""The shipped strategies: every operator drawn is its matrix, linear, typed, blockwise, pickled."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

import linops as lo
from linops.testing.blocks import check_blocks
from linops.testing.handling import check_spaces
from linops.testing.laws import check_additivity, check_homogeneity
from linops.testing.strategies import compositions, operators, spaces, vectors
from linops.testing.subject import NotApplicable, Subject


def flat(space, x) -> np.ndarray:
    parts = x if isinstance(x, tuple) else (x,)
    assert [p.dtype for p in parts] == [m.dtype for m in space.members]
    return np.concatenate([np.asarray(p).ravel() for p in parts])


def holds(A, dense: np.ndarray, data: st.DataObject) -> None:
    assert A.shape == dense.shape
    eps = np.finfo(A.dtype).eps
    bound = 1e3 * eps * (1 + np.abs(dense).max(initial=0)) * (1 + max(dense.shape)) ** 2
    back = dense.conj().T
    for B, wanted in ((A, dense), (A.H, back)):
        matrix = wanted if B.codomain.is_complex else wanted.real
        assert np.abs(B.to_dense() - matrix).max(initial=0) <= bound
        x = data.draw(vectors(B.domain))
        found, image = flat(B.codomain, B(x)), wanted @ flat(B.domain, x)
        if not B.codomain.is_complex:
            image = image.real
        size = 1 + np.abs(flat(B.domain, x)).max(initial=0)
        assert np.abs(found - image).max(initial=0) <= bound * size
    subject = Subject(A, 0)
    for check in (check_spaces, check_additivity, check_homogeneity, check_blocks):
        try:
            check(subject)
        except NotApplicable:
            continue
    again = pickle.loads(pickle.dumps(A))
    np.testing.assert_array_equal(again.to_dense(), A.to_dense())


@settings(max_examples=100)
@given(st.data())
def test_leaves_are_their_matrices(data: st.DataObject) -> None:
    holds(*data.draw(operators()), data)


@settings(max_examples=100)
@given(st.data())
def test_trees_are_their_matrices(data: st.DataObject) -> None:
    holds(*data.draw(compositions()), data)


@given(st.data())
def test_vectors_are_elements_of_bounded_spaces(data: st.DataObject) -> None:
    space = data.draw(spaces(max_size=12))
    assert 1 <= space.size <= 12
    product = lo.ProductSpace([space, lo.Space(2)])
    for s in (space, product):
        s.validate(data.draw(vectors(s)))


def test_a_fault_shrinks_to_its_position() -> None:
    space = lo.Space((3, 4))
    x = find(vectors(space), lambda v: v[1, 2] != 0, settings=settings(database=None))
    assert np.flatnonzero(x).tolist() == [6]


@pytest.mark.parametrize("module", ["linops", "linops.testing"])
def test_hypothesis_is_imported_when_asked_alone(module: str) -> None:
    code = f"import sys, {module}; sys.exit('hypothesis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
