"""Rows of a functional at a subset as operators: the form of `Restricted` that can be planned."""

from __future__ import annotations

import numpy as np
import pytest

import linops as lo
from linops import functionals as fn

SPACE = lo.Space((5, 3, 4), "float64", ("z", "y", "x"))
INDEX = np.array([0, 7, -1, 11, 2, 3])
TARGET = SPACE.random(9)

PRIORS = {
    "qggmrf": fn.QGGMRF(SPACE, p=1.7, q=1.1, neighbor_weights=(1, 2, 3)),
    "total variation": fn.TotalVariation(SPACE),
    "quadratic": fn.Quadratic(SPACE, 2.0, TARGET),
    "huber": fn.Huber(SPACE, 0.3),
    "sum": fn.QGGMRF(SPACE) + 0.5 * fn.Huber(SPACE, 0.1) + 0.2 * fn.TotalVariation(SPACE),
}


@pytest.mark.parametrize("name", PRIORS)
def test_rows_are_those_of_the_whole_and_their_blocks_tile_them(name: str) -> None:
    prior = PRIORS[name]
    x = SPACE.random(1)
    d = np.random.default_rng(2).standard_normal((5, INDEX.size)) * (INDEX >= 0)
    scatter = lo.Scatter(SPACE, INDEX)
    surrogate = prior.surrogate(x)
    rows = scatter.H @ x
    wanted = (
        scatter.H @ prior.gradient(x),
        scatter.H @ np.diag(surrogate.to_dense()).reshape(SPACE.shape),
        scatter.H @ (surrogate @ (scatter @ d)),
    )

    restricted = prior.restrict(INDEX)
    terms, form = restricted.of_terms, restricted.of_form
    for got, want in zip((*terms((x, rows)), form((x, rows, d))), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-13 * np.abs(want).max())
    assert restricted.quadratic(x, d) == pytest.approx(np.vdot(d, wanted[2]), rel=1e-12)

    garbage = {"z": np.full((9, 3, 4), np.nan), "s": np.full((9, INDEX.size), np.nan)}

    def part(value: np.ndarray, halo: int, start: int, stop: int, padded: bool) -> np.ndarray:
        """Planes with their halo; of a padded block all of them, with garbage beyond the end."""
        if not padded:
            return value[max(start - halo, 0) : stop + halo]
        beyond = garbage["z" if value.ndim == 3 else "s"]
        long = np.concatenate([beyond, value, beyond])
        return long[9 + start - halo : 9 + stop + halo]

    for start, stop, padded in (
        (0, 1, False), (1, 4, False), (4, 5, False), (0, 5, False),
        (0, 3, True), (3, 6, True), (4, 7, True), (-1, 2, True), (6, 8, True),
    ):  # fmt: skip
        for made, inputs in ((terms, (x, rows)), (form, (x, rows, d))):
            if name == "sum":
                continue  # a plan takes it apart
            reach = [next(a.halo for a in member if a.name == "z") for member in made.rule.domain]
            block = made.block("z", start, stop, padded)
            found = block(
                tuple(part(v, h, start, stop, padded) for v, h in zip(inputs, reach, strict=True))
            )
            found = found if isinstance(found, tuple) else (found,)
            for got, want in zip(found, wanted[:2] if made is terms else wanted[2:], strict=True):
                expected = np.zeros((stop - start, INDEX.size))
                real = range(max(start, 0), min(stop, 5))
                for plane in real:
                    expected[plane - start] = want[plane]
                np.testing.assert_allclose(got, expected, rtol=0, atol=1e-13 * np.abs(want).max())
    for axis in ("y", "x", "s"):
        with pytest.raises(ValueError, match="must not be split"):
            terms.block(axis, 0, 1)
