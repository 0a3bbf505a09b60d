"""Lowered operators as one SPMD program on eight host devices: the numbers of the operators."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import compositions

import geometries as ct
import linops as lo
from linops import arrays
from linops import functionals as fn
from linops.errors import PlacementError
from linops.testing import check_operator, dot_test
from sharding import plan
from sharding.executors import shard_map
from sharding.executors.shard_map import _Body
from sharding.program import Program
from sharding.states import Sharded
from sharding.testing import check_placement

jax = pytest.importorskip("jax")
jnp = jax.numpy


pytestmark = pytest.mark.usefixtures("x64")


def _parts(x: Any) -> tuple[np.ndarray, ...]:
    return tuple(map(np.asarray, x)) if isinstance(x, tuple) else (np.asarray(x),)


def assert_close(got: Any, wanted: Any, rtol: float = 1e-12) -> None:
    """Members agree to rounding of their largest entry."""
    got, wanted = _parts(got), _parts(wanted)
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=0, atol=rtol * (np.abs(b).max() + 1e-30))


def _devices(n: int, backwards: bool = False) -> list[Any]:
    found = jax.devices("cpu")[:n]
    return found[::-1] if backwards else found


def _lowered(
    A: Any, n: int, partition: Any = "auto", backwards: bool = False, by: int | None = None
) -> Any:
    """Lowered by a partition; `by`, both sides in shares of that axis."""
    p = plan(A, devices=_devices(n, backwards), executor="shard_map", partition=partition)
    if by is not None:
        ends: list[Any] = [(Sharded(by),)]
        p = p.again(A, entries=ends, exits=ends)
    return p.lower()


# Every composition on two numbers of devices, one of which leaves shares empty.
@pytest.mark.slow
@pytest.mark.parametrize("name", compositions.LINEAR)
@pytest.mark.parametrize("n", [3, 8])
def test_every_composition(name: str, n: int) -> None:
    A = compositions.LINEAR[name]()
    x, y = A.domain.random(1), A.codomain.random(2)
    B = _lowered(A, n, backwards=n == 3)
    assert_close(B @ x, A @ x)
    assert_close(B.H @ y, A.H @ y)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_xla")
@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize(
    ("name", "partition"), [("projector", "view"), ("two rings", "z"), ("two stencils", "z")]
)
def test_other_numbers_of_devices(name: str, partition: str, n: int) -> None:
    A = compositions.LINEAR[name]()
    x, y = A.domain.random(1), A.codomain.random(2)
    B = _lowered(A, n, partition)
    assert_close(B @ x, A @ x)
    assert_close(B.H @ y, A.H @ y)
    if n == 1:
        assert not any(_counted(B._engine.compiled_text(B.plan.forward)).values())


@pytest.mark.slow
@pytest.mark.usefixtures("quick_xla")
@pytest.mark.parametrize("partition", [{"view": 2, "z": 3}, {"z": 2, "col": 2}])
def test_two_mesh_axes(partition: dict[str, int]) -> None:
    A = compositions.projector()
    x, y = A.domain.random(1), A.codomain.random(2)
    n = int(np.prod(list(partition.values())))
    B = _lowered(A, n, partition, backwards=True)
    assert_close(B @ x, A @ x)
    assert_close(B.H @ y, A.H @ y)
    dot_test(B)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_xla")
@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize("boundary", ["zero", "periodic"])
def test_halos_wider_than_shares(size: int, boundary: str) -> None:
    space = lo.Space((size, 2), "float64", ("z", "x"))
    kernel = np.array([0.5, -1.0, 0.25, 2.0, -0.75]).reshape(5, 1)
    A = lo.Convolve(space, kernel, boundary=boundary)
    x, y = space.random(1), space.random(2)
    dense = A.to_dense()
    for n in (2, 4):
        B = _lowered(A, n, "z")
        assert_close(B @ x, (dense @ x.ravel()).reshape(space.shape))
        assert_close(B.H @ y, (dense.T @ y.ravel()).reshape(space.shape))


@pytest.mark.slow
def test_an_operator_that_moves_its_planes() -> None:
    space = lo.Space((7, 3), "float64", ("z", "x"))
    A = lo.Crop(space, {"z": (2, 6)})
    B = _lowered(A, 3, "z")
    x, y = A.domain.random(1), A.codomain.random(2)
    assert_close(B @ x, x[2:6])
    assert_close(B.H @ y, np.pad(y, ((2, 1), (0, 0))))


# --- transformations ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("quick_xla")
@pytest.mark.parametrize(("name", "partition"), [("projector", "view"), ("two rings", "z")])
def test_what_jax_derives_is_the_declared_adjoint(name: str, partition: str) -> None:
    A = compositions.LINEAR[name]()
    B = _lowered(A, 3, partition)
    x = jnp.asarray(A.domain.random(1))
    wanted = A.H @ (A @ np.asarray(x))
    both = np.stack([wanted, 2 * wanted])

    def loss(x: Any) -> Any:
        return 0.5 * jnp.sum((B @ x) ** 2)

    assert_close(jax.grad(loss)(x), wanted)
    assert_close(jax.jit(jax.grad(loss))(x), wanted)
    assert_close(jax.jit(jax.vmap(jax.grad(loss)))(jnp.stack([x, 2 * x])), both)
    assert_close(jax.jvp(jax.grad(loss), (x,), (2 * x,))[1], 2 * wanted)  # Hessian-vector
    assert_close(jax.jit(lambda B, x: B.H @ (B @ x))(B, x), wanted)
    assert_close(jax.vmap(lambda x: B.H @ (B @ x))(jnp.stack([x, 2 * x])), both)
    twice = jax.jit(lambda x: jax.lax.fori_loop(0, 2, lambda _, s: B.H @ (B @ s), x))(x)
    assert_close(twice, A.H @ (A @ wanted))
    composed = jax.jit(lambda x: (B.H @ B + 0.5 * B.gram()) @ x)(x)
    assert_close(composed, 1.5 * wanted)


@pytest.mark.slow
def test_placed_elements_stay_placed_under_jit() -> None:
    A = compositions.LINEAR["two rings"]()
    B = _lowered(A, 3, by=0)
    put, gather = B.domain.home.placement.put, B.domain.home.placement.gather
    x = A.domain.random(1)
    placed = put(x)
    for run in (lambda v: B @ v, jax.jit(lambda v: B @ v), jax.jit(lambda v: B @ (2.0 * v) / 2.0)):
        made = run(placed)
        assert made.shape == (9, 5, 4)
        assert made.sharding.is_equivalent_to(placed.sharding, 3)
        assert_close(gather(made), A @ x)


@pytest.mark.slow
def test_gradients_in_the_weights() -> None:
    A = compositions.projector()
    w, x = np.random.default_rng(0).random(A.codomain.shape), A.domain.random(1)
    y = A @ x

    def value(w: Any) -> Any:
        G = _lowered(A.H @ lo.Diagonal(w, A.codomain) @ A, 3, "view")
        return jnp.vdot(jnp.asarray(x), G @ jnp.asarray(x))

    assert_close(jax.grad(value)(jnp.asarray(w)), y**2, 1e-11)
    # A lowered operator as an argument: its arrays have one entry a device in front.
    G = _lowered(A.H @ lo.Diagonal(w, A.codomain) @ A, 3, "view")
    placed = G.domain.home.put(x)
    slope = jax.grad(lambda G: jnp.vdot(placed, G @ placed), allow_int=True)(G)
    (found,) = (d for d in jax.tree_util.tree_leaves(slope) if d.dtype == np.float64)
    shares = np.asarray(found).reshape(-1, *A.codomain.shape[1:])
    assert_close(shares[: len(y)], y**2, 1e-11)
    assert not shares[len(y) :].any()
    with pytest.raises(PlacementError, match="make its gram, columns"):
        jax.jit(lambda G: G.gram() @ placed)(G)


# --- functionals and derivatives ------------------------------------------------------------------


def _functionals() -> dict[str, Any]:
    A = compositions.projector()
    misfit = fn.LeastSquares(A.codomain).translate(A.codomain.random(9)) @ A
    return {
        "misfit": misfit,
        "misfit and prior": misfit + 0.3 * fn.QGGMRF(A.domain),
        "total variation": fn.TotalVariation(A.domain, eps=1e-3),
        "huber": fn.Huber(A.domain, 0.1),
    }


@pytest.mark.slow
@pytest.mark.usefixtures("quick_xla")
@pytest.mark.parametrize(
    ("name", "partition"),
    [("misfit", "view"), ("misfit and prior", "z"), ("total variation", "z"), ("huber", "y")],
)
def test_functionals_are_global(name: str, partition: str) -> None:
    f = _functionals()[name]
    x = f.domain.random(5)
    B = _lowered(f, 3, partition)
    value = B(x)
    assert isinstance(value, float)
    assert value == pytest.approx(f(x), rel=1e-12)
    assert_close(B.gradient(x), f.gradient(x))
    assert_close(B.surrogate(x) @ x, f.surrogate(x) @ x)
    assert_close(jax.grad(lambda v: B(v))(jnp.asarray(x)), f.gradient(x))


@pytest.mark.slow
@pytest.mark.usefixtures("quick_xla")
def test_a_plan_is_linearised_block_by_block() -> None:
    A = compositions.projector()
    N = lo.transmission(A, 2.0)
    x, y = A.domain.random(1), A.codomain.random(2)
    for n, partition in ((3, "view"), (2, "z")):
        B = _lowered(N, n, partition)
        assert_close(B(x), N(x))
        J, wanted = B.jacobian(x), N.jacobian(x)
        assert_close(J @ x, wanted @ x)
        assert_close(J.H @ y, wanted.H @ y)
    assert_close(jax.vjp(lambda v: B(v), jnp.asarray(x))[1](jnp.asarray(y))[0], wanted.H @ y)
    assert_close(jax.jit(lambda v: B.jacobian(v).H @ (B.jacobian(v) @ v))(jnp.asarray(x)),
                 wanted.H @ (wanted @ x))  # fmt: skip


# --- padding ------------------------------------------------------------------------------------


def _poisoned(placements: Any, x: Any, garbage: float) -> Any:
    parts = x if isinstance(x, tuple) else (x,)
    out = []
    for placement, part in zip(placements, parts, strict=True):
        placed = placement.put(part)
        real = placement.mask(placed.ndim)
        out.append(jax.device_put(jnp.where(real, placed, garbage), placed.sharding))
    return tuple(out) if isinstance(x, tuple) else out[0]


def _assert_inert(run: Any, x: Any, before: Any, after: Any) -> None:
    clean = run(_poisoned(before, x, 0.0))
    for garbage in (np.nan, 1e30):
        dirty = run(_poisoned(before, x, garbage))
        for placement, a, b in zip(after, _parts(clean), _parts(dirty), strict=True):
            np.testing.assert_array_equal(a, b)
            tail = ~np.broadcast_to(np.asarray(placement.mask(a.ndim)), a.shape)
            assert not np.any(b[tail])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "partition"),
    [
        ("projector", "view"),
        ("projector", "z"),
        ("projector over gradient", "z"),
        ("two rings", None),
        ("two stencils", None),
        ("gram with weights", "row"),
        ("ramp filter, then adjoint", "view"),
    ],
)
def test_what_stands_in_the_padding_changes_no_bit(name: str, partition: str | None) -> None:
    A = compositions.LINEAR[name]()
    B = _lowered(A, 4, partition or "auto", by=None if partition else 0)
    domain, codomain = B.plan.domain_placements, B.plan.codomain_placements
    _assert_inert(lambda v: B @ v, A.domain.random(1), domain, codomain)
    _assert_inert(lambda v: B.H @ v, A.codomain.random(2), codomain, domain)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["misfit and prior", "total variation", "huber"])
def test_padding_changes_no_bit_of_a_functional(name: str) -> None:
    f = _functionals()[name]
    p = plan(f, devices=_devices(4), executor="shard_map")
    B = p.again(f, entries=[(Sharded(0),)]).lower()
    ends = B.plan.domain_placements
    assert ends[0].padded_size == 8
    x = f.domain.random(5)
    _assert_inert(lambda v: B.gradient(v), x, ends, ends)
    values = {B(_poisoned(ends, x, garbage)) for garbage in (0.0, np.nan, 1e30)}
    assert len(values) == 1


@pytest.mark.slow
def test_the_shipped_check_passes_and_catches_a_lost_mask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    A = compositions.projector()
    p = plan(A, devices=_devices(3), executor="shard_map", partition="view")
    check_placement(A, p)
    space = lo.Space((7, 3), "float64", ("z", "x"))
    stencil = lo.Convolve(space, np.array([[1.0], [2.0], [1.0]]))
    shares: list[Any] = [(Sharded(0),)]

    def again() -> Any:
        p = plan(stencil, devices=_devices(2), executor="shard_map")
        return p.again(stencil, entries=shares, exits=shares)

    check_placement(stencil, again())

    def multiplied(x: Any, axis: int, index: Any, valid: Any) -> Any:
        planes = jnp.take(x, jnp.asarray(index), axis=x.ndim + axis)
        return planes * jnp.asarray(valid).reshape(-1, *(1,) * (-axis - 1))

    # A mask that multiplies keeps NaN: only one that selects makes padding inert.
    shard_map._shared.cache_clear()
    monkeypatch.setattr(arrays, "gather_planes", multiplied)
    try:
        with pytest.raises(AssertionError):
            check_placement(stencil, again())
    finally:
        shard_map._shared.cache_clear()


# --- what is compiled ---------------------------------------------------------------------------

_NAMES = {
    "AllReduce": "all-reduce",
    "AllGather": "all-gather",
    "ReduceScatter": "reduce-scatter",
    "AllToAll": "all-to-all",
    "Halo": "collective-permute",
    "HaloAdd": "collective-permute",
}


def _counted(text: str) -> dict[str, int]:
    return {name: len(re.findall(rf" {name}(?:-start)?\(", text)) for name in set(_NAMES.values())}


def _planned(program: Program, messages: int) -> dict[str, int]:
    """The collectives of a program whose exchanges of planes take so many messages each."""
    found = dict.fromkeys(_NAMES.values(), 0)
    for step in program.steps:
        if step.kind in _NAMES:
            found[_NAMES[step.kind]] += messages if step.kind.startswith("Halo") else 1
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "partition", "messages"),
    [
        ("projector", "view", 2),
        ("two stencils", "z", 2),
        # Two planes around a ring of shares of 2, 2, 2 and 1: the last share is passed over.
        ("two rings", "z", 3),
        ("gram with weights", "row", 2),
    ],
)
def test_the_program_holds_the_collectives_of_the_plan(
    name: str, partition: str | None, messages: int
) -> None:
    A = compositions.LINEAR[name]()
    B = _lowered(A, 4, partition or "auto", by=None if partition else 0)
    seen = set()
    for program in (B.plan.forward, B.plan.adjoint):
        counted = _counted(B._engine.compiled_text(program))
        assert counted == _planned(program, messages)
        seen |= {kind for kind, count in counted.items() if count}
    assert seen


def _twice(B: Any, x: Any) -> Any:
    return B.H @ (B @ x)


@pytest.mark.slow
def test_new_values_compile_nothing(caplog: pytest.LogCaptureFixture) -> None:
    P, programs = compositions.projector(), []
    x, rng = P.domain.random(1), np.random.default_rng(0)
    for turn in (0.0, 0.3):
        # Other angles and distances, other weights.
        beam = ct.ConeBeam(P.geometry.angles + turn, P.geometry.detector, 20 + turn, 40.0)
        P = P.with_geometry(beam)
        caplog.clear()
        G = P.H @ lo.Diagonal(rng.random(P.codomain.shape), P.codomain) @ P
        B = _lowered(G, 3, "view")
        wanted = G @ x
        with jax.log_compiles():
            assert_close(B @ x, wanted)
            assert_close(jax.jit(_twice)(B, x), G.H @ wanted)
        body, _ = B._engine._body(B.plan.forward)
        programs.append(body)
    assert "Compiling" not in caplog.text
    # What compiled code reads of a scan beside its frames makes another program.
    moved = ct.Detector(P.geometry.detector.shape, P.geometry.detector.pitch, offset=0.4)
    other = P.with_geometry(ct.ConeBeam(P.geometry.angles, moved, 20.0, 40.0))
    assert_close(_lowered(other, 3, "view") @ x, other @ x)
    assert programs[0] is programs[1]
    assert isinstance(body, _Body)
    assert body.compiled._cache_size() == 1


@pytest.mark.slow
def test_float32_without_x64() -> None:
    with jax.enable_x64(False):
        A = compositions.projector().with_precision("float32")
        B = _lowered(A, 3, "view")
        x = A.domain.random(1)
        np.testing.assert_array_equal(B @ x, A @ x)
        f = fn.LeastSquares(A.codomain).translate(A.codomain.random(9)) @ A
        assert _lowered(f, 3, "view")(x) == pytest.approx(f(x), rel=3e-7)
        dot_test(B)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_xla")
@pytest.mark.parametrize(("executor", "libraries"), [("threads", ()), ("shard_map", ("jax",))])
def test_a_lowered_operator_is_one_like_any_other(executor: str, libraries: Any) -> None:
    space = lo.Space((3, 2), "float32", ("z", "x"))
    D = lo.Diagonal(np.arange(1, 7, dtype="float32").reshape(3, 2), space)
    B = plan(D, devices=jax.devices("cpu")[:2], executor=executor, partition="z").lower()
    report = check_operator(B, libraries=libraries)
    assert {"diagonal", "gram", "batches"} <= set(report.passed)
