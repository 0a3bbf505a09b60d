"""What users of other libraries reported, as tests: shapes of flat and shaped factors, memory of
large operators, devices, involution, pairs that do not match, sums over shards."""

from __future__ import annotations

import itertools
import tracemalloc
import warnings

import numpy as np
import pytest

import linops as lo

N = 10**6


def peak(function) -> float:
    """The most memory that was held at a time, in vectors of N float32."""
    tracemalloc.start()
    try:
        kept = function()
        return tracemalloc.get_traced_memory()[1] / (4 * N)
    finally:
        del kept
        tracemalloc.stop()


@pytest.mark.parametrize("flat", list(itertools.product([False, True], repeat=3)))
def test_the_output_has_the_shape_of_the_codomain_whatever_the_factors_are(flat) -> None:
    image, row = lo.Space((3, 4), "float64", ("y", "x")), lo.Space(12, "float64", ("row",))
    flatten = lo.Reshape(image, 12, axes=("row",))
    M = np.random.default_rng(9).standard_normal((12, 12))
    weights = np.random.default_rng(0).standard_normal((3, 12))
    spaces = [row if is_flat else image for is_flat in flat]
    terms = [lo.Diagonal(w.reshape(s.shape), s) for w, s in zip(weights, spaces, strict=True)]
    terms[1] = lo.Matrix(M, spaces[1], spaces[1]) @ terms[1]
    matrix = np.diag(weights[0]) @ M @ np.diag(weights[1]) @ np.diag(weights[2])
    outer = terms[0]
    for k in (1, 2):
        if flat[k - 1] != flat[k]:
            outer = outer @ (flatten if flat[k - 1] else flatten.H)
        outer = outer @ terms[k]
    x = outer.domain.random(0)
    for batch in ((), (2,), (0,)):
        y = outer @ np.broadcast_to(x, (*batch, *outer.domain.shape))
        assert y.shape == (*batch, *outer.codomain.shape)
        back = outer.H @ np.zeros((*batch, *outer.codomain.shape))
        assert back.shape == (*batch, *outer.domain.shape)
    assert outer.codomain.shape == ((12,) if flat[0] else (3, 4))
    np.testing.assert_allclose((outer @ x).ravel(), matrix @ x.ravel(), rtol=1e-12)
    assert outer.matvec(x.ravel()).shape == (12,)
    assert outer.matvec(x.reshape(12, 1)).shape == (12, 1)


def test_large_compositions_are_never_made_dense() -> None:
    space = lo.Space(N)
    w = np.linspace(1.0, 2.0, N, dtype="float32")
    D, F = lo.Diagonal(w, space), lo.FFT(space)
    chains = {
        "diagonals": (D @ D @ lo.Identity(space), w**2),
        "sum": (D + 2 * D, 3 * w),
        "gram": ((3 * D).gram(), 9 * w**2),
        "weighted gram": (D.gram(w), w**3),
    }
    for name, (A, wanted) in chains.items():
        found: list[np.ndarray] = []
        assert peak(lambda A=A, found=found: found.append(A.diagonal())) < 10, name
        np.testing.assert_allclose(found[0], wanted, rtol=1e-6)
        assert "diagonal" in A.tags and "psd" in A.tags
    # Transforms, and the steps of a solver with them.
    W = F.H @ lo.Diagonal(w[: F.codomain.size], F.codomain) @ F
    x = space.random(0)
    assert peak(lambda: W.tags) < 10
    assert peak(lambda: W @ x) < 10
    assert peak(lambda: W.H @ x) < 10
    solvers = pytest.importorskip("solvers")
    y = w * x
    solved: list[np.ndarray] = []
    run = lambda: solved.append(solvers.cgls(D, y, iterations=12).solution)  # noqa: E731
    assert peak(run) < 10
    np.testing.assert_allclose(solved[0], x, atol=1e-4)


def test_a_projection_of_many_cells_stays_within_ten_vectors() -> None:
    A, x = many_cells()
    assert peak(lambda: A @ x) < 10
    assert peak(lambda: A.gram().tags) < 10


def test_a_back_projection_of_many_cells_stays_within_ten_vectors() -> None:
    A, x = many_cells()
    y = A @ x
    assert peak(lambda: A.H @ y) < 10


def many_cells():
    geometries = pytest.importorskip("geometries")
    angles = np.linspace(0, np.pi, 8, endpoint=False)
    beam = geometries.ParallelBeam(angles, geometries.Detector(1000))
    A = geometries.Projector(beam, geometries.Grid((1000, 1000)))
    x = np.ones((1000, 1000), "float32")
    A.H @ (A @ x)  # compiled, and its tables made
    return A, x


def test_views_are_involutions_by_identity() -> None:
    space = lo.Space((2, 3), "complex128")
    M = lo.Matrix(np.arange(36).reshape(6, 6) * (1 + 1j), space, space)
    D = lo.Diagonal(np.arange(6.0).reshape(2, 3) + 2j, space)
    for A in (M, D, D @ M, M + D, 2j * M, lo.vstack([M, D]), lo.kron(M, M), M.gram()):
        assert A.H.H is A and A.T.T is A and A.conj().conj() is A and A.H is A.H
    assert M.gram().H is not None and "self_adjoint" in M.gram().tags
    G = M.gram()
    assert G.H is G
    assert [type(t) for t in (D @ M).H.terms] == [type(t.H) for t in reversed((D @ M).terms)]


def test_only_zero_stops_what_is_not_a_number() -> None:
    D = lo.Diagonal(np.array([1.0, 2.0]))
    x = np.array([np.nan, np.inf])
    np.testing.assert_array_equal(D @ x, x)
    nothing = 0 * D
    assert isinstance(nothing, lo.Zero) and nothing.domain.dtype == D.domain.dtype
    np.testing.assert_array_equal(nothing @ x, [0, 0])
    assert not np.any(D @ np.zeros(2)) and (D @ np.zeros((0, 2))).shape == (0, 2)


def test_an_approximate_adjoint_spreads_and_is_shown() -> None:
    space = lo.Space(3)
    A = lo.from_functions(
        lambda x: 2 * x, lambda y: 2.001 * y, domain=space, adjoint_kind="approximate"
    )
    D = lo.Diagonal(np.ones(3, "float32") * 3)
    for B in (A, A.H, D @ A, A + D, 2 * A, lo.vstack([A, D]), lo.kron(A, D), A.gram(), A.conj()):
        assert "approximate_adjoint" in B.tags, B
        assert "approximate_adjoint" in B.describe()
    assert "approximate_adjoint" not in (D @ D).tags
    solvers = pytest.importorskip("solvers")
    with pytest.warns(UserWarning, match="adjoint"):
        solvers.cgls(A, np.ones(3, "float32"), iterations=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solvers.cgls(D, np.ones(3, "float32"), iterations=2)


@pytest.mark.parametrize("name", ["gradient", "matrix", "chain", "stack", "concat", "kron", "gram"])
def test_results_and_adjoints_stay_on_the_second_device(name: str) -> None:
    strict = pytest.importorskip("array_api_strict")
    device = strict.Device("device1")
    space = lo.Space((2, 3))
    M = lo.Matrix(np.ones((6, 6), "float32"), space, space)
    D = lo.Diagonal(np.ones((2, 3), "float32"))
    ones, eye = np.ones((3, 2), "float32"), np.eye(3, dtype="float32")
    operators = {
        "gradient": lo.Gradient(space),
        "matrix": M,
        "chain": 2 * M @ D + lo.Identity(space),
        "stack": lo.vstack([M, lo.Zero(space)]),
        "concat": lo.concat([M, D]),
        "kron": lo.kron(lo.Matrix(ones), lo.Matrix(eye)),
        "gram": M.gram(np.ones((2, 3), "float32")),
    }
    A = operators[name]
    for B in (A, A.H, A.T):
        x = B.domain.random(0)
        there = [strict.asarray(p, device=device) for p in (x if isinstance(x, tuple) else (x,))]
        y = B @ (tuple(there) if isinstance(x, tuple) else there[0])
        for part in y if isinstance(y, tuple) else (y,):
            assert part.device == device


@pytest.mark.slow
@pytest.mark.parametrize("name", ["diagonal", "matrix", "gradient"])
def test_one_operator_serves_two_devices_of_jax_in_turn(name: str) -> None:
    jax = pytest.importorskip("jax")
    if len(jax.devices()) < 2:
        pytest.skip("JAX has one device here")
    space = lo.Space((2, 3))
    A = {
        "diagonal": lo.Diagonal(np.ones((2, 3), "float32")),
        "matrix": lo.Matrix(np.ones((6, 6), "float32"), space, space),
        "gradient": lo.Gradient(space),
    }[name]
    for device in (*jax.devices()[:2], jax.devices()[0]):
        for B in (A, A.H):
            y = B @ jax.device_put(B.domain.random(0), device)
            assert y.devices() == {device}


def test_nothing_goes_through_the_host_in_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    space = lo.Space((3, 4), "float64")
    A = lo.FFT(space).H @ lo.FFT(space) + lo.Gradient(space).gram() + 2 * lo.Identity(space)
    A = lo.Diagonal(space.random(1), space) @ A
    x = torch.from_numpy(space.random(0)).requires_grad_()
    A(x)  # constants are moved once

    def refused(self, *args, **kwargs):
        raise AssertionError("a tensor was copied to the host")

    for method in ("cpu", "numpy", "__array__", "tolist"):
        monkeypatch.setattr(torch.Tensor, method, refused)
    y = A(x)
    energy = (y * y).sum()
    (first,) = torch.autograd.grad(energy, x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    monkeypatch.undo()
    dense = A.to_dense()
    np.testing.assert_allclose(
        first.detach().numpy().ravel(), 2 * dense.T @ dense @ x.detach().numpy().ravel()
    )
    np.testing.assert_allclose(second.numpy().ravel(), 2 * dense.T @ dense @ np.ones(12))


def test_the_transpose_of_sharded_views_sums_over_devices_once() -> None:
    jax = pytest.importorskip("jax")
    from jax.sharding import PartitionSpec as P

    kinds = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((4,), ("view",), axis_types=kinds, devices=jax.devices()[:4])
    M = np.random.default_rng(0).standard_normal((4, 3, 5)).astype("float32")

    def project(m, x):
        return (lo.Matrix(m[0]) @ x)[None]

    views = jax.shard_map(project, mesh=mesh, in_specs=(P("view"), P()), out_specs=P("view"))
    x, y = jax.ShapeDtypeStruct((5,), "float32"), np.ones((4, 3), "float32")
    transpose = jax.linear_transpose(lambda v: views(M, v), x)
    assert str(jax.make_jaxpr(transpose)(y)).count("psum") == 1
    wanted = sum(m.T @ row for m, row in zip(M, y, strict=True))
    np.testing.assert_allclose(transpose(y)[0], wanted, rtol=1e-5, atol=1e-6)


def test_a_chain_keeps_two_vectors_at_a_time() -> None:
    space = lo.Space(N)
    ones = np.ones(2, "float32")
    chain = lo.Convolve(space, ones)
    for _ in range(9):
        chain = lo.Convolve(space, ones, method="direct") @ lo.Gradient(space).gram() @ chain
    x = space.random(0)
    chain @ x  # compiled
    single = peak(lambda: lo.Convolve(space, ones) @ x)
    double = peak(lambda: lo.Gradient(space).gram() @ x)
    # What the hungriest leaf takes, and the input that it is given.
    assert peak(lambda: chain @ x) < max(single, double) + 1.1


def test_diagonals_are_one_when_they_are_built() -> None:
    space = lo.Space(5)
    weights = [space.random(k) for k in range(20)]
    chain = lo.Diagonal(weights[0])
    for w in weights[1:]:
        chain = chain @ lo.Diagonal(w)
    assert type(chain) is lo.Diagonal
    np.testing.assert_allclose(chain.diagonal(), np.prod(weights, axis=0), rtol=1e-5)


def test_one_library_in_a_tuple() -> None:
    torch = pytest.importorskip("torch")
    A = lo.hstack([lo.Identity(lo.Space(3)), lo.Identity(lo.Space(3))])
    with pytest.raises((TypeError, ValueError), match=r"(?i)namespace|librar"):
        A @ (np.ones(3, "float32"), torch.ones(3))
