"""Operators as pytrees: arrays are children, structure is static, new values do not retrace."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import geometries as ge
import linops as lo
from linops import structure


def tree(seed: int, name: str | None = None) -> Any:
    rng = np.random.default_rng(seed)
    m = rng.standard_normal((3, 4)).astype("float32")
    w = rng.standard_normal(4).astype("float32")
    index = rng.permutation(4)[:2]
    B = lo.Matrix(m) @ lo.Diagonal(w) @ lo.Scatter(lo.Space(4), index)
    return (1.5 + seed) * B - lo.Matrix(m[:, :2])


def test_new_values_do_not_trace_again() -> None:
    traces = []

    @jax.jit
    def apply(A: Any, x: Any) -> Any:
        traces.append(A)
        return A @ x

    x = np.float32([1.0, -2.0])
    for seed in range(4):
        A = tree(seed)
        np.testing.assert_allclose(apply(A, x), A.to_dense() @ x, rtol=1e-5, atol=1e-5)
    assert len(traces) == 1


def test_the_name_is_no_part_of_the_structure() -> None:
    traces = []

    @jax.jit
    def apply(A: Any, x: Any) -> Any:
        traces.append(A.name)
        return A @ x

    class Twice(lo.LinearOperator):
        def __init__(self, name: str, power: int) -> None:
            super().__init__(lo.Space(2), lo.Space(2), name=name)
            self.power = power

        def _apply(self, x: Any) -> Any:
            return 2**self.power * x

        _apply_adjoint = _apply

    x = np.ones(2, "float32")
    assert apply(Twice("a", 1), x)[0] == apply(Twice("b", 1), x)[0] == 2
    assert traces == ["a"]
    assert apply(Twice("a", 2), x)[0] == 4
    assert traces == ["a", "a"]


def test_round_trips_and_maps() -> None:
    A = tree(1)
    leaves, structure = jax.tree.flatten(A)
    B = jax.tree.unflatten(structure, leaves)
    np.testing.assert_array_equal(A.to_dense(), B.to_dense())
    assert structure == jax.tree.structure(tree(2))
    assert hash(structure) == hash(jax.tree.structure(tree(2)))
    assert jax.tree.structure(lo.Diagonal(np.ones(3))) != jax.tree.structure(
        lo.Diagonal(np.ones(4))
    )
    shapes = jax.tree.map(lambda leaf: str(jnp.shape(leaf)), A)
    assert sorted(jax.tree.leaves(shapes)) == ["()", "(2,)", "(3, 2)", "(3, 4)", "(4,)"]
    assert isinstance(repr(jax.tree.map(jnp.shape, A)), str)
    none = jax.tree.map(lambda _: None, A)
    assert isinstance(repr(none), str)
    doubled = jax.tree.map(lambda leaf: leaf * 2 if leaf.ndim == 2 else leaf, tree_of_arrays())
    np.testing.assert_array_equal(doubled.to_dense(), 2 * tree_of_arrays().to_dense())
    with pytest.raises(AttributeError, match="immutable"):
        B.scalar = 3
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(A)[0]]
    assert any(path.endswith(".array") for path in paths)


def tree_of_arrays() -> Any:
    return lo.Matrix(np.arange(6, dtype="float32").reshape(2, 3)) @ lo.Diagonal(np.ones(3, "f4"))


def test_gradient_and_vmap_over_an_operators_arrays() -> None:
    A, x = tree_of_arrays(), np.float32([1.0, 2.0, -1.0])
    gradient = jax.grad(lambda A: jnp.sum((A @ x) ** 2))(A)
    m, w = (np.asarray(term.array) for term in A.terms)
    r = 2 * (m @ (w * x))
    np.testing.assert_allclose(gradient.terms[0].array, np.outer(r, w * x), rtol=1e-5)
    np.testing.assert_allclose(gradient.terms[1].array, (m.T @ r) * x, rtol=1e-5)
    stacked = jax.tree.map(lambda leaf: np.stack([leaf, 2 * leaf]), A)
    found = jax.vmap(lambda A: A @ x)(stacked)
    np.testing.assert_allclose(found, np.stack([m @ (w * x), 4 * (m @ (w * x))]), rtol=1e-6)


def test_what_cannot_be_static_is_refused_when_the_operator_is_made() -> None:
    class Listed(lo.LinearOperator):
        def __init__(self, value: Any) -> None:
            super().__init__(lo.Space(2), lo.Space(2))
            self.table = value

        def _apply(self, x: Any) -> Any:
            return x

        _apply_adjoint = _apply

    for value in ([1, 2], {"a": np.ones(2)}, (np.ones(2), None)):
        with pytest.raises(TypeError, match=r"Listed\.table is a (list|dict|tuple)"):
            Listed(value)
    for good in ((1, 2), (np.ones(2), np.ones(3)), "text", None, np.ones(2)):
        assert jax.tree.structure(Listed(good)) == jax.tree.structure(Listed(good))


def test_an_operator_is_taken_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    whole = structure.flatten
    monkeypatch.setattr(structure, "flatten", lambda A: taken.append(A) or whole(A))
    A = 2.5 * lo.Gradient(lo.Space(3)) @ lo.Diagonal(np.ones(3, "float32"))
    apply = jax.jit(lambda A, x: A @ x)
    apply(A, jnp.ones(3))
    first = len(taken)
    assert first >= 3
    for _ in range(3):
        apply(A, jnp.ones(3))
        jax.tree.leaves(A)
    assert len(taken) == first


def test_a_sparse_matrix_is_static() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    A = lo.Matrix(sparse.random(4, 3, density=0.5, random_state=0, format="csr", dtype="float32"))
    assert jax.tree.structure(A) == jax.tree.structure(A)
    leaves, structure = jax.tree.flatten(A)
    assert leaves == []
    B = jax.tree.unflatten(structure, leaves)
    np.testing.assert_array_equal(A.to_dense(), B.to_dense())


def test_frames_of_a_projector_survive_without_x64() -> None:
    angles = np.linspace(0, np.pi, 4, endpoint=False) + 1e-12
    A = ge.Projector(ge.ParallelBeam(angles, ge.Detector((5,))), ge.Grid((4, 4)))
    assert not jax.config.jax_enable_x64
    B = jax.tree.map(lambda leaf: np.asarray(jnp.asarray(leaf)), A)
    np.testing.assert_array_equal(B.frames, A.frames)
    assert B.frames.dtype == np.float64


def test_operators_that_were_made_before_jax_was_imported() -> None:
    program = """
import numpy as np, linops as lo, sys
A = lo.Diagonal(np.float32([1, 2]))
assert "jax" not in sys.modules
import jax
assert jax.tree.leaves(A) == [A]
lo.register_jax()
lo.register_jax()
assert [leaf.shape for leaf in jax.tree.leaves(A)] == [(2,)]
print(jax.jit(lambda A, x: A @ x)(A, np.float32([3, 4])))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[3. 8.]"
