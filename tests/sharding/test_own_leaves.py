"""Plans of leaves of one's own: maps that are not linear, functions of any extent, closures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import linops as lo
from linops.arrays import namespace
from linops.errors import DTypeError, PlacementError
from sharding import plan

jax = pytest.importorskip("jax")
jnp = jax.numpy

SPACE = lo.Space((7, 6), "float32", axes=("z", "x"))


class Square(lo.Operator):
    batched = True

    def __init__(self, factor: Any = 1.0, space: lo.Space = SPACE) -> None:
        super().__init__(space, space, rule="z x -> z x")
        self.factor = factor

    def _apply(self, x: Any) -> Any:
        return self.factor * x * x + x

    def _jacobian(self, x: Any) -> lo.LinearOperator:
        return lo.Diagonal(2 * self.factor * x + 1, domain=self.domain)


class Scale(lo.LinearOperator):
    batched = True

    def __init__(self, factor: Any) -> None:
        super().__init__(SPACE, SPACE, rule="z x -> z x")
        self.factor = factor

    def _apply(self, x: Any) -> Any:
        return self.factor * x

    def _apply_adjoint(self, y: Any) -> Any:
        return self.factor * y


class Largest(lo.functionals.Functional):
    """A functional that is no sum over any axis, whatever its rule says."""

    batched = True

    def __init__(self) -> None:
        super().__init__(SPACE, rule="z x ->")

    def _value(self, x: Any) -> Any:
        return namespace(x).max(x, axis=(-2, -1))


def product(x: Any) -> Any:
    xp = namespace(x)
    return x * xp.concat([x[1:, ...], xp.zeros_like(x[:1, ...])], axis=0) + x


@pytest.mark.slow
@pytest.mark.parametrize("partition", ["z", "auto"])
@pytest.mark.parametrize("executor", ["serial", "threads", "shard_map"])
@pytest.mark.parametrize("leaf", ["class", "function", "blockwise"])
def test_maps_of_ones_own_are_cut(leaf: str, executor: str, partition: str) -> None:
    N: lo.Operator = Square()
    if leaf != "class":
        N = lo.from_function(
            product, domain=SPACE, linear=False, rule="z~1 x -> z x", blockwise=leaf == "blockwise"
        )
    x, dy = SPACE.random(0), SPACE.random(1)
    value = x * x + x if leaf == "class" else x * np.vstack([x[1:], 0 * x[:1]]) + x
    if leaf == "class":
        slope = (2 * x + 1) * dy
    else:
        slope = (1 + np.vstack([x[1:], 0 * x[:1]])) * dy + np.vstack([0 * x[:1], (x * dy)[:-1]])
    devices = 1 if executor == "serial" else 3
    B = plan(N, devices=devices, executor=executor, partition=partition).lower()
    np.testing.assert_allclose(B(x), value, rtol=2e-5)
    np.testing.assert_allclose(B.vjp(x, dy), slope, rtol=2e-5)


@pytest.mark.slow
def test_auto_finds_a_plan_for_gradients_of_compositions() -> None:
    """A plan that is offered can be made: produced axes of a composition have blocks too."""
    A = lo.Matrix(np.random.default_rng(0).random((5, 42)).astype("f4"), SPACE)
    f = lo.LeastSquares(A.codomain, np.ones(5, "f4")) @ A + lo.QGGMRF(SPACE, sigma_x=0.3)
    x = SPACE.random(0)
    want = f.gradient(x)
    for n in (2, 4):
        B = plan(f.gradient, devices=n, executor="shard_map").lower()
        np.testing.assert_allclose(B(x), want, rtol=1e-4, atol=1e-4)
    C = A.H @ A @ Square()
    produced = [name for name in C.rule.names if C.rule.relation(name) == "produced"]
    for name in produced:
        n = SPACE.shape[[a.name for a in C.rule.codomain[0]].index(name)]
        parts = [C.block(name, i, i + 1)(x) for i in range(n)]
        axis = [a.name for a in C.rule.codomain[0]].index(name)
        np.testing.assert_allclose(np.concatenate(parts, axis), C(x), rtol=2e-5)


@pytest.mark.parametrize("executor", ["threads", "shard_map"])
def test_what_cannot_be_cut_stays_whole(executor: str) -> None:
    f, x = Largest() @ Square(), SPACE.random(0)
    B = plan(f, devices=3, executor=executor).lower()
    assert float(B(x)) == pytest.approx((x * x + x).max(), rel=1e-6)
    with pytest.raises(PlacementError, match="Largest must not be split along 'z'"):
        plan(Largest(), devices=3, executor=executor, partition="z")


def test_a_leaf_that_runs_whole_in_every_part_is_not_worth_cutting() -> None:
    """Without a block of its own every share costs what the whole does, and is priced so."""
    space = lo.Space((512, 4096), "float32", axes=("z", "x"))

    def planned(blockwise: bool) -> Any:
        N = lo.from_function(
            jnp.sin, domain=space, rule="z x -> z x", linear=False, blockwise=blockwise
        )
        return plan(N, devices=2, executor="threads")

    (cut,), (whole,) = (list(planned(own).forward.computes()) for own in (True, False))
    assert cut.cuts != (None,) and whole.cuts == (None,)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "how"),
    [
        *((kind, "shard_map") for kind in ("functions", "function", "map")),
        *((kind, "threads") for kind in ("functions", "class", "class map")),
        ("functions", "bare"),
        ("function", "bare"),
        ("functions", "devices"),
    ],
)
def test_traced_values_that_a_leaf_closes_over_are_arguments(kind: str, how: str) -> None:
    makers: dict[str, Any] = {
        "functions": lambda a: lo.from_functions(
            lambda x: a * x, lambda y: a * y, domain=SPACE, rule="z x -> z x"
        ),
        "function": lambda a: lo.from_function(lambda x: a * x, domain=SPACE, rule="z x -> z x"),
        "map": lambda a: lo.from_function(
            lambda x: a * x * x + x, domain=SPACE, rule="z x -> z x", linear=False
        ),
        "class": Scale,
        "class map": Square,
    }
    options: dict[str, Any] = {
        "threads": {"devices": 2, "executor": "threads"},
        "devices": {"devices": jax.devices()[:2], "executor": "threads"},
        "shard_map": {"devices": 2, "executor": "shard_map"},
    }

    def value(a: Any, x: Any) -> Any:
        A = makers[kind](a)
        if how != "bare":
            A = plan(A, partition="z", **options[how]).lower()
        return jnp.sum(jnp.asarray(A(x)) ** 2)

    def closed(a: Any, x: Any) -> Any:
        return jnp.sum((a * x * x + x if "map" in kind else a * x) ** 2)

    x = jnp.asarray(SPACE.random(0))
    for a in (jnp.asarray(2.0), jnp.asarray(SPACE.random(1))):
        want, slopes = closed(a, x), jax.grad(closed, argnums=(0, 1))(a, x)
        value_, found = jax.jit(jax.value_and_grad(value, argnums=(0, 1)))(a, x)
        np.testing.assert_allclose(value_, want, rtol=2e-5)
        for one, other in zip(found, slopes, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5)
    if how == "threads":
        np.testing.assert_allclose(jax.grad(value)(a, x), slopes[0], rtol=2e-5)


class Running(lo.LinearOperator):
    """Running sums, in plain NumPy."""

    def __init__(self) -> None:
        super().__init__(SPACE, SPACE, rule="z x! -> z x!")

    def _apply(self, x: Any) -> Any:
        return np.cumsum(np.asarray(x), axis=-1)

    def _apply_adjoint(self, y: Any) -> Any:
        return np.flip(np.cumsum(np.flip(np.asarray(y), -1), axis=-1), -1).copy()


def test_leaves_in_plain_numpy_run_or_say_how() -> None:
    A, x = Running(), SPACE.random(0)
    want = np.cumsum(x, axis=-1)
    cure = r"Running runs code for NumPy arrays.*namespace\(x\).*executor='threads'"
    with pytest.raises(DTypeError, match=cure):
        plan(A, devices=2, executor="shard_map", partition="z").lower() @ x
    with pytest.raises(DTypeError, match=cure):
        jax.jit(lambda x: A @ x)(x)
    np.testing.assert_allclose(plan(A, devices=2, executor="threads").lower() @ x, want, rtol=2e-5)
    there = A @ jnp.asarray(x)
    assert isinstance(there, jax.Array)
    np.testing.assert_allclose(there, want, rtol=2e-5)
    torch = pytest.importorskip("torch")
    t = torch.from_numpy(x.copy()).requires_grad_()
    y = A @ t
    assert isinstance(y, torch.Tensor)
    y.square().sum().backward()
    np.testing.assert_allclose(y.detach(), want, rtol=2e-5)
    np.testing.assert_allclose(t.grad, A.H @ (2 * want), rtol=2e-5)
