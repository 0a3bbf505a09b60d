"""What an operator shows of itself: the tree with figures, as text, HTML and picture."""

from __future__ import annotations

import html
import re

import numpy as np
import pytest

import linops as lo
from linops.errors import ShapeError

from .builders import OPERATORS


def tree() -> lo.LinearOperator:
    D = lo.Gradient(lo.Space((400, 500), axes=("y", "x")))
    return lo.Identity(D.domain) + 2 * D.gram()


def test_describe_shows_operations_and_bytes_of_every_node() -> None:
    lines = tree().describe().splitlines()
    assert [line.strip().split(":")[0] for line in lines] == [
        "Sum", "Identity", "Scaled by 2", "Gram", "Gradient",
    ]  # fmt: skip
    # One subtraction and one product for each of 2 * 200000 outputs; 4 bytes an entry.
    assert "800 kflop, 2.4 MB" in lines[-1]
    assert "0 flop, 0 B" in lines[1]


@pytest.mark.parametrize(
    "count, shown", [(1, "1 flop"), (999, "999 flop"), (1000, "1 kflop"), (999_999, "1 Mflop")]
)
def test_figures_read_well_at_every_size(count: int, shown: str) -> None:
    assert f" {shown}," in lo.Diagonal(np.ones(count, "float32")).describe()


def test_html_has_one_row_an_operator_and_escapes_what_users_name() -> None:
    A = tree()
    page = A._repr_html_()
    assert page.count("<tr>") == 1 + len(A.describe().splitlines())
    text = html.unescape(re.sub("<[^>]*>", " ", page))
    for word in ("Gradient", "y~1 x~1 -> component y x", "800 kflop", "2.4 MB", "self_adjoint"):
        assert word in text
    named = lo.from_functions(abs, abs, domain=lo.Space(2), name="<script>")
    assert "<script>" not in named._repr_html_()
    nonlinear = lo.Exp(lo.Space(3)) @ lo.Identity(lo.Space(3))
    assert "Exp" in nonlinear._repr_html_()


@pytest.mark.slow
def test_spy_draws_the_pattern_of_the_matrix() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    A = lo.Gradient(lo.Space((3, 4)))
    ax = A.spy()
    drawn = np.asarray(ax.images[0].get_array())
    assert np.array_equal(drawn, A.to_dense() != 0)
    assert "24 x 12" not in ax.get_title()
    assert f"{np.count_nonzero(drawn)} of 288" in ax.get_title()
    own = pyplot.figure().add_subplot()
    assert A.spy(ax=own) is own
    pyplot.close("all")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_plot_matrix_draws_its_entries(dtype: str) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    from linops.plotting import plot_matrix

    A = lo.Matrix(np.array([[1, -2], [0, 3]], dtype) * (1j if dtype == "complex64" else 1))
    image = plot_matrix(A).images[0]
    dense = A.to_dense()
    assert np.array_equal(image.get_array(), np.abs(dense) if A.domain.is_complex else dense)
    assert image.get_clim() == ((0, 3) if A.domain.is_complex else (-3, 3))
    pyplot.close("all")


def test_large_operators_are_not_drawn() -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(ShapeError, match="limit"):
        lo.Identity(lo.Space((100, 100))).spy()
    ax = lo.vstack([lo.Identity(lo.Space(3)), lo.Zero(lo.Space(3))]).spy(limit=None)
    assert ax.images[0].get_array().shape == (6, 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(OPERATORS))
@pytest.mark.parametrize("put", [None, object()], ids=["none", "any"])
def test_trees_of_placeholders_are_shown(name: str, put: object) -> None:
    jax = pytest.importorskip("jax")
    A = OPERATORS[name]()
    leaves, structure = jax.tree.flatten(A)
    B = jax.tree.unflatten(structure, [put] * len(leaves))
    assert repr(B).startswith(f"<{A.name}: {A.domain} -> {A.codomain}, ")
    lines = [line.split(": ")[0] for line in A.describe().splitlines()]
    if "Scaled by" not in A.describe():
        assert [line.split(": ")[0] for line in B.describe().splitlines()] == lines
    assert B._repr_html_().count("<tr>") == 1 + len(lines)
    # Within a trace, values are unknown too.
    jax.make_jaxpr(lambda A: len(A.describe() + A._repr_html_() + repr(A)))(A)


def test_an_operator_that_is_being_made_has_a_repr() -> None:
    assert repr(object.__new__(lo.Diagonal)) == "<Diagonal, not set up>"
