"""Stencils as dense matrices, built cell by cell from the definition of each boundary."""

from __future__ import annotations

import numpy as np

D1 = {
    2: [1 / 2],
    4: [2 / 3, -1 / 12],
    6: [3 / 4, -3 / 20, 1 / 60],
    8: [4 / 5, -1 / 5, 4 / 105, -1 / 280],
}
D2 = {
    2: [-2, 1],
    4: [-5 / 2, 4 / 3, -1 / 12],
    6: [-49 / 18, 3 / 2, -3 / 20, 1 / 90],
    8: [-205 / 72, 8 / 5, -1 / 5, 8 / 315, -1 / 560],
}
STAGGERED = {
    2: [1],
    4: [9 / 8, -1 / 24],
    6: [75 / 64, -25 / 384, 3 / 640],
    8: [1225 / 1024, -245 / 3072, 49 / 5120, -5 / 7168],
}
BETWEEN = {
    2: [1 / 2],
    4: [9 / 16, -1 / 16],
    6: [150 / 256, -25 / 256, 3 / 256],
    8: [1225 / 2048, -245 / 2048, 49 / 2048, -5 / 2048],
}
KINDS = ("periodic", "zero", "even", "odd", "edge")


def second(order: int) -> dict[int, float]:
    """Taps of the second derivative."""
    row = D2[order]
    return {o: row[abs(o)] for o in range(1 - len(row), len(row))}


def central(order: int) -> dict[int, float]:
    """Taps of the central first derivative."""
    return {s * m: s * c for m, c in enumerate(D1[order], 1) for s in (-1, 1)}


def extension(n: int, before: int, after: int, kinds: tuple[str, str]) -> np.ndarray:
    """Cells to cells with ghosts: one column of unit value after the other, ghost by ghost.

    Ghosts are filled outwards by the definition of the boundary, from values already known.
    """
    E = np.zeros((before + n + after, n))
    E[before : before + n] = np.eye(n)
    wide = max(before, after) + 4 * n + 4

    def value(plane: int, depth: int = 0) -> np.ndarray:
        if 0 <= plane < n:
            return np.eye(n)[plane]
        assert depth < wide
        kind = kinds[0] if plane < 0 else kinds[1]
        j = -1 - plane if plane < 0 else plane - n
        if kind == "zero":
            return np.zeros(n)
        if kind == "periodic":
            return value(n - 1 - j if plane < 0 else j, depth + 1)
        if kind == "edge":
            return value(0 if plane < 0 else n - 1, depth + 1)
        mirrored = value(j if plane < 0 else n - 1 - j, depth + 1)
        return mirrored if kind == "even" else -mirrored

    for plane in (*range(-before, 0), *range(n, n + after)):
        E[plane + before] = value(plane)
    return E


def matrix(n: int, taps: dict[int, float], kinds: tuple[str, str], count: int | None = None):
    """The stencil along one axis as the product of a convolution and the extension."""
    count = n if count is None else count
    low, high = -min(taps), max(max(taps), 0)
    low = max(low, 0)
    K = np.zeros((count, low + n + max(high + count - n, 0)))
    for i in range(count):
        for o, w in taps.items():
            K[i, i + low + o] += w
    return K @ extension(n, low, max(high + count - n, 0), kinds)


def sides(kinds=KINDS):
    """Every boundary, alone and mixed."""
    return [(a, b) for a in kinds for b in kinds if (a == "periodic") == (b == "periodic")]
