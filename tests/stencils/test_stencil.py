"""Stencils against dense matrices, on every boundary, in blocks, in plans, from functions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import linops as lo
from linops.stencils import Extension, Laplacian, Stencil
from linops.testing import check_operator
from tests.stencils import dense


@pytest.mark.parametrize("order", [2, 4, 6, 8])
def test_second_differences_are_extension_then_convolution(order):
    for n, kinds in itertools.product((1, 2, 3, 5, 9, 14), dense.sides()):
        A = Laplacian(lo.Space(n, "float64"), order, (kinds,))
        wanted = dense.matrix(n, dense.second(order), kinds)
        size = max(map(abs, dense.second(order).values()))
        np.testing.assert_allclose(A.to_dense(), wanted, atol=1e-14 * size, err_msg=f"{n} {kinds}")
        np.testing.assert_allclose(A.H.to_dense(), wanted.T, atol=1e-14 * size)
        symmetric = "edge" not in kinds or order == 2
        assert ("self_adjoint" in A.tags) == symmetric
        if symmetric and n >= order // 2:
            found = A.to_dense()
            assert (found == found.T).all()
            assert np.linalg.eigvalsh(found).max() <= 1e-12
        np.testing.assert_allclose(A.diagonal(), np.diag(wanted), atol=1e-14 * size)


def test_several_axes_are_kronecker_sums():
    kinds = (("odd", "even"), ("periodic", "periodic"), ("zero", "edge"))
    shape, steps, weights = (3, 5, 4), (0.5, 2.0, 1.0), (1.0, 0.25, 3.0)
    space = lo.Space(shape, "float64", ("z", "y", "x"), steps)
    A = Laplacian(space, 6, kinds, weights)
    total = np.zeros((60, 60))
    for axis, (n, pair, h, k) in enumerate(zip(shape, kinds, steps, weights, strict=True)):
        parts = [np.eye(m) for m in shape]
        parts[axis] = k * dense.matrix(n, dense.second(6), pair) / h**2
        total += np.kron(np.kron(parts[0], parts[1]), parts[2])
    np.testing.assert_allclose(A.to_dense(), total, atol=1e-13 * abs(total).max())
    np.testing.assert_allclose(A.H.to_dense(), total.T, atol=1e-13 * abs(total).max())
    assert str(A.rule) == "z~3 y~3* x~3 -> z y x"
    dropped = Laplacian(space, 2, weights=(0, 0, 1.0))
    wanted = np.kron(np.eye(15), dense.matrix(4, dense.second(2), ("zero", "zero")))
    np.testing.assert_allclose(dropped.to_dense(), wanted, atol=1e-13)


def test_diagonal_taps_read_the_corners():
    taps = {(-1, 2): 1.0, (1, 1): -3.0, (0, 0): 2.0, (-2, -1): 0.5}
    for first, second in itertools.product(dense.sides(), dense.sides()[::3]):
        A = Stencil(lo.Space((3, 4), "float64"), taps, (first, second))
        wanted = sum(
            w * np.kron(dense.matrix(3, {a: 1.0}, first), dense.matrix(4, {b: 1.0}, second))
            for (a, b), w in taps.items()
        )
        np.testing.assert_allclose(A.to_dense(), wanted, atol=1e-14)
        np.testing.assert_allclose(A.H.to_dense(), wanted.T, atol=1e-14)


def test_extension_and_its_fold():
    for kinds in dense.sides():
        for n, width in ((1, 3), (3, 2), (3, 8), (5, 5)):
            E = Extension(lo.Space(n, "float64"), width, kinds)
            wanted = dense.extension(n, width, width, kinds)
            np.testing.assert_array_equal(E.to_dense(), wanted)
            np.testing.assert_array_equal(E.H.to_dense(), wanted.T)
    x = np.arange(6.0).reshape(2, 3)
    ring = Extension(lo.Space((2, 3), "float64"), (1, 2))
    np.testing.assert_array_equal(ring @ x, np.pad(x, ((1, 1), (2, 2)), mode="wrap"))
    wall = Extension(lo.Space((2, 3), "float64"), (2, 3), "even")
    np.testing.assert_array_equal(wall @ x, np.pad(x, ((2, 2), (3, 3)), mode="symmetric"))
    with pytest.raises(lo.errors.ShapeError, match="width"):
        Extension(lo.Space(3), -1)


CASES = {
    "laplacian": lambda: Laplacian(lo.Space((5, 6)), 4, ("periodic", ("odd", "even"))),
    "fields": lambda: Stencil(
        lo.Space((5, 4)),
        {(0, 1): 2.0, (1, -2): np.linspace(-1, 2, 20).reshape(5, 4), (0, 0): -1.0},
        "odd",
    ),
    "complex": lambda: Stencil(lo.Space((4, 3), "complex64"), {(-2, 1): 1.0, (1, 0): 2j}, "edge"),
    "faces": lambda: Stencil(
        lo.Space((6, 4)), {(-2, 0): 1.0, (1, 1): 2.0}, "even", target=("face", "cell")
    ),
    "from_faces": lambda: Stencil(lo.Space(7), {-2: 1.0, 1: 2.0, 0: -1.0}, "odd", source="face"),
    "components": lambda: Stencil(
        lo.Space((2, 5, 3)),
        {(0, 0): {(-2, 1): 1.0}, (1, 0): {(1, 0): 2.0}, (2, 1): {(0, 0): 1.0}},
        ["odd", "even"],
        components=(3, 2),
    ),
    "short": lambda: Laplacian(lo.Space((2, 1)), 8, ("even", "odd")),
    "extension": lambda: Extension(lo.Space((3, 4)), (0, 5), ("zero", ("odd", "edge"))),
}


@pytest.mark.parametrize("name", CASES)
def test_contract(name):
    # JAX compiles everything anew for each: two that use the whole engine will do.
    check_operator(CASES[name](), libraries=None if name in ("fields", "faces") else ("torch",))


def test_ten_lines_of_a_user():
    def cross(u):
        return 0.25 * (u(1, 1) - u(1, -1) - u(-1, 1) + u(-1, -1))

    A = Stencil(lo.Space((5, 6), "float64"), cross, "even")
    B = Stencil(
        lo.Space((5, 6), "float64"),
        {(1, 1): 0.25, (1, -1): -0.25, (-1, 1): -0.25, (-1, -1): 0.25},
        "even",
    )
    np.testing.assert_array_equal(A.to_dense(), B.to_dense())
    second = Stencil(lo.Space((4, 5)), lambda u: u(0, 1) - 2 * u(0, 0) + u(0, -1))
    assert isinstance(second, lo.LinearOperator)
    check_operator(second, libraries=())
    kappa = np.linspace(1, 2, 12).reshape(3, 4)
    scaled = Stencil(lo.Space((3, 4)), lambda u: kappa * (u(1, 0) - u(0, 0)))
    check_operator(scaled, libraries=())


@pytest.mark.parametrize("boundary", ["periodic", "odd", 0.5])
def test_functions_that_are_not_linear(boundary):
    space = lo.Space((4, 5), "float64")

    def flux(u):
        return u(0, 0) * (u(1, 0) - u(0, -1)) + abs(u(0, 1)) ** 3

    N = Stencil(space, flux, boundary)
    assert not isinstance(N, lo.LinearOperator)
    x, dx = space.random(1), space.random(2)
    sides = {"periodic": "wrap", "odd": None, 0.5: "constant"}
    if sides[boundary] is not None:
        extra = {"constant_values": 0.5} if boundary == 0.5 else {}
        e = np.pad(x, 1, mode=sides[boundary], **extra)
        wanted = x * (e[2:, 1:-1] - e[1:-1, :-2]) + abs(e[1:-1, 2:]) ** 3
        np.testing.assert_allclose(N(x), wanted, atol=1e-14)
    eps = 1e-6
    numeric = (N(x + eps * dx) - N(x - eps * dx)) / (2 * eps)
    np.testing.assert_allclose(N.jvp(x, dx), numeric, atol=1e-8)
    J = N.jacobian(x)
    check_operator(J, libraries=())
    for padded in (False, True) if boundary != 0.5 else (False,):
        block = N.block(0, 1, 3, padded)
        rows = [0, 1, 2, 3]
        np.testing.assert_array_equal(block(x[rows]), N(x)[1:3])
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        np.testing.assert_allclose(N.jvp(jax.numpy.asarray(x), jax.numpy.asarray(dx)), J @ dx)


def test_constants_outside_make_the_map_affine():
    space = lo.Space((3, 4), "float64")
    A = Laplacian(space, 4, ((2.0, "even"), -1.5))
    assert not isinstance(A, lo.LinearOperator)
    x = space.random(0)
    e = np.pad(x, ((2, 0), (0, 0)), constant_values=2.0)
    e = np.concatenate([e, x[::-1][:2]])
    e = np.pad(e, ((0, 0), (2, 2)), constant_values=-1.5)
    wanted = sum(
        w
        * (np.take(e, np.arange(3) + 2 + o, 0)[:, 2:-2] + np.take(e, np.arange(4) + 2 + o, 1)[2:-2])
        for o, w in dense.second(4).items()
    )
    np.testing.assert_allclose(A(x), wanted, atol=1e-13)
    np.testing.assert_array_equal(
        A.jacobian(x).to_dense(), Laplacian(space, 4, (("zero", "even"), "zero")).to_dense()
    )
    with pytest.raises(TypeError, match="affine"):
        A.H  # noqa: B018
    np.testing.assert_array_equal(A.block(0, 1, 3)(x[[0, 1, 2]]), A(x)[1:3])
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        x, (tree, rest) = jax.numpy.asarray(x), jax.tree.flatten(A)
        values = next(k for k, leaf in enumerate(tree) if leaf.shape == (1, 2, 2))

        def total(v):
            return jax.tree.unflatten(rest, [*tree[:values], v, *tree[values + 1 :]])(x).sum()

        slopes = np.asarray(jax.grad(total)(tree[values]))
    # Order 4 sends 4/3 - 1/12 to the first plane and -1/12 to the second: 7/6 a cell in all.
    np.testing.assert_allclose(slopes[0], [[4 * 7 / 6, 0], [3 * 7 / 6, 3 * 7 / 6]], atol=1e-12)


def test_what_is_refused():
    space = lo.Space((3, 4))
    with pytest.raises(ValueError, match="one side only"):
        Laplacian(space, boundary=("zero", ("periodic", "zero")))
    with pytest.raises(ValueError, match="'mirror'"):
        Laplacian(space, boundary="mirror")
    with pytest.raises(ValueError, match="2, 4, 6, 8"):
        Laplacian(space, order=3)
    with pytest.raises(lo.errors.ShapeError, match="offset"):
        Stencil(space, {1: 2.0})
    with pytest.raises(lo.errors.ShapeError, match="coefficient field"):
        Stencil(space, {(0, 1): np.ones(3)})
    with pytest.raises(lo.errors.DTypeError, match="complex"):
        Stencil(space, {(0, 1): 2j})


def test_half_precision_sums_in_float32():
    space = lo.Space(64, "float16")
    x = space.random(3) * 100
    wanted = Laplacian(lo.Space(64), 8, "even") @ x.astype("float32")
    found = Laplacian(space, 8, "even") @ x
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, wanted.astype("float16"))


def test_fields_are_differentiable():
    jax = pytest.importorskip("jax")
    space = lo.Space(6)
    x, w = space.random(0), space.random(1)

    def loss(c):
        return jax.numpy.sum(w * (Stencil(space, {1: c, 0: -1.0}, "periodic") @ x))

    c = jax.numpy.asarray(space.random(2))
    np.testing.assert_allclose(jax.grad(loss)(c), w * np.roll(x, -1), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_both_engines_agree(dtype):
    """Compiled rows and slices: the same bits forward, the same sums in another order back."""
    cube = {(a, b, c): 1.0 + a + 2 * b - c for a in (-1, 0, 2) for b in (0, 1) for c in (-2, 0, 1)}
    plane = {(0, 1): 2.0, (1, -2): 1.5, (-1, -1): 0.5}
    line = {-3: 1.0, 2: 0.7, 0: 1.0}
    for shape, taps in (((7, 6, 9), cube), ((5, 6), plane), ((9,), line)):
        for boundary in (*dense.KINDS, (("even", "odd"),) * len(shape)):
            for source, target in (("cell", "cell"), ("cell", "face"), ("face", "cell")):
                space = lo.Space(shape, dtype)
                A = Stencil(space, taps, boundary, source=source, target=target)
                B = A.with_backend("slices")
                assert (A.backend, B.backend) == ("rows", "slices (asked for)")
                x, y = A.domain.random(1), A.codomain.random(2)
                np.testing.assert_array_equal(A @ x, B @ x)
                np.testing.assert_array_equal((A @ np.stack([x, 2 * x]))[1], A @ (2 * x))
                eps = np.finfo(dtype).eps
                limit = 16 * eps * np.linalg.norm(y) * sum(map(abs, taps.values()))
                np.testing.assert_allclose(A.H @ y, B.H @ y, atol=limit)


@pytest.mark.parametrize("dtype", ["float32", "complex64", "complex128"])
def test_rows_serve_complex_arrays_and_coefficient_fields(dtype):
    rng = np.random.default_rng(0)
    field, other = rng.random((5, 6)), rng.random((5, 6))
    if dtype[0] == "c":
        other = other + 1j * rng.random((5, 6))
    taps = {(0, 1): 2.0, (1, -2): (1.5, field), (-1, -1): other, (2, 0): (-1.0, other)}
    mixed = {(1, 0): taps, (0, 1): {(0, 0): field}, (0, 0): {(0, -1): -1.0}}
    for boundary in dense.KINDS:
        plane = Stencil(lo.Space((5, 6), dtype), taps, boundary)
        pair = Stencil(lo.Space((2, 5, 6), dtype), mixed, boundary, components=(2, 2))
        for A in (plane, pair):
            B = A.with_backend("slices")
            assert A.backend == "rows" and A.with_backend("rows").backend == "rows"
            x, y = A.domain.random(1), A.codomain.random(2)
            eps = 64 * np.finfo(dtype).eps
            np.testing.assert_allclose(A @ x, B @ x, rtol=0, atol=eps)
            np.testing.assert_allclose(A.H @ y, B.H @ y, rtol=0, atol=2 * eps)
            assert (A @ x).dtype == dtype
            np.testing.assert_allclose((A @ np.stack([x, 2 * x]))[1], A @ (2 * x), atol=eps)
    turned = Stencil(lo.Space(3, "complex64"), {0: 1j})
    with pytest.raises(ValueError, match="no complex weights"):
        turned.with_backend("rows")
    assert turned.backend == "slices (rows know no complex weights)"
