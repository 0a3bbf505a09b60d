"""First derivatives, curls, interpolation and diffusion against dense matrices and identities."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import linops as lo
from linops.stencils import Curl, Diffusion, Divergence, Gradient, Interpolation
from linops.testing import check_operator
from tests.stencils import dense

ORDERS = (2, 4, 6, 8)
NAMED = ("periodic", "zero", "even", "odd")


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_central_gradient_is_kronecker_and_minus_the_divergence(order):
    for first, second in zip(dense.sides(), dense.sides()[::-1], strict=True):
        space = lo.Space((4, 5), "float64", spacing=(0.5, 2.0))
        G = Gradient(space, order, (first, second))
        wanted = np.concatenate(
            [
                np.kron(dense.matrix(4, dense.central(order), first) / 0.5, np.eye(5)),
                np.kron(np.eye(4), dense.matrix(5, dense.central(order), second) / 2.0),
            ]
        )
        np.testing.assert_allclose(G.to_dense(), wanted, atol=1e-14)
        np.testing.assert_allclose(G.H.to_dense(), wanted.T, atol=1e-14)
        if "edge" not in (*first, *second):
            D = Divergence(space, order, (first, second))
            np.testing.assert_allclose(D.to_dense(), -wanted.T, atol=1e-14)
    for boundary in ("periodic", "zero"):
        line = Gradient(lo.Space(12, "float64"), order, boundary).to_dense()
        assert (line + line.T == 0.0).all()


@pytest.mark.parametrize("order", ORDERS)
def test_staggered_pairs_are_exact(order):
    for boundary in NAMED:
        space = lo.Space((9, 7), "float64", spacing=(0.5, 2.0))
        G = Gradient(space, order, boundary, staggered=True)
        D = Divergence(space, order, boundary, staggered=True)
        assert (D.to_dense() + (G.H @ G.face_weights).to_dense() == 0.0).all()
        weights = G.face_weights.diagonal() if boundary == "odd" else None
        if weights is not None:
            assert {*np.unique(weights[0][[0, -1]]), *np.unique(weights[0][1:-1])} == {0.5, 1.0}
        # Faces of one axis, by definition: sum s_m (u[f+m-1] - u[f-m]) / h.
        n = 7
        taps = {}
        for m, s in enumerate(dense.STAGGERED[order], 1):
            taps[m - 1], taps[-m] = s, -s
        count = n if boundary == "periodic" else n + 1
        own = Gradient(lo.Space(n, "float64"), order, boundary, staggered=True)
        wanted = dense.matrix(n, taps, (boundary,) * 2, count)
        np.testing.assert_allclose(own.to_dense(), wanted, atol=1e-14)
        if boundary == "even":
            assert (own.to_dense()[[0, -1]] == 0.0).all()
        if order == 2:
            back = Divergence(lo.Space(n, "float64"), 2, boundary, staggered=True)
            three = dense.matrix(n, dense.second(2), (boundary,) * 2)
            np.testing.assert_allclose((back @ own).to_dense(), three, atol=1e-14)


def test_identities_of_the_staggered_grid():
    space = lo.Space((3, 5, 4), "float64", ("z", "y", "x"), (0.5, 1.0, 2.0))
    for boundary, order in itertools.product(
        [*NAMED, ("odd", "periodic", ("even", "zero"))], (2, 6)
    ):
        G = Gradient(space, order, boundary, staggered=True)
        D = Divergence(space, order, boundary, staggered=True)
        up = Curl(space, order, boundary, staggered=True)
        down = Curl(space, order, boundary, staggered=True, source="edges")
        u, v = space.random(0), down.domain.random(1)
        for name, part in (("curl grad", up @ (G @ u)), ("div curl", D @ (down @ v))):
            size = max(
                abs(np.asarray(p)).max() for p in (part if isinstance(part, tuple) else [part])
            )
            assert size <= 1e-14 * 4 / 0.25, (name, boundary, order)
    plane = lo.Space((5, 4), "float64")
    G = Gradient(plane, 4, "odd", staggered=True)
    assert abs(Curl(plane, 4, "odd", staggered=True) @ (G @ plane.random(0))).max() < 1e-14
    down = Curl(plane, 4, "odd", staggered=True, source="edges")
    D = Divergence(plane, 4, "odd", staggered=True)
    assert abs(D @ (down @ down.domain.random(0))).max() < 1e-14


def test_curl_is_right_handed():
    n = 8
    space = lo.Space((n, n, n), "float64", ("z", "y", "x"))
    rng = np.random.default_rng(0)
    v = {name: rng.standard_normal((n, n, n)) for name in "xyz"}
    axis = {"z": 0, "y": 1, "x": 2}

    def d(name, f):
        return (np.roll(f, -1, axis[name]) - np.roll(f, 1, axis[name])) / 2

    found = Curl(space, 2, "periodic") @ np.stack([v["z"], v["y"], v["x"]])
    np.testing.assert_allclose(found[2], d("y", v["z"]) - d("z", v["y"]), atol=1e-13)
    np.testing.assert_allclose(found[1], d("z", v["x"]) - d("x", v["z"]), atol=1e-13)
    np.testing.assert_allclose(found[0], d("x", v["y"]) - d("y", v["x"]), atol=1e-13)
    # A rigid rotation about z, v = (-y, x, 0), has the curl 2 in the interior, on faces too.
    y, x = np.mgrid[:n, :n].astype(float)
    plane = lo.Space((n, n), "float64", ("y", "x"))
    found = Curl(plane, 2, "zero") @ np.stack([x, -y])
    np.testing.assert_allclose(found[1:-1, 1:-1], 2.0)
    faces = Curl(plane, 2, "zero", staggered=True)
    v_y = np.broadcast_to(np.arange(n, dtype=float), (n + 1, n)).copy()
    v_x = -np.broadcast_to(np.arange(n, dtype=float)[:, None], (n, n + 1)).copy()
    np.testing.assert_allclose((faces @ (v_y, v_x))[1:-1, 1:-1], 2.0)


def test_orders_of_convergence():
    """Maximal errors on u = sin 2 pi x on a ring, cell i at i h, N = 32 and 64."""
    known = {
        2: (0.040295, 0.010088, 0.12667, 0.031699, 0.010040, 0.0025200),
        4: (3.0987e-4, 1.9434e-5, 6.4974e-4, 4.0714e-5, 4.3466e-5, 2.7312e-6),
        6: (2.5526e-6, 4.0109e-8, 4.0156e-6, 6.3025e-8, 2.4877e-7, 3.9149e-9),
        8: (2.1803e-8, 8.5850e-11, 2.7446e-8, 1.0802e-10, 1.6274e-9, 6.4260e-12),
    }
    from linops.stencils import Laplacian

    for order, figures in known.items():
        for k, n in enumerate((32, 64)):
            space = lo.Space(n, "float64", spacing=1 / n)
            x = np.arange(n) / n
            u = np.sin(2 * np.pi * x)
            slope, bend = 2 * np.pi * np.cos(2 * np.pi * x), -4 * np.pi**2 * u
            between = 2 * np.pi * np.cos(2 * np.pi * (x - 0.5 / n))
            errors = (
                abs((Gradient(space, order, "periodic") @ u)[0] - slope).max(),
                abs(Laplacian(space, order, "periodic") @ u - bend).max(),
                abs((Gradient(space, order, "periodic", staggered=True) @ u)[0] - between).max(),
            )
            for error, wanted in zip(errors, figures[k::2], strict=True):
                floor = 3e-12 * n  # cancellation in the difference of numbers of size 1
                assert error == pytest.approx(wanted, rel=2e-3, abs=floor)


def test_polynomials_are_exact():
    from linops.stencils import Laplacian

    n = 24
    x = np.linspace(-1, 1, n)
    h = x[1] - x[0]
    space = lo.Space(n, "float64", spacing=h)
    inner = slice(8, -8)
    for order in ORDERS:
        for q in range(order + 2):
            p = x**q
            slope = q * x ** max(q - 1, 0)
            if q <= order:
                assert abs((Gradient(space, order) @ p)[0] - slope)[inner].max() < 1e-11
                faces = (Gradient(space, order, staggered=True) @ p)[0][:-1]
                left = q * (x - h / 2) ** max(q - 1, 0)
                assert abs(faces - left)[inner].max() < 1e-11
            if q <= order - 1:
                found = (Interpolation(space, 0, order) @ p)[:-1]
                assert abs(found - (x - h / 2) ** q)[inner].max() < 1e-11
            bend = q * (q - 1) * x ** max(q - 2, 0)
            assert abs(Laplacian(space, order) @ p - bend)[inner].max() < 1e-10


def test_interpolation_between_faces_and_cells():
    for order, boundary in itertools.product(ORDERS, dense.sides()):
        n = 6
        taps = {}
        for m, b in enumerate(dense.BETWEEN[order], 1):
            taps[m - 1] = taps[-m] = b
        count = n if boundary[0] == "periodic" else n + 1
        A = Interpolation(lo.Space(n, "float64"), 0, order, (boundary,))
        wanted = dense.matrix(n, taps, boundary, count)
        np.testing.assert_allclose(A.to_dense(), wanted, atol=1e-14)
        back = Interpolation(lo.Space(n, "float64"), 0, order, (boundary,), source="face")
        assert back.domain.shape == (count,)
        x = back.domain.random(0)
        mean = np.roll(x, -1) if boundary[0] == "periodic" else x[1:]
        if order == 2 and "odd" not in boundary:
            np.testing.assert_allclose(back @ x, 0.5 * (x[:n] + mean), atol=1e-15)
    q = np.arange(5.0) ** 2
    mean = Interpolation(lo.Space(5, "float64"), target="average") @ q
    np.testing.assert_allclose(mean[1:-1], q[1:-1] + 1 / 12, atol=1e-14)


def test_walls_of_faces():
    """A field on faces is even or odd about the wall, on which its first and last entry stand."""
    from linops.stencils import Stencil

    x = np.array([1.0, 2.0, 3.0, 5.0])
    for boundary, ghosts in (
        ("even", [3, 2, 1, 2, 3, 5, 3, 2]),
        ("odd", [-3, -2, 0, 2, 3, 0, -3, -2]),
        ("edge", [1, 1, 1, 2, 3, 5, 5, 5]),
        ("zero", [0, 0, 1, 2, 3, 5, 0, 0]),
    ):
        for o in (-2, -1, 0, 1, 2):
            A = Stencil(lo.Space(4, "float64"), {o: 1.0}, boundary, source="face", target="face")
            np.testing.assert_array_equal(A @ x, np.array(ghosts[2 + o : 6 + o], float))
            np.testing.assert_array_equal(A.H.to_dense(), A.to_dense().T)


@pytest.mark.parametrize("boundary", ["periodic", "even", "odd", "zero", (("odd", "even"), "zero")])
def test_diffusion_is_symmetric_and_negative(boundary):
    rng = np.random.default_rng(0)
    space = lo.Space((5, 4), "float64", spacing=(0.5, 2.0))
    kappa = 0.5 + rng.random((5, 4))
    for mean in ("arithmetic", "harmonic"):
        A = Diffusion(space, kappa, 2, boundary, mean)
        M = A.to_dense()
        assert (M == M.T).all()
        assert np.linalg.eigvalsh(M).max() < 1e-12
        a, b = kappa[2, 1], kappa[3, 1]
        between = (a + b) / 2 if mean == "arithmetic" else 2 * a * b / (a + b)
        np.testing.assert_allclose(M[2 * 4 + 1, 3 * 4 + 1], between / 0.5**2)
    if boundary in ("periodic", "even"):
        np.testing.assert_allclose(M.sum(0), 0, atol=1e-12)
    for order in (4, 6, 8):
        M = Diffusion(space, kappa, order, boundary).to_dense()
        assert abs(M - M.T).max() < 1e-14 * abs(M).max()
        assert np.linalg.eigvalsh(M).max() < 1e-12
    unit = Diffusion(
        lo.Space(7, "float64"), 1.0, 2, boundary if isinstance(boundary, str) else "odd"
    )
    name = boundary if isinstance(boundary, str) else "odd"
    np.testing.assert_allclose(
        unit.to_dense(), dense.matrix(7, dense.second(2), (name, name)), atol=1e-14
    )


def test_tensor_diffusion():
    rng = np.random.default_rng(1)
    space = lo.Space((5, 4), "float64", spacing=(0.5, 2.0))
    for boundary in ("even", "odd", "periodic"):
        shape = (5, 4) if boundary == "periodic" else (6, 5)
        root = rng.standard_normal((2, 2, *shape))
        tensor = np.einsum("ik...,jk...->ij...", root, root)
        A = Diffusion(space, tensor, boundary=boundary)
        M = A.to_dense()
        assert abs(M - M.T).max() < 1e-14 * abs(M).max()
        assert np.linalg.eigvalsh(M).max() < 1e-12
        board = (-1.0) ** np.add.outer(np.arange(5), np.arange(4))
        if boundary == "even":
            assert abs(A @ board)[1:-1, 1:-1].max() < 1e-12
            assert abs(A @ np.ones((5, 4))).max() < 1e-12
    with pytest.raises(ValueError, match="symmetric"):
        Diffusion(space, rng.random((2, 2, 6, 5)))


def test_gradient_in_kappa():
    jax = pytest.importorskip("jax")
    rng = np.random.default_rng(2)
    space = lo.Space((3, 4), "float64", spacing=(0.5, 2.0))
    u, adjoint_field, kappa = rng.random((3, 4)), rng.random((3, 4)), 1 + rng.random((3, 4))
    with jax.enable_x64(True):

        def loss(k):
            return jax.numpy.vdot(
                adjoint_field, Diffusion(space, k, 4, "odd") @ jax.numpy.asarray(u)
            )

        found = np.asarray(jax.jit(jax.grad(loss))(jax.numpy.asarray(kappa)))
    G = Gradient(space, 4, "odd", staggered=True)
    slopes = [
        -w * g * l
        for w, g, l in zip(G.face_weights.diagonal(), G @ u, G @ adjoint_field, strict=True)
    ]
    wanted = np.zeros((3, 4))
    for axis, s in enumerate(slopes):
        n = space.shape[axis]
        s = np.moveaxis(s, axis, 0)
        moved = np.moveaxis(wanted, axis, 0)
        for f in range(n + 1):
            moved[max(f - 1, 0)] += s[f] / 2
            moved[min(f, n - 1)] += s[f] / 2
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


CASES = {
    "gradient": lambda s: Gradient(s, 4, ("periodic", ("even", "odd"))),
    "divergence": lambda s: Divergence(s, 4, ("periodic", ("even", "odd"))),
    "faces": lambda s: Gradient(s, 4, ("odd", "periodic"), staggered=True),
    "from_faces": lambda s: Divergence(s, 4, ("odd", "even"), staggered=True),
    "curl": lambda s: Curl(s, 2, ("even", "odd")),
    "vertices": lambda s: Curl(s, 2, ("even", "odd"), staggered=True),
    "interpolation": lambda s: Interpolation(s, "y", 4, "odd", source="face"),
    "diffusion": lambda s: Diffusion(s, 1 + np.arange(20.0).reshape(4, 5), 4, ("odd", "even")),
    "tensor": lambda s: Diffusion(s, np.ones((2, 2, 5, 6)), boundary="even"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_contract(name):
    space = lo.Space((4, 5), "float32", ("y", "x"), (0.5, 2.0))
    check_operator(CASES[name](space), libraries=("torch",) if name != "diffusion" else None)


@pytest.mark.slow
def test_curl_between_faces_and_edges_in_three_dimensions():
    # Extents that coincide by chance, 4 faces and 4 cells, must not tie their axes together.
    A = Curl(lo.Space((3, 4, 2)), 2, ("even", "odd", "zero"), staggered=True)
    check_operator(A, libraries=())
