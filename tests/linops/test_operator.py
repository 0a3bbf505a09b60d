"""The contract of an operator: validation, dtypes, immutability, pickling, bare solvers."""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings

import numpy as np
import pytest
import scipy.sparse.linalg as sla

import linops as lo
from linops.errors import DTypeError, ShapeError

from .builders import Halved, array, matrix, space, twice


def test_a_plain_subclass_works_and_is_immutable() -> None:
    A = Halved(3)
    np.testing.assert_array_equal(A @ np.arange(3), np.arange(3) / 2)
    assert (A @ np.arange(3)).dtype == "float32"
    for change in (lambda: setattr(A, "factor", 3), lambda: setattr(A, "new", 1)):
        with pytest.raises(AttributeError, match="Halved is immutable"):
            change()
    with pytest.raises(AttributeError, match="immutable"):
        del A.factor
    terms = [A, A]
    lo.vstack(terms)
    assert terms == [A, A]
    assert len({A, Halved(3)}) == 2
    assert A.H.H is A


def test_arrays_given_to_an_operator_are_its_own() -> None:
    d = np.ones(3, "float32")
    A = lo.Diagonal(d)
    d[:] = 7
    np.testing.assert_array_equal(A @ np.ones(3, "float32"), np.ones(3))


def test_shapes_are_checked_with_a_hint() -> None:
    A = lo.Gradient(space())
    with pytest.raises(ShapeError, match=r"A.domain.unravel\(v\), or call A.matvec\(v\)"):
        A @ np.zeros(12)
    with pytest.raises(ShapeError, match=r"Gradient expects \(y=3, x=4\), got \(4, 3\): axes y"):
        A @ np.zeros((4, 3))
    with pytest.raises(DTypeError, match="convert it"):
        A([[0.0] * 4] * 3)
    stack = lo.hstack([A.H, lo.Identity(space())])
    with pytest.raises(ShapeError, match="tuple of 2 arrays"):
        stack @ np.zeros((3, 4))


def test_a_higher_precision_warns_once_an_operator() -> None:
    A = lo.Gradient(space())
    with pytest.warns(RuntimeWarning, match="float64 input is cast"):
        assert (A @ np.zeros((3, 4))).dtype == "float32"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        A @ np.zeros((3, 4))
        A @ np.zeros((3, 4), "int64")
    with pytest.raises(DTypeError, match="takes numbers, got dtype object"):
        A @ np.zeros((3, 4), object)


def test_flat_vectors_are_mirrored() -> None:
    A = matrix(5, 5)
    v = array(5)
    M = A.to_dense()
    np.testing.assert_allclose(A.matvec(v), M @ v, rtol=1e-5)
    assert A.matvec(v[:, None]).shape == (5, 1)
    np.testing.assert_allclose(A.rmatvec(v[:, None])[:, 0], M.T @ v, rtol=1e-5)
    for bad in (np.zeros((5, 5), "f4"), np.zeros((1, 5), "f4"), np.zeros(4, "f4")):
        with pytest.raises(ShapeError, match=r"\(5,\) or \(5, 1\)"):
            A.matvec(bad)
    G = lo.Gradient(space())
    assert (G.shape, G.dims, G.dimsd) == ((24, 12), (3, 4), (2, 3, 4))
    flat = array(12)
    np.testing.assert_array_equal(G.matvec(flat), (G @ flat.reshape(3, 4)).ravel())


def well_posed(dtype: str = "float64") -> tuple[lo.LinearOperator, np.ndarray]:
    M = array((8, 6), dtype, 5) + 3 * np.eye(8, 6, dtype=dtype)
    return lo.Matrix(M, lo.Space((2, 3), dtype), lo.Space((4, 2), dtype)), M


@pytest.mark.parametrize("solver", ["lsqr", "lsmr"])
def test_scipy_least_squares_runs_on_the_bare_operator(solver: str) -> None:
    A, M = well_posed()
    y = array(8, "float64")
    found = getattr(sla, solver)(A, y, atol=1e-13, btol=1e-13)[0]
    np.testing.assert_allclose(found, np.linalg.lstsq(M, y, rcond=None)[0], rtol=1e-8)


@pytest.mark.parametrize("solver", ["cg", "gmres"])
def test_scipy_solves_a_gram(solver: str) -> None:
    A, M = well_posed()
    y = array(6, "float64")
    found, status = getattr(sla, solver)(A.gram(), y, rtol=1e-12)
    assert status == 0
    np.testing.assert_allclose(found, np.linalg.solve(M.T @ M, y), rtol=1e-8)


def test_scipy_singular_values_and_eigenvalues() -> None:
    A, M = well_posed()
    wanted = np.linalg.svd(M, compute_uv=False)
    start = np.ones(6)
    np.testing.assert_allclose(sorted(sla.svds(A, k=2, v0=start)[1]), sorted(wanted[:2]), rtol=1e-8)
    largest = sla.eigsh(A.gram(), k=1, v0=start)[0]
    np.testing.assert_allclose(largest, wanted[0] ** 2, rtol=1e-8)
    assert sla.svds(well_posed("float32")[0], k=1, v0=start.astype("f4"))[1].dtype == "float32"


@pytest.mark.parametrize("solver", ["cgls", "lsqr"])
def test_pylops_solvers_run_on_the_bare_operator(solver: str) -> None:
    import pylops

    A, M = well_posed()
    y = array(8, "float64")
    run = getattr(pylops.optimization.basic, solver)
    found = run(A, y.copy(), np.zeros(6), niter=50)[0]
    np.testing.assert_allclose(
        np.asarray(found).ravel(), np.linalg.lstsq(M, y, rcond=None)[0], rtol=1e-6
    )


# --- pickling, display, classes -----------------------------------------------------------


def test_a_pair_of_module_functions_pickles_and_a_lambda_is_named() -> None:
    A = lo.from_functions(twice, twice, domain=lo.Space(3))
    x = array(3)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(2 * A)) @ x, 4 * x)
    B = lo.from_functions(lambda x: x, twice, domain=lo.Space(3))
    with pytest.raises(pickle.PicklingError, match="lambda.*module level"):
        pickle.dumps(B)


def test_a_copy_applies() -> None:
    A = lo.Gradient(space())
    np.testing.assert_array_equal(copy.deepcopy(A) @ space().ones(), A @ space().ones())


def test_from_functions_refuses_what_it_cannot_know() -> None:
    with pytest.raises(TypeError, match="adjoint as its second argument"):
        lo.from_functions(twice, domain=lo.Space(3))
    with pytest.raises(ValueError, match="'exact' or 'approximate'"):
        lo.from_functions(twice, twice, domain=lo.Space(3), adjoint_kind="near")
    with pytest.raises(TypeError):
        lo.from_functions(twice, twice, lo.Space(3))
    A = lo.from_functions(lambda x: x[:2], twice, domain=lo.Space(3))
    with pytest.raises(ShapeError, match=r"returned shape \(2,\); it declares \(3,\)"):
        A @ np.zeros(3, "float32")
    with pytest.raises(ValueError, match="'fast', 'float32', 'float64'"):
        lo.from_functions(twice, twice, domain=lo.Space(3), precision="double")


def test_describe_shows_the_tree() -> None:
    S = space()
    text = (2.5 * lo.Gradient(S).gram() + lo.Identity(S)).describe()
    lines = text.splitlines()
    assert [line.split(":")[0].strip() for line in lines] == [
        "Sum",
        "Scaled by 2.5",
        "Gram",
        "Gradient",
        "Identity",
    ]
    assert "'y~2 x~2 -> y x'" in lines[0]
    assert "(y=3, x=4) float32 -> (component=2, y=3, x=4) float32" in lines[3]


def walk(cls: type) -> set[type]:
    found = {cls}
    for child in cls.__subclasses__():
        found |= walk(child)
    return found


def test_concrete_classes_are_named_anew_but_never_overridden() -> None:
    """A class that can be built may be given arguments of another form, by `__init__` or `__new__`,
    as declared stencils do; what it computes is nobody's to change."""
    import linops.interop
    import linops.stencils

    assert linops.interop.from_scipy and linops.stencils.Advection
    own = [c for c in walk(lo.Operator) if c.__module__.split(".")[0] == "linops"]
    assert len(own) > 20
    for cls in own:
        if inspect.isabstract(cls):
            continue
        for child in cls.__subclasses__():
            kept = (*vars(object), "_exact", "_aliases", "_node")
            changed = {n for n in vars(child) if hasattr(cls, n) and n not in kept}
            changed = {n for n in changed if not n.startswith(("__", "_abc_"))}
            assert not changed, f"{child} changes {changed} of {cls}, which is concrete"


def test_the_base_class_stays_small() -> None:
    arithmetic = {name for name in dir(lo.LinearOperator) if name.startswith("_")}
    names = [name for name in dir(lo.LinearOperator) if name not in arithmetic]
    assert len(names) <= 30, names


def test_nothing_is_densified_by_accident() -> None:
    S = lo.Space((1000, 1000))
    chain = lo.Diagonal(np.full(S.shape, 2, "f4"), S) @ lo.Diagonal(np.full(S.shape, 3, "f4"), S)
    assert chain.diagonal().max() == 6
    assert chain.gram().diagonal().max() == 36
    # A diagonal on either side of an operator that knows its squares, weighted.
    R, d = lo.SumOver(S, axes=(0,)), np.random.default_rng(0).random((2, 1000))
    both = lo.Diagonal(d[0], R.codomain) @ R @ lo.Diagonal(np.outer(d[1], d[0]), S)
    wanted = d[1] * d[0] ** 2 * np.outer(d[1], d[0]) ** 2
    np.testing.assert_allclose(both.gram(d[1]).diagonal(), wanted, rtol=1e-5)
    with pytest.raises(ShapeError, match="limit"):
        chain.to_dense()
    with pytest.raises(ShapeError, match="limit"):
        lo.Gradient(S).gram().diagonal()
