"""Kernels of Pallas, interpreted: the numbers of slices, blocks of any extent, sums in place."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import linops as lo
from linops.compiled.pallas import PallasOptions, normalize_block_shape
from linops.stencils import Laplacian, Stencil
from linops.stencils.pallas_windows import Term, sum_views

jax = pytest.importorskip("jax")
jnp = jax.numpy

rng = np.random.default_rng(0)
KAPPA = rng.random((13, 21)).astype("f4")

STENCILS = {
    "laplacian of order 4, walls of two kinds": (
        Laplacian(lo.Space((13, 21)), order=4, boundary=[("odd", "even"), "periodic"]),
        "4,8",
    ),
    "a field, copies at the ends": (
        Stencil(lo.Space((13, 21)), {(0, 0): KAPPA, (1, -2): 0.5, (-1, 0): -1.0}, "edge"),
        (4, 8),
    ),
    "one axis, reach beyond the axis": (
        Stencil(lo.Space(5), {-3: 1.0, 2: -2.0, 0: 0.25}, "even"),
        None,
    ),
    "three axes": (Laplacian(lo.Space((5, 6, 9)), order=2, boundary="zero"), "2,4,8"),
    "components": (
        Stencil(
            lo.Space((2, 6, 7)),
            {(0, 0): {(0, 1): 1.0, (0, 0): -1.0}, (0, 1): {(1, 0): 2.0}, (2, 1): {(0, -1): 3.0}},
            components=(3, 2),
        ),
        8,
    ),
}


@pytest.mark.parametrize(("stencil", "block"), STENCILS.values(), ids=STENCILS)
def test_forward_and_adjoint_are_those_of_slices(stencil, block):
    A = stencil.with_backend("pallas", block_shape=block, interpret=True)
    x = jnp.asarray(rng.standard_normal((2, *A.domain.shape)), A.dtype)  # a batch of two
    y = jnp.asarray(rng.standard_normal(A.codomain.shape), A.dtype)
    plain = stencil.with_backend("slices")
    assert np.abs(jax.jit(lambda x: A @ x)(x) - plain @ np.asarray(x)).max() < 2e-6
    assert np.abs(A.H @ y - plain.H @ np.asarray(y)).max() < 2e-6
    assert "pallas" in A.backend


def test_blocks_of_a_plan_run_them_too():
    from sharding import plan

    L = Laplacian(lo.Space((5, 4)), order=2, boundary="odd")
    B = plan(
        L.with_backend("pallas", interpret=True), devices=2, executor="shard_map", partition=0
    ).lower()
    x = rng.standard_normal((5, 4)).astype("f4")
    assert np.abs(np.asarray(B @ jnp.asarray(x)) - L @ x).max() < 1e-5


def test_sums_are_written_where_the_accumulator_was_and_the_callers_stays():
    frame = jnp.asarray(rng.standard_normal((13, 9)), "float32")
    terms = [[Term(0, (0, 1), 2.0, -1), Term(0, (2, 0), -1.0, -1)]]
    before = jnp.ones((11, 8))
    options = PallasOptions("4,8", interpret=True)

    def step(scale):
        return sum_views([frame], terms, [], (11, 8), options, [before], scale)[0]

    wanted = 0.5 * np.asarray(before) + 2 * np.asarray(frame)[:11, 1:] - np.asarray(frame)[2:, :8]
    assert np.abs(jax.jit(step)(0.5) - wanted).max() < 1e-6
    assert (before == 1).all()


@pytest.mark.parametrize(
    ("given", "ndim", "wanted"),
    [
        (None, 1, (128, 1, 1)),
        ("", 2, (16, 16, 1)),
        ((), 3, (4, 4, 8)),
        (8, 3, (8, 1, 1)),
        ([8], 2, (8, 1, 1)),
        ("8,4", 3, (8, 4, 1)),
        (" 8 , 4,2,", 3, (8, 4, 2)),
        ((8, 4, 2, 9), 3, (8, 4, 2)),
        ((8, 4, 2), 1, (8, 1, 1)),
        (np.int64(8), 1, (8, 1, 1)),
    ],
)
def test_every_spelling_of_a_block(given, ndim, wanted):
    assert normalize_block_shape(given, ndim) == wanted


@pytest.mark.parametrize("given", [0, -4, (4, 0), "four", "4;2", (2.5,)])
def test_blocks_that_cannot_be_are_named(given):
    with pytest.raises(ValueError, match="block_shape"):
        normalize_block_shape(given, 2)
    with pytest.raises(ValueError, match="block_shape"):
        Laplacian(lo.Space((5, 5))).with_backend("pallas", block_shape=given, interpret=True)


def test_a_named_engine_that_cannot_serve_says_why(monkeypatch):
    L = Laplacian(lo.Space((5, 5)))
    with pytest.raises(ValueError, match="interpret=True"):
        L.with_backend("pallas")
    with pytest.raises(ValueError, match="options of backend='pallas'"):
        L.with_backend("rows", interpret=True)
    with pytest.raises(ValueError, match="has 4"):
        Laplacian(lo.Space((3, 3, 3, 3))).with_backend("pallas", interpret=True)
    monkeypatch.setitem(sys.modules, "jax.experimental.pallas", None)
    with pytest.raises(ValueError, match="cannot be imported"):
        L.with_backend("pallas", interpret=True)
    x = rng.standard_normal((5, 5)).astype("f4")
    assert np.abs(np.asarray(L @ jnp.asarray(x)) - L @ x).max() < 1e-5  # the others serve


def test_parameters_of_triton_are_passed_where_it_is_asked_for():
    found = PallasOptions(num_warps=8, num_stages=3, use_triton=True, interpret=True).arguments()
    pytest.importorskip("jax.experimental.pallas.triton")
    assert found["compiler_params"].num_warps == 8
    assert found["compiler_params"].num_stages == 3
    assert "compiler_params" not in PallasOptions(interpret=True, use_triton=False).arguments()
