"""Small operators as pictures of their matrices, with matplotlib (the extra `plot`).

    spy(A)           where the matrix is not zero; the same as A.spy()
    plot_matrix(A)   what its entries are

Both form the matrix, so they are for operators of a few thousand entries a side at most. What an
operator is made of is said by `A.describe()`.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np

from linops.linear_operator import LinearOperator
from linops.space import AnySpace

__all__ = ["plot_matrix", "spy"]

LIMIT = 1 << 22
"""Entries of a matrix that is drawn without being asked twice."""


def spy(A: LinearOperator, *, ax: Any = None, limit: int | None = LIMIT) -> Any:
    """Where the matrix of `A` is not zero.

    Parameters
    ----------
    A
        A small operator; its matrix is formed by applying it to every basis vector.
    ax
        matplotlib axes to draw into; new ones by default.
    limit
        Entries up to which the matrix is formed; None for no limit.

    Returns
    -------
    matplotlib.axes.Axes
        Rows are entries of the codomain and columns those of the domain, in C order; grey lines
        part the members of product spaces, and the planes of each first axis.

    Raises
    ------
    ShapeError
        Above the limit.
    ImportError
        Where matplotlib is not installed.
    """
    dense = A.to_dense(limit)
    ax = _axes(A, ax)
    # A pattern of pixels, not of markers: entries keep their size at every zoom.
    ax.imshow(dense != 0, cmap="Greys", vmin=0, vmax=1, interpolation="nearest", aspect="auto")
    nonzero = int(np.count_nonzero(dense))
    share = nonzero / dense.size if dense.size else 0.0
    ax.set_title(f"{A.name}: {nonzero} of {dense.size} entries ({share:.2%})")
    return ax


def plot_matrix(A: LinearOperator, *, ax: Any = None, limit: int | None = LIMIT) -> Any:
    """The entries of the matrix of `A`: signed around zero, the modulus where they are complex.

    Parameters and errors are those of `spy`.
    """
    dense = A.to_dense(limit)
    ax = _axes(A, ax)
    is_complex = dense.dtype.kind == "c"
    values = np.abs(dense) if is_complex else dense
    bound = float(np.max(np.abs(values), initial=0.0)) or 1.0
    image = ax.imshow(
        values,
        cmap="viridis" if is_complex else "RdBu_r",
        vmin=0.0 if is_complex else -bound,
        vmax=bound,
        interpolation="nearest",
        aspect="auto",
    )
    ax.figure.colorbar(image, ax=ax, label="modulus" if is_complex else "entry")
    ax.set_title(A.name)
    return ax


def _axes(A: LinearOperator, ax: Any) -> Any:
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots()
    ax.set_xlabel(f"domain {A.domain.describe_shape()}")
    ax.set_ylabel(f"codomain {A.codomain.describe_shape()}")
    for place in _boundaries(A.domain):
        ax.axvline(place - 0.5, color="0.7", linewidth=0.5)
    for place in _boundaries(A.codomain):
        ax.axhline(place - 0.5, color="0.7", linewidth=0.5)
    return ax


def _boundaries(space: AnySpace, most: int = 40) -> list[int]:
    """Flat positions where a member, or a plane of its first axis, begins."""
    starts = [0, *accumulate(member.size for member in space.members)]
    found = set(starts[1:-1])
    for start, member in zip(starts, space.members, strict=False):
        if member.ndim > 1 and member.size and member.shape[0] <= most:
            step = member.size // member.shape[0]
            found.update(range(start + step, start + member.size, step))
    return sorted(found)
