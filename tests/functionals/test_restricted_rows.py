"""Rows of a functional at a subset as operators: the form of `Restricted` that can be planned."""

from __future__ import annotations

import numpy as np
import pytest

import linops as lo
from linops import functionals as fn
from linops.functionals.restricted import RestrictedForm, RestrictedTerms

SPACE = lo.Space((5, 3, 4), "float64", ("z", "y", "x"))
INDEX = np.array([0, 7, -1, 11, 2])

PRIORS = {
    "qggmrf": fn.QGGMRF(SPACE),
    "total variation": fn.TotalVariation(SPACE),
    "sum": fn.QGGMRF(SPACE) + 0.5 * fn.Huber(SPACE, 0.1) + 0.2 * fn.TotalVariation(SPACE),
}


@pytest.mark.parametrize("name", PRIORS)
def test_rows_are_those_of_the_whole_and_their_blocks_tile_them(name: str) -> None:
    prior = PRIORS[name]
    x = SPACE.random(1)
    d = np.random.default_rng(2).standard_normal((5, INDEX.size)) * (INDEX >= 0)
    scatter = lo.Scatter(SPACE, INDEX)
    surrogate = prior.surrogate(x)
    gradient = scatter.H @ prior.gradient(x)
    diagonal = scatter.H @ np.diag(surrogate.to_dense()).reshape(SPACE.shape)
    rows = scatter.H @ (surrogate @ (scatter @ d))

    terms, form = RestrictedTerms(prior, INDEX), RestrictedForm(prior, INDEX)
    for got, wanted in zip((*terms(x), form((x, d))), (gradient, diagonal, rows), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-13 * np.abs(wanted).max())
    halo = terms.rule.halo("z")
    for start, stop in ((0, 1), (1, 4), (4, 5), (0, 5)):
        near = slice(max(start - halo, 0), stop + halo)
        parts = [*terms.block("z", start, stop)(x[near])]
        parts.append(form.block("z", start, stop)((x[near], d[near])))
        for part, wanted in zip(parts, (gradient, diagonal, rows), strict=True):
            expected = wanted[start:stop]
            np.testing.assert_allclose(part, expected, rtol=0, atol=1e-13 * np.abs(wanted).max())
    for axis in ("y", "x", "s"):
        with pytest.raises(ValueError, match="must not be split"):
            terms.block(axis, 0, 1)
