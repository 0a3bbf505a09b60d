"""Callbacks of all solvers: what ends a solve, and that they cannot write into it."""

from __future__ import annotations

import numpy as np
import pytest

import linops as lo
from solvers import cgls, sirt, tv, vcd

from .system import golden_data, golden_operator, to

SOLVERS = {
    "cgls": cgls,
    "sirt": sirt,
    "adam": lambda *a, **o: tv(*a, weight=0.1, **o),
    "pdhg": lambda *a, **o: tv(*a, weight=0.1, method="pdhg", **o),
    "vcd": vcd,
}


@pytest.mark.parametrize("name", SOLVERS)
def test_false_of_any_library_ends_a_solve_and_nothing_else_does(name):
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    A, y = golden_operator((2, 3)), golden_data()
    for no in (False, np.False_, np.array(False), torch.tensor(False), jnp.asarray(False)):
        found = SOLVERS[name](A, y, iterations=4, callback=lambda *_, no=no: no)
        assert (found.iterations, found.reason) == (1, "callback stopped"), repr(no)
    others = (None, True, np.True_, 0, 0.0, np.float64(0), "", torch.tensor(True), np.zeros(2))
    for answer in others:
        found = SOLVERS[name](A, y, iterations=3, callback=lambda *_, yes=answer: yes)
        assert found.iterations == 3, repr(answer)


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("namespace", ["numpy", "torch", "jax"])
def test_a_callback_cannot_write_into_the_solve(name, namespace):
    A = golden_operator((2, 3), "float32" if namespace == "jax" else "float64")
    y = to(golden_data(), namespace)
    kept = []

    def vandal(k, residual, x):
        kept.append((x, np.asarray(x).copy()))
        if namespace != "jax":
            try:
                x[...] = 0.0
            except ValueError:  # read-only
                return
            kept[-1] = x, np.zeros_like(kept[-1][1])

    found = SOLVERS[name](A, y, iterations=4, callback=vandal)
    plain = SOLVERS[name](A, y, iterations=4, callback=lambda *_: None)
    np.testing.assert_array_equal(np.asarray(found.solution), np.asarray(plain.solution))
    assert found.residual_history == plain.residual_history
    for x, seen in kept:  # and what it kept does not change under it
        np.testing.assert_array_equal(np.asarray(x), seen)


def test_members_of_a_product_are_its_own_too():
    torch = pytest.importorskip("torch")
    A = lo.hstack([golden_operator(), 0.5 * golden_operator()])

    def vandal(k, residual, x):
        for part in x:
            part[...] = 7.0

    y = torch.tensor(golden_data())
    found, plain = (cgls(A, y, iterations=3, callback=c) for c in (vandal, None))
    for a, b in zip(found.solution, plain.solution, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
