"""Cases that Hypothesis draws, the same on every rank, against matrices and a model.

They are drawn before the first exchange, so that no rank draws further than another.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import linops as lo
from linops.errors import PlacementError
from linops.testing import strategies
from rank_checks.register import assert_close, check, plan, projector, raises


def _drawn(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    """The same examples in every process."""
    found: list[Any] = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(case: Any) -> None:
        found.append(case)

    collect()
    return found


@st.composite
def _compositions(draw: st.DrawFn) -> tuple[lo.LinearOperator, np.ndarray, str, bool]:
    A, matrix = draw(strategies.compositions(max_depth=2))
    names = [axis.name for axis in A.rule if axis.splits]
    return A, matrix, draw(st.sampled_from(["auto", *names])), draw(st.booleans())


@check
def drawn_compositions_are_their_matrices(rank: int, world: int) -> None:
    for A, matrix, partition, ordered in _drawn(_compositions(), 40 // world):
        options: dict[str, Any] = {"partition": partition, "deterministic": ordered}
        try:
            B = plan(A, **options).lower()
        except PlacementError:  # said by all: a name of inner edges, a grid without a way
            B = plan(A).lower()
        for operator, dense in ((B, matrix), (B.H, matrix.conj().T)):
            plain = A if operator is B else A.H
            x = plain.domain.random(1)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = operator(x)
            flat = plain.domain.ravel(x)
            got, wanted = plain.codomain.ravel(made), dense @ flat
            wanted = wanted if np.iscomplexobj(got) else wanted.real
            size = np.abs(dense) @ np.abs(flat)
            eps = max(np.finfo(s.dtype).eps for s in (*A.domain.members, *A.codomain.members))
            scale = size.max(initial=0.0) + 1e-30
            assert np.abs(got - wanted).max(initial=0.0) <= 256 * eps * scale, (A, options)


@st.composite
def _scan(draw: st.DrawFn) -> tuple[tuple[int, ...], int, Any, bool]:
    shape = draw(st.sampled_from([(5, 4), (1, 4), (3, 3, 4), (1, 2, 3)]))
    grid = {"view": None, "y": None}
    partition = draw(st.sampled_from(["view", "y", "x", "col", grid]))
    return shape, draw(st.integers(1, 6)), partition, draw(st.booleans())


@check
def drawn_scans_with_any_shares(rank: int, world: int) -> None:
    for shape, views, partition, placed in _drawn(_scan(), 24 // world):
        A = projector(shape, views)
        B = plan(A, partition="view" if world < 4 and isinstance(partition, dict) else partition)
        B = B.lower()
        x, y = A.domain.random(1), A.codomain.random(2)
        given_x, given_y = (B.domain.home.put(x), B.codomain.home.put(y)) if placed else (x, y)
        assert_close(B @ given_x, A @ x, 2e-10)
        assert_close(B.H @ given_y, A.H @ y, 2e-10)
        X = B.domain.home.put(x).requires_grad_()
        ((B @ X) * B.codomain.home.put(y)).sum().backward()
        assert_close(X.grad, A.H @ y, 2e-10)


_ACTS = ("apply", "adjoint", "backward", "put", "inner", "plan", "local")
_FAULTS = ("shape", "options", "raises", "memory")


@st.composite
def _acts(draw: st.DrawFn) -> list[tuple[str, str | None, int]]:
    """What the ranks do in turn, and what goes wrong on which of them."""
    act = st.tuples(
        st.sampled_from(_ACTS),
        st.one_of(st.none(), st.sampled_from(_FAULTS)),
        st.integers(0, 3),
    )
    return draw(st.lists(act, min_size=3, max_size=8))


@check
def any_failures_in_any_order_leave_the_ranks_together(rank: int, world: int) -> None:
    """The model: where one rank fails all raise, and the next act is right on all of them."""
    if world == 1:
        return
    failing: list[Exception] = []

    def run(x: Any) -> Any:
        if failing:
            raise failing.pop()
        return 2.0 * x

    space = lo.Space((2 * world - 1, 3), "float64", ("z", "y"))
    L = lo.from_functions(
        run, run, domain=space, codomain=space, rule="z y -> z y", blockwise=True, batched=True
    )
    S = lo.Convolve(space, np.ones((3, 1)))
    A = S @ L
    x = space.random(1)
    wanted = {"apply": S @ (2 * x), "adjoint": 2 * (S.H @ x)}
    B = plan(A, partition="z").lower()
    local = B.domain.home.put(x).to_local()
    for acts in _drawn(_acts(), 8):
        for act, fault, where in acts:
            bad = fault is not None and rank == where % world
            _act(act, fault, bad, (A, B, x, local, failing), wanted)


def _act(act: str, fault: str | None, bad: bool, state: Any, wanted: dict[str, Any]) -> None:
    A, B, x, local, failing = state
    # What a fault means for an act; faults that an act has no use for are none.
    runs = act in ("apply", "adjoint", "backward", "local")
    if fault in ("raises", "memory") and not runs:
        fault, bad = None, False
    if fault == "options" and act != "plan":
        fault, bad = "shape", bad
    if fault == "shape" and act == "plan":
        fault = "options"
    wrong = bad and fault == "shape"
    given = x[:1] if wrong else x

    def call() -> Any:
        if act == "apply":
            return B @ given
        if act == "adjoint":
            return B.H @ given
        if act == "backward":
            X = B.domain.home.put(given).requires_grad_()
            ((B @ X) * B.codomain.home.put(x)).sum().backward()
            return X.grad
        if act == "put":
            return B.domain.home.put(given)
        if act == "inner":
            return B.domain.inner(given, x)
        if act == "local":
            return B.local(local[:0, :1] if wrong else local)
        return plan(A, partition="y" if bad else "z")

    if fault is None:
        _right(act, call(), (B, x), wanted)
        return
    if bad and fault in ("raises", "memory"):
        failing.append(ArithmeticError("drawn") if fault == "raises" else MemoryError("drawn"))
    raises(Exception, "", call)
    failing.clear()


def _right(act: str, found: Any, state: Any, wanted: dict[str, Any]) -> None:
    B, x = state
    if act in wanted:
        assert_close(found, wanted[act])
    elif act == "backward":
        assert_close(found, wanted["adjoint"])
    elif act == "put":
        assert_close(found, x, 0)
    elif act == "inner":
        assert abs(found - np.vdot(x, x)) < 1e-12
    elif act == "local":
        assert_close(found, B.codomain.home.put(wanted["apply"]).to_local())
