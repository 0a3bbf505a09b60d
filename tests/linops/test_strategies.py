"""The shipped strategies: every operator drawn is its matrix and passes the suite, trees too."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

import linops as lo
from linops.testing.checks import CHECKS
from linops.testing.leaves import KINDS
from linops.testing.realified import complex_matrix, dimension, real_matrix
from linops.testing.strategies import compositions, operators, spaces, trees, vectors
from linops.testing.subject import Failure, NotApplicable, Subject, each, elements

SLOW = {"jax", "jax_derivatives", "jax_arguments", "torch_derivatives", "array_api_strict",
        "device", "threads", "columns", "layouts"}  # fmt: skip
# Sums that cancel keep fewer digits than the dot test asks for (their matrices are held entry by
# entry).
SLOW |= {"dot", "block_adjoints"}
LAWS = {name: check for name, check in CHECKS.items() if name not in SLOW}
# A failing tree is told as it is: shrinking one takes minutes.
phases = (Phase.explicit, Phase.reuse, Phase.generate)
many = settings(deadline=None, suppress_health_check=list(HealthCheck), phases=phases)


def holds(A: lo.LinearOperator, matrix: np.ndarray, size: np.ndarray) -> None:
    """Equal to its matrix over the reals, entry by entry, both ways."""
    eps = max(Subject(A, 0).eps, 1e-16)
    for B, wanted, bound in ((A, matrix, size), (A.H, matrix.T, size.T)):
        found = real_matrix(B)
        assert found.shape == wanted.shape
        limit = 64 * eps * (bound + 0.05 * bound.max(initial=0))
        assert (np.abs(found - wanted) <= limit).all(), A.describe()


def passes(A: lo.LinearOperator, names: set[str]) -> None:
    subject = Subject(A, 0)
    for name in names:
        try:
            LAWS[name](subject)
        except NotApplicable:
            continue
        except Failure as error:
            pytest.fail(f"{name}: {error}\n{A.describe()}")


@pytest.mark.slow
@settings(many, max_examples=200)
@given(st.data())
def test_trees_are_their_matrices(data: st.DataObject) -> None:
    # The matrices are those of the trees as they were written, before the algebra simplifies.
    holds(*data.draw(trees(4)))


@pytest.mark.slow
@settings(many, max_examples=50)
@given(st.data())
def test_trees_pass_the_suite(data: st.DataObject) -> None:
    passes(data.draw(trees(3, max_size=8)).operator, set(LAWS))


@pytest.mark.slow
@settings(many, max_examples=100)
@given(st.data())
def test_trees_can_be_cut_and_are_linear(data: st.DataObject) -> None:
    names = {"spaces", "additivity", "homogeneity", "involution", "transpose", "blocks", "tags"}
    passes(data.draw(trees(3, max_size=10)).operator, names)


@pytest.mark.slow
@settings(many, max_examples=24)
@given(trees(2, max_size=6))
def test_jax_and_torch_differentiate_trees_as_their_matrices(tree) -> None:
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    A, matrix, size = tree
    x, dx, y = (flat_values(s, k) for k, s in enumerate((A.domain, A.domain, A.codomain)))
    image, back = (matrix @ dx, size @ abs(dx)), (matrix.T @ y, size.T @ abs(y))
    square = (2 * matrix.T @ (matrix @ x), 2 * size.T @ (size @ abs(x)))
    eps = Subject(A, 0).eps

    def near(found, wanted) -> None:
        limit = 128 * eps * (wanted[1] + 0.05 * wanted[1].max(initial=0))
        assert (abs(found - wanted[0]) <= limit).all(), A.describe()

    def energy(v):
        return sum((part * part.conj()).real.sum() for part in elements(A(v)))

    with jax.enable_x64(True):

        def program(v, dv, w):
            return jax.jvp(A, (v,), (dv,))[1], jax.vjp(A, v)[1](w)[0], jax.grad(energy)(v)

        arguments = [element(s, p) for s, p in ((A.domain, x), (A.domain, dx), (A.codomain, y))]
        arguments[2] = each(np.conj, arguments[2])
        found = jax.jit(program)(*(each(jax.numpy.asarray, part) for part in arguments))
        tangent, cotangent, gradient = (each(np.asarray, part) for part in found)
        near(numbers(tangent), image)
        # JAX transposes without conjugation and gives the conjugate of a gradient.
        near(numbers(each(np.conj, cotangent)), back)
        near(numbers(each(np.conj, gradient)), square)

    v = each(lambda part: torch.from_numpy(part).requires_grad_(), element(A.domain, x))
    energy(v).backward()
    near(numbers(each(lambda part: part.grad.resolve_conj().numpy(), v)), square)


def flat_values(space: lo.Space, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(dimension(space))


def element(space: lo.Space, values: np.ndarray):
    """The element with these real numbers, in the order of `linops.testing.realified`."""
    parts, start = [], 0
    for member in space.members:
        part = values[start : start + member.size]
        start += member.size
        if member.is_complex:
            part = part + 1j * values[start : start + member.size]
            start += member.size
        parts.append(part.reshape(member.shape).astype(member.dtype))
    return parts[0] if isinstance(space, lo.Space) else tuple(parts)


def numbers(x) -> np.ndarray:
    flat = [np.asarray(part).ravel() for part in elements(x)]
    kinds = [(f.real, f.imag) if f.dtype.kind == "c" else (f,) for f in flat]
    return np.concatenate([half.astype("float64") for kind in kinds for half in kind])


@pytest.mark.slow
def test_blocks_of_trees_keep_the_names_of_the_whole() -> None:
    rng = np.random.default_rng(0)

    def matrix(*shape: int, **spaces: lo.Space) -> lo.LinearOperator:
        return lo.Matrix(rng.standard_normal(shape), **spaces)

    G = lo.kron(matrix(3, 4), matrix(2, 3)).gram()
    to_row = matrix(5, 12, domain=lo.Space((4, 3), "float64"))
    blur = lo.Convolve(lo.Space((4, 3), "float64"), np.ones((3, 1)))
    alike = lo.block_diagonal([blur, lo.Diagonal(np.ones((4, 3))) @ blur])
    trees = [G, to_row @ G, G @ to_row.H, lo.kron(G, G), lo.kron(G, to_row), G + blur, alike]
    trees += [lo.vstack([to_row @ G, G]), lo.hstack([to_row, to_row @ G]), alike @ alike]
    for A in trees:
        CHECKS["nested_blocks"](Subject(A, 0))
        CHECKS["padded_blocks"](Subject(A, 0))


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_leaves_are_their_matrices(kind: str) -> None:
    @settings(many, max_examples=15)
    @given(st.data())
    def run(data: st.DataObject) -> None:
        A, dense = KINDS[kind](data.draw, data.draw(spaces(max_size=12)))
        found = A.to_dense()
        wanted = dense if A.codomain.is_complex else dense.real
        limit = 64 * Subject(A, 0).eps * (1 + np.abs(wanted).max(initial=0))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=limit)

    run()


@pytest.mark.slow
@settings(many, max_examples=40)
@given(st.data())
def test_pairs_for_users(data: st.DataObject) -> None:
    for A, dense in (data.draw(operators()), data.draw(compositions())):
        assert dense.shape == A.shape
        x = data.draw(vectors(A.domain))
        flat = np.concatenate([np.asarray(p).ravel() for p in (x if type(x) is tuple else (x,))])
        image = dense @ flat if A.codomain.is_complex else (dense @ flat).real
        y = A(x)
        found = np.concatenate([np.ravel(p) for p in (y if type(y) is tuple else (y,))])
        bound = 1e3 * Subject(A, 0).eps * (1 + np.abs(dense).sum()) * (1 + np.abs(flat).max())
        # Intermediate results of a tree may be larger than its matrix.
        assert np.abs(found - image).max(initial=0) <= 1e3 * bound


@pytest.mark.slow
def test_every_elementary_operator_and_node_is_drawn() -> None:
    seen: Counter[str] = Counter()

    @settings(many, max_examples=300, database=None, derandomize=True)
    @given(trees(3))
    def run(drawn) -> None:
        for line in drawn.operator.describe().splitlines():
            seen[line.split(":")[0].strip().removesuffix(".H").split(" ")[0]] += 1

    run()
    nodes = {"Product", "Sum", "Scaled", "Gram", "vstack", "hstack", "block_diagonal", "concat",
             "kron"}  # fmt: skip
    # Not drawn yet: tests of their own in `tests/elementary` hold them to the contract.
    apart = {"Conj", "Flip", "Imag", "Real", "Roll", "CumulativeSum", "DCT", "DST", "Wavelet"}
    assert (set(lo.elementary.__all__) - apart) | {"Gradient"} | nodes <= set(seen)


def test_real_forms_of_matrices() -> None:
    # y = conj(c) x over the complex numbers, and Re(c x) from complex to real, by hand.
    real, complex_ = lo.Space(1, "float64"), lo.Space(1, "complex128")
    c = 2 + 3j
    turn = lo.Diagonal(np.array([c]), complex_)
    np.testing.assert_array_equal(real_matrix(turn.H), [[2, 3], [-3, 2]])
    F = lo.Diagonal(np.array([c]), real)
    np.testing.assert_array_equal(real_matrix(F), [[2], [3]])
    np.testing.assert_array_equal(real_matrix(F.H), [[2, 3]])
    np.testing.assert_array_equal(complex_matrix(np.array([[2.0], [3]]), real, complex_), [[c]])
    np.testing.assert_array_equal(
        complex_matrix(np.array([[2.0, 3]]), complex_, real), [[c.conjugate()]]
    )


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("module", ["linops", "linops.testing"])
def test_hypothesis_is_imported_when_asked_alone(module: str) -> None:
    code = f"import sys, {module}; sys.exit('hypothesis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
