"""Operators of every kind, small, by name: leaves, nodes and compositions, with their dtypes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import linops as lo

DTYPES = ("float32", "float64", "complex64", "complex128")
NAMESPACES = ("numpy", "torch", "jax", "strict")


def array(shape: int | tuple[int, ...], dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return lo.Space(shape, dtype).random(seed)


def space(dtype: str = "float32") -> lo.Space:
    return lo.Space((3, 4), dtype, axes=("y", "x"), spacing=(1.0, 0.5))


def volume(dtype: str = "float32") -> lo.Space:
    return lo.Space((2, 3, 4), dtype, axes=("z", "y", "x"))


def matrix(
    rows: int,
    columns: int,
    dtype: str = "float32",
    domain: lo.Space | None = None,
    codomain: lo.Space | None = None,
    seed: int = 0,
) -> lo.Matrix:
    return lo.Matrix(array((rows, columns), dtype, seed), domain, codomain)


def square(dtype: str = "float32", seed: int = 0) -> lo.LinearOperator:
    """A dense operator on `space(dtype)`: every entry depends on every entry."""
    n = space(dtype).size
    return matrix(n, n, dtype, space(dtype), space(dtype), seed)


def sparse(dtype: str = "float32") -> lo.Matrix:
    import scipy.sparse

    dense = array((5, 6), dtype)
    return lo.Matrix(scipy.sparse.csr_array(np.where(np.abs(dense) > 0.5, dense, 0)))


def to(x: np.ndarray, namespace: str):
    """A NumPy array in another namespace; `strict1` is the second device of array-api-strict."""
    if namespace == "numpy":
        return x
    if namespace == "torch":
        import torch

        return torch.from_numpy(np.array(x))
    if namespace == "jax":
        import jax.numpy as jnp

        return jnp.asarray(x)
    import array_api_strict as xp

    device = xp.Device("device1") if namespace == "strict1" else None
    return xp.asarray(np.array(x), device=device)


class Halved(lo.LinearOperator):
    """The simplest leaf of a user: two hooks and attributes set after the base's `__init__`."""

    def __init__(self, n: int, factor: float = 0.5) -> None:
        super().__init__(lo.Space(n), lo.Space(n), rule="x -> x")
        self.factor = factor

    def _apply(self, x):
        return x * self.factor

    def _apply_adjoint(self, y):
        return y * self.factor


class Local(lo.LinearOperator):
    """Neighbors two planes away, to one side: an asymmetric stencil with the default blocks."""

    batched = True

    def __init__(self, n: int = 7) -> None:
        super().__init__(lo.Space(n), lo.Space(n), rule="x~2 -> x")

    def _apply(self, x):
        return x - 0.5 * self._moved(x, ((0, 0), (2, 0)))

    def _apply_adjoint(self, y):
        return y - 0.5 * self._moved(y, ((0, 0), (0, 2)))

    def _moved(self, x, widths):
        from linops import arrays

        before, after = widths[1]
        n = x.shape[-1]
        wide = arrays.widen(x, -1, before, after)
        return arrays.narrow(wide, -1, after, after + n)


class Ring(lo.LinearOperator):
    """A difference around a ring."""

    batched = True

    def __init__(self, n: int = 6) -> None:
        super().__init__(lo.Space(n), lo.Space(n), rule="x~1* -> x")

    def _apply(self, x):
        from linops import arrays

        return arrays.namespace(x).roll(x, -1, axis=-1) - x

    def _apply_adjoint(self, y):
        from linops import arrays

        return arrays.namespace(y).roll(y, 1, axis=-1) - y


def twice(x):
    return 2 * x


LEAVES: dict[str, Callable[[], lo.LinearOperator]] = {
    "identity": lambda: lo.Identity(space()),
    "identity-product": lambda: lo.Identity(lo.ProductSpace([space(), lo.Space(3)])),
    "zero": lambda: lo.Zero(space(), lo.Space((2, 4))),
    "zero-square": lambda: lo.Zero(space("complex64")),
    "cast": lambda: lo.Cast(space(), space("float64")),
    "diagonal": lambda: lo.Diagonal(array((3, 4)), space()),
    "diagonal-real-on-complex": lambda: lo.Diagonal(array((3, 4)), space("complex64")),
    "diagonal-complex": lambda: lo.Diagonal(array((3, 4), "complex64"), space("complex64")),
    "diagonal-real-linear": lambda: lo.Diagonal(array((3, 4), "complex64"), space()),
    "matrix": lambda: matrix(5, 6),
    "matrix-shaped": lambda: matrix(6, 12, "float64", space("float64"), lo.Space((2, 3), "f8")),
    "matrix-complex": lambda: matrix(5, 6, "complex128"),
    "matrix-real-linear": lambda: matrix(5, 6, "complex64", lo.Space(6)),
    "matrix-scalar": lambda: matrix(1, 1, "float32", lo.Space(()), lo.Space(())),
    "sparse": sparse,
    "sparse-complex": lambda: sparse("complex64"),
    "scatter": lambda: lo.Scatter(space(), [3, -1, 0, 11, 3]),
    "scatter-axis": lambda: lo.Scatter(volume(), [1, 0, -1, 1], axes=("y",)),
    "scatter-axes": lambda: lo.Scatter(volume(), [5, 2, -1], axes=("z", "x")),
    "restriction": lambda: lo.Restriction(space(), [3, -1, 0, 11, 3]),
    "restriction-axis": lambda: lo.Restriction(volume(), [1, 0, -1, 1], axes=("y",)),
    "crop": lambda: lo.Crop(space(), {"y": (1, 3), "x": (0, 2)}),
    "pad": lambda: lo.Pad(space(), {"y": (1, 2)}),
    "gradient-1d": lambda: lo.Gradient(lo.Space(5, "float64", spacing=0.25)),
    "gradient": lambda: lo.Gradient(space()),
    "gradient-3d": lambda: lo.Gradient(volume()),
    "gradient-complex": lambda: lo.Gradient(space("complex64")),
    "gradient-thin": lambda: lo.Gradient(lo.Space((1, 3))),
    "gradient-empty": lambda: lo.Gradient(lo.Space((0, 3))),
    "functions": lambda: lo.from_functions(twice, twice, domain=lo.Space(4), rule="x -> x"),
    "functions-blockwise": lambda: lo.from_functions(
        twice, twice, domain=lo.Space((2, 3)), rule="y x -> y x", batched=True, blockwise=True
    ),
    "user": lambda: Halved(5),
    "stencil": Local,
    "ring": Ring,
}

NODES: dict[str, Callable[[], lo.LinearOperator]] = {
    "adjoint": lambda: lo.Gradient(space()).H,
    "adjoint-of-stencil": lambda: Local().H,
    "adjoint-real-linear": lambda: matrix(5, 6, "complex64", lo.Space(6)).H,
    "conjugate": lambda: matrix(5, 6, "complex64").conj(),
    "transpose": lambda: matrix(5, 6, "complex64").T,
    "scaled": lambda: -2.5 * lo.Gradient(space()),
    "scaled-complex": lambda: (1 - 2j) * lo.Gradient(space()),
    "scaled-complex-matrix": lambda: (1 - 2j) * matrix(4, 5, "complex64"),
    "product": lambda: matrix(5, 12, domain=space()) @ lo.Diagonal(array((3, 4)), space()),
    "product-of-stencils": lambda: Local() @ lo.Diagonal(array(7), lo.Space(7)) @ Local().H,
    "product-mixed": lambda: lo.Gradient(space("float64")) @ lo.Identity(space()),
    "product-complex": lambda: (
        matrix(5, 12, "complex64", space("complex64")) @ lo.Diagonal(array((3, 4)), space())
    ),
    "product-contracted": lambda: (
        matrix(5, 24, domain=lo.Gradient(space()).codomain) @ lo.Gradient(space())
    ),
    "product-produced": lambda: lo.Gradient(space()) @ matrix(12, 5, codomain=space()),
    "product-cropped": lambda: (
        lo.Gradient(lo.Space((2, 3))) @ lo.Crop(lo.Space((4, 3)), {0: (1, 3)})
    ),
    "sum": lambda: lo.Gradient(space()).gram() + 0.5 * lo.Identity(space()),
    "sum-weakest": lambda: lo.Gradient(space()).gram() + square(),
    "power": lambda: Local() ** 3,
    "gram": lambda: lo.Gradient(space()).gram(),
    "gram-weighted": lambda: lo.Gradient(space()).gram(np.abs(array((2, 3, 4)))),
    "gram-of-adjoint": lambda: lo.Gradient(space()).H.gram(),
    "gram-real-linear": lambda: matrix(5, 6, "complex64", lo.Space(6)).gram(),
    "gram-operator": lambda: matrix(5, 4).gram(matrix(5, 5, seed=3)),
    "gram-crop": lambda: lo.Crop(space(), {"y": (1, 3)}).gram(),
    "columns": lambda: lo.Gradient(space()).columns([3, -1, 0, 11]),
    "columns-matrix": lambda: matrix(5, 6).columns([3, -1, 0]),
    "vstack": lambda: lo.vstack([lo.Gradient(space()), lo.Identity(space())]),
    "vstack-weakest": lambda: lo.vstack([lo.Gradient(space()), matrix(5, 12, domain=space())]),
    "vstack-complex": lambda: lo.vstack(
        [lo.Diagonal(array(6, "complex64")), lo.Identity(lo.Space(6))]
    ),
    "vstack-unequal": lambda: lo.vstack([lo.Identity(space()), lo.Crop(space(), {"y": (1, 3)})]),
    "vstack-shifted": lambda: lo.vstack(
        [lo.Crop(space(), {"y": (0, 2)}), lo.Crop(space(), {"y": (1, 3)})]
    ),
    "hstack": lambda: lo.hstack([lo.Gradient(space()).H, lo.Identity(space())]),
    "hstack-weakest": lambda: lo.hstack([lo.Gradient(space()).H, matrix(12, 5, codomain=space())]),
    "hstack-unequal": lambda: lo.hstack(
        [lo.Identity(space()), lo.Pad(lo.Space((1, 4), axes=("y", "x")), {"y": (1, 1)})]
    ),
    "hstack-one": lambda: lo.hstack([lo.Identity(space())]),
    "block-matrix": lambda: lo.vstack(
        [
            lo.hstack([lo.Identity(space()), 2 * lo.Identity(space())]),
            lo.hstack([lo.Zero(space()), lo.Diagonal(array((3, 4)), space())]),
        ]
    ),
    "block-diagonal": lambda: lo.block_diagonal([lo.Gradient(space()), 2 * lo.Gradient(space())]),
    "block-diagonal-unlike": lambda: lo.block_diagonal([lo.Gradient(space()), matrix(2, 3)]),
    "concat": lambda: lo.concat([lo.Gradient(space()), 2 * lo.Gradient(space())]),
    "concat-aligned-axis": lambda: lo.concat(
        [lo.Gradient(space()), 2 * lo.Gradient(space())], axis="y"
    ),
    "concat-matrices": lambda: lo.concat([matrix(4, 5), matrix(2, 5, seed=1)]),
    "kron": lambda: lo.kron(matrix(2, 3), lo.Gradient(lo.Space(4))),
    "kron-diagonals": lambda: lo.kron(lo.Diagonal(array(3)), lo.Diagonal(array(4, seed=1))),
    "kron-complex": lambda: lo.kron(matrix(2, 3, "complex64"), lo.Gradient(lo.Space(3))),
    "kron-identities": lambda: lo.kron(lo.Identity(lo.Space(3)), lo.Identity(lo.Space(2))),
    "complex-extension": lambda: 1j * Local(),
    "block": lambda: Local().block("x", 2, 5),
    "deep": lambda: (
        (
            lo.vstack([0.5 * lo.Gradient(space()), 2 * lo.Gradient(space())]).gram()
            + lo.Diagonal(np.abs(array((3, 4))), space())
        )
        @ lo.Diagonal(array((3, 4), seed=4), space())
    ),
}

OPERATORS = {**LEAVES, **NODES}
