"""Every compiled leaf of the geometries under JAX: NumPy's bits, its own adjoint, any batch."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec

import geometries as ge
import linops as lo
from geometries.analytic.gather import Gather
from geometries.analytic.gather_volume import VolumeGather
from geometries.kernels import runner
from linops.compiled.hosted import apply_on_host
from linops.errors import DTypeError

ANGLES = np.linspace(0.1, np.pi, 4, endpoint=False)
INDEX = np.array([7, 0, -1, 11, 3])


def planar(views: int = 4) -> Any:
    angles = np.linspace(0.1, np.pi, views, endpoint=False)
    beam = ge.ParallelBeam(angles, ge.Detector((6,)))
    return ge.Projector(beam, ge.Grid((4, 5)), precision="float32")


def cone() -> Any:
    beam = ge.ConeBeam(2 * ANGLES, ge.Detector((3, 6), 2.0), 20.0, 40.0)
    return beam, ge.Grid((2, 4, 5))


def oblique() -> Any:
    beam = ge.MultiAxisParallel(ANGLES, np.full(4, 0.3), ge.Detector((3, 6)))
    A = ge.Projector(beam, ge.Grid((2, 4, 5)), precision="float32")
    assert A._kernel == "oblique"
    return A


LEAVES: dict[str, Callable[[], Any]] = {
    "columns of images": lambda: planar().columns(INDEX),
    "columns of volumes": lambda: ge.Projector(*cone(), precision="float32").columns(INDEX),
    "cone": lambda: ge.Projector(*cone(), precision="float32"),
    "oblique": oblique,
    "columns of oblique": lambda: oblique().columns(INDEX),
    "gather": lambda: Gather(
        ge.FanBeam(2 * ANGLES, ge.Detector((6,)), 20.0, 40.0), ge.Grid((4, 5)), precision="float32"
    ),
    "gather rows": lambda: Gather(
        ge.ParallelBeam(ANGLES, ge.Detector((2, 6))), ge.Grid((2, 4, 5)), precision="float32"
    ),
    "gather cone": lambda: VolumeGather(*cone(), precision="float32"),
}


@functools.cache
def leaf(name: str) -> Any:
    return LEAVES[name]()


@pytest.mark.parametrize("name", LEAVES)
def test_bits_are_those_of_numpy_in_every_transform(name: str) -> None:
    A = leaf(name)
    x, y = A.domain.random(0), A.codomain.random(1)
    forward, back = A @ x, A.H @ y
    assert forward.any()
    assert back.any()
    X, Y = jnp.asarray(x), jnp.asarray(y)
    np.testing.assert_array_equal(A @ X, forward)
    np.testing.assert_array_equal(jax.jit(lambda A, x: A @ x)(A, X), forward)
    np.testing.assert_array_equal(jax.jit(lambda y: A.H @ y)(Y), back)
    (gradient,) = jax.jit(jax.grad(lambda x, y: jnp.vdot(y, A @ x), argnums=(0,)))(X, Y)
    np.testing.assert_array_equal(gradient, back)
    (transposed,) = jax.linear_transpose(lambda x: A @ x, X)(Y)
    np.testing.assert_array_equal(transposed, back)
    many = jnp.stack([X, 2 * X], axis=-1)
    batch = jax.jit(jax.vmap(lambda x: A @ x, in_axes=-1))(many)
    np.testing.assert_array_equal(batch, A @ np.stack([x, 2 * x]))
    np.testing.assert_array_equal(batch[0], forward)


def test_columns_that_change_keep_the_projectors_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(runner, "make", lambda base, make=runner.make: made.append(0) or make(base))
    A = planar(views=9)
    back = jax.jit(lambda index, y: A.columns(index).H @ y)
    y = A.codomain.random(2)
    for start in range(4):
        index = np.arange(start, start + 5)
        np.testing.assert_array_equal(
            back(jnp.asarray(index), jnp.asarray(y)), (A.H @ y).reshape(-1)[index]
        )
    # One for NumPy, one for the copy that JAX's calls share.
    assert len(made) == 2


def test_columns_of_a_projector_that_is_an_argument() -> None:
    A = planar()
    y = A.codomain.random(3)
    found = jax.jit(lambda A, index, y: A.columns(index).H @ y)(A, jnp.asarray(INDEX), y)
    wanted = np.where(INDEX < 0, 0, (A.H @ y).reshape(-1)[INDEX])
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


class Weighted(lo.LinearOperator):
    """`w * x` by a host function: a compiled leaf with an array of its own."""

    batched = True
    _exact: ClassVar[bool] = True

    def __init__(self, weights: Any) -> None:
        super().__init__(lo.Space(weights.shape[0]), lo.Space(weights.shape[0]), "x -> x")
        self.weights = weights

    def _apply(self, x: Any) -> Any:
        return apply_on_host(self, x)

    def _apply_adjoint(self, y: Any) -> Any:
        return apply_on_host(self, y, adjoint=True)

    def _forward_host(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(lo.arrays.to_numpy(self.weights) * x)

    _adjoint_host = _forward_host


def test_no_derivative_in_the_arrays_of_compiled_code() -> None:
    w, x = np.array([1, -2, 3], "float32"), np.array([4, 5, 6], "float32")

    def value(w: Any, x: Any) -> Any:
        return (Weighted(w) @ x).sum()

    in_x = jax.grad(value, argnums=1)(jnp.asarray(w), jnp.asarray(x))
    np.testing.assert_array_equal(in_x, w)
    with pytest.raises(DTypeError, match="Weighted is compiled and has no derivative in its own"):
        jax.grad(value)(jnp.asarray(w), jnp.asarray(x))
    stopped = jax.grad(lambda w: value(jax.lax.stop_gradient(w), jnp.asarray(x)) + w.sum())
    np.testing.assert_array_equal(stopped(jnp.asarray(w)), np.ones(3))


def test_a_compiled_leaf_refuses_arrays_that_require_a_gradient() -> None:
    torch = pytest.importorskip("torch")
    w, x = torch.tensor([1.0, -2.0, 3.0], requires_grad=True), torch.ones(3)
    with pytest.raises(DTypeError, match=r"one of which requires a gradient; detach\(\) it"):
        Weighted(w) @ x
    with pytest.raises(DTypeError, match="requires a gradient"):
        (2 * Weighted(w)).H @ x.requires_grad_()
    (found,) = torch.autograd.grad((Weighted(w.detach()) @ x).sum(), x)
    assert torch.equal(found, w.detach())


class Meeting(lo.LinearOperator):
    """Twice x, once as many calls are under way as there are devices."""

    batched = True
    _exact: ClassVar[bool] = True
    barrier: ClassVar[threading.Barrier] = threading.Barrier(2)

    def __init__(self, n: int) -> None:
        super().__init__(lo.Space(n), lo.Space(n), "x! -> x!")

    def _apply(self, x: Any) -> Any:
        return apply_on_host(self, x)

    def _apply_adjoint(self, y: Any) -> Any:
        return apply_on_host(self, y, adjoint=True)

    def _forward_host(self, x: np.ndarray) -> np.ndarray:
        self.barrier.wait(60)  # lets go of the GIL, as a kernel does
        return 2 * x

    _adjoint_host = _forward_host


def test_kernels_of_two_devices_run_at_once() -> None:
    mesh = Mesh(np.array(jax.devices()[:2]), ("d",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("d")
    double = jax.jit(
        jax.shard_map(lambda x: Meeting(3) @ x, mesh=mesh, in_specs=spec, out_specs=spec)
    )
    np.testing.assert_array_equal(double(jnp.arange(6.0)), 2 * np.arange(6))
