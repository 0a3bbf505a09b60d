"""What a composition costs beside its leaves, counted in Python calls, which no load disturbs.

Times are measured by `benchmarks/overhead.py`.
"""

from __future__ import annotations

import functools
import gc
import operator
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import linops as lo
from linops.errors import ShapeError

TERMS = 20


def leaf(function: Callable[[Any], Any], entries: int = 6) -> lo.LinearOperator:
    return lo.from_functions(function, function, domain=lo.Space(entries))


def chain(terms: int) -> Any:
    return functools.reduce(operator.matmul, leaves(terms))


def leaves(count: int) -> list[lo.LinearOperator]:
    return [leaf(lambda x, c=1 + i / 10: c * x) for i in range(count)]


def calls(function: Callable[[], Any]) -> int:
    """Python functions entered by `function()`, itself left out."""
    entered = -1

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal entered
        entered += event == "call"

    gc.disable()  # its callbacks are Python functions too
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
        gc.enable()
    return entered


def test_a_chain_enters_its_leaves_and_little_else() -> None:
    A = chain(TERMS)
    x = np.ones(6, "float32")
    for B in (A, A.H):
        np.testing.assert_allclose(B @ x, np.prod([1 + i / 10 for i in range(TERMS)]), rtol=1e-5)
        assert calls(lambda B=B: B @ x) <= TERMS + 6


@pytest.mark.parametrize("join", [lo.vstack, lo.concat])
def test_stacks_check_their_members_once(join: Any) -> None:
    A = join(leaves(TERMS))
    x = np.ones(6, "float32")
    A @ x
    assert calls(lambda: A @ x) <= 3 * TERMS + 10


def test_sums() -> None:
    A = functools.reduce(operator.add, leaves(TERMS))
    x = np.ones(6, "float32")
    A @ x
    assert calls(lambda: A @ x) <= 3 * TERMS + 8


def test_an_adjoint_is_built_once_in_both_directions() -> None:
    assert chain(2).H.H.terms  # modules are imported
    A = chain(TERMS)
    assert calls(lambda: A.H) <= 12 * TERMS
    assert calls(lambda: A.H) <= 1
    assert A.H.H is A and A.H.H.H is A.H


@pytest.mark.parametrize("combine", [operator.matmul, operator.add])
def test_building_is_linear_in_the_number_of_terms(combine: Any) -> None:
    few, many = leaves(TERMS), leaves(4 * TERMS)
    for terms in (few, many):  # what each space finds out once is not counted
        functools.reduce(combine, terms)
    short = calls(lambda: functools.reduce(combine, few))
    assert short <= 40 * TERMS
    assert calls(lambda: functools.reduce(combine, many)) <= 4.3 * short


def test_neighbors_are_rewritten_where_two_chains_meet() -> None:
    wide, narrow = lo.Space(6, "float64"), lo.Space(6, "float32")
    A = lo.from_functions(np.negative, np.negative, domain=narrow)
    widened = lo.Cast(narrow, wide) @ A
    # The cast back to float32 that this takes meets the other one, and both vanish.
    assert "Cast" not in (A @ widened).describe()
    d, e = lo.Diagonal(np.full(6, 2, "float32")), lo.Diagonal(np.full(6, 3, "float32"))
    product: Any = (A @ d @ A) @ (A @ e) @ (d @ A)
    assert [type(term).__name__ for term in product.terms].count("Diagonal") == 2
    np.testing.assert_array_equal(product @ np.ones(6, "float32"), np.full(6, 12.0))


def test_what_leaves_return_in_a_chain_is_held_to_their_spaces() -> None:
    seen: list[Any] = []

    def wide(x: Any) -> Any:
        return x.astype("float64")

    def listed(x: Any) -> Any:
        seen.append(x.dtype)
        return list(x)

    A = leaf(lambda x: 2 * x) @ leaf(listed) @ leaf(wide)
    np.testing.assert_array_equal(A @ np.ones(6, "float32"), np.full(6, 2.0))
    assert seen == [np.dtype("float32")]
    assert (A @ np.ones((2, 6), "float32")).shape == (2, 6)
    with pytest.raises(ShapeError, match="returned shape"):
        leaf(lambda x: x) @ leaf(lambda x: x[:2]) @ np.ones(6, "float32")


def views(of: str) -> np.ndarray:
    if of == "own":
        return np.arange(6, dtype="float32")
    if of == "slice":
        return np.arange(10, dtype="float32")[2:8]
    if of == "buffer":
        return np.frombuffer(bytearray(24), "float32")
    torch = pytest.importorskip("torch")
    found: np.ndarray = torch.arange(6, dtype=torch.float32).numpy()
    return found


@pytest.mark.parametrize("of", ["own", "slice", "buffer", "torch"])
def test_results_share_no_memory_with_the_input_or_each_other(of: str) -> None:
    x = views(of)
    kept = np.zeros(6, "float32")
    terms = [
        leaf(lambda x: x),
        leaf(lambda x: x[::-1]),
        leaf(lambda x: x),
        leaf(lambda x: kept[:]),  # a leaf that gives out its own memory, twice
        leaf(lambda x: kept),
        leaf(lambda x: x.base if isinstance(x.base, np.ndarray) and x.base.size == 6 else 2 * x),
    ]
    parts = lo.vstack(terms) @ x
    every = [x, *parts]
    for i, a in enumerate(every):
        for b in every[i + 1 :]:
            assert not np.may_share_memory(a, b)
    np.testing.assert_array_equal(parts[1], x[::-1])
    single = terms[1] @ x
    assert not np.may_share_memory(single, x)


def test_what_is_fresh_is_not_copied() -> None:
    given: list[Any] = []

    def fresh(x: Any) -> Any:
        given.append(x + 1)
        return given[-1]

    parts = lo.vstack([leaf(fresh), leaf(lambda x: x), leaf(fresh)]) @ views("slice")
    assert parts[0] is given[0]
    assert parts[2] is given[1]


def test_a_leaf_costs_little_beside_the_library_call_that_it_makes() -> None:
    # 26, 21 and 25 calls before; the library's own call is one.
    space, x = lo.Space(10), np.ones(10, "float32")
    cases = {
        lo.Matrix(np.ones((10, 10), "float32")): 5,
        lo.Restriction(space, [1, 5, 7]): 4,
        lo.Convolve(space, np.ones(3, "float32")): 18,
    }
    for A, limit in cases.items():
        A @ x
        assert calls(lambda A=A: A @ x) <= limit, A.name


def test_a_leaf_in_eager_jax_is_one_program() -> None:
    jnp = pytest.importorskip("jax.numpy")
    space, x = lo.Space(10), jnp.ones(10, "float32")
    weights = jnp.arange(100, dtype="float32").reshape(10, 10)
    leaves_of_jax = [
        (lo.Matrix(weights), weights @ x),
        (lo.Convolve(space, jnp.ones(3, "float32")), jnp.convolve(x, jnp.ones(3), "same")),
        (lo.FFT(space, norm="backward"), jnp.fft.rfft(x)),
    ]
    for A, wanted in leaves_of_jax:
        np.testing.assert_allclose(A @ x, wanted, rtol=1e-5)
        # Operation by operation: 171 calls of Matrix, 1223 of Convolve, 204 of FFT.
        assert calls(lambda A=A: A @ x) <= 110, A.name
