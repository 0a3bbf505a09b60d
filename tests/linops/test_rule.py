"""The grammar of rules, what they mean, and the rules of compositions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import linops as lo
from linops.rule import Relation, Rule

from .builders import matrix

LINES = [
    "z y x -> view row col",
    "z y x -> view z col",
    "z~1 y~1 x~1 -> component z y x",
    "view row col! -> view row col!",
    "z y x; z y x -> z y x",
    "z~1 y~1 x~1 ->",
    "z~2* y -> z y",
    "z y x -> view row col, component z y x",
    "z y, z x -> z",
    "->",
]


@pytest.mark.parametrize("line", LINES)
def test_a_line_comes_back(line: str) -> None:
    rule = Rule.parse(line)
    assert Rule.parse(str(rule)) == rule
    assert str(rule) == line
    assert Rule.parse(rule) is rule


def test_relations() -> None:
    rule = Rule.parse("z~1 y x~2* w! -> view z x w!")
    assert [rule.relation(name) for name in ("z", "y", "x", "w", "view")] == [
        Relation.ALIGNED,
        Relation.CONTRACTED,
        Relation.ALIGNED,
        Relation.WHOLE,
        Relation.PRODUCED,
    ]
    assert [rule.halo(name) for name in ("z", "y", "x")] == [1, 0, 2]
    assert [rule.periodic(name) for name in ("z", "x")] == [False, True]
    assert rule.names == ("z", "y", "x", "w", "view")


def test_the_adjoint_reads_backwards_and_moves_halos() -> None:
    rule = Rule.parse("z~1 y x~2*; z -> view z x")
    assert str(rule.adjoint()) == "view z~1 x~2*; z -> z y x"
    assert rule.adjoint().adjoint() == rule


@pytest.mark.parametrize(
    "line, told",
    [
        ("z y x", "0 arrows"),
        ("z -> y -> x", "2 arrows"),
        ("z; z; z -> z", "more than one ';'"),
        ("z -> z; z", "before the arrow"),
        ("z~ -> z", "'z~' is no axis"),
        ("z~-1 -> z", "is no axis"),
        ("3z -> z", "'3z' is no axis"),
        ("z z -> z", "names the axis 'z' twice in one member on the left"),
        ("z -> y y", "twice in one member on the right"),
        ("batch z -> z", "aligned in every rule"),
        ("z -> z~1", "belongs on the left side"),
        ("z; w -> z", "no space has the axis 'w'"),
        ("z~1*, z~1 -> z", "wraps in one member only"),
    ],
)
def test_misspelt_rules_are_explained(line: str, told: str) -> None:
    with pytest.raises(ValueError, match=told.replace("*", r"\*")):
        Rule.parse(line)


def test_an_unknown_axis_is_explained() -> None:
    with pytest.raises(ValueError, match="no axis 'q'; it has z, y"):
        Rule.parse("z -> y").relation("q")


def test_a_rule_must_fit_the_spaces() -> None:
    with pytest.raises(lo.errors.ShapeError, match=r"rule 'x -> x' names \[1\] axes on the left"):
        lo.from_functions(abs, abs, domain=lo.Space((2, 3)), rule="x -> x")


AXIS = st.builds(
    lambda name, halo: f"{name}{halo}",
    st.sampled_from(["a", "b", "c_1", "view"]),
    st.sampled_from(["", "~1", "~3*", "!"]),
)


@given(
    st.lists(AXIS, max_size=3, unique_by=lambda axis: axis.rstrip("~13*!")),
    st.lists(st.sampled_from(["a", "b", "d", "e!"]), max_size=3, unique=True),
)
def test_every_legal_line_survives_a_round_trip(left: list[str], right: list[str]) -> None:
    rule = Rule.parse(f"{' '.join(left)} -> {' '.join(right)}")
    assert Rule.parse(str(rule)) == rule
    twice = rule.adjoint().adjoint()
    assert [axis.name for axis in twice] == [axis.name for axis in rule]
    for name in rule.names:
        if rule.relation(name) is Relation.ALIGNED:
            assert twice.halo(name) == rule.halo(name)


# --- compositions ------------------------------------------------------------------------

VOLUME = lo.Space((2, 3, 4), axes=("z", "y", "x"))
VIEWS = lo.Space((5, 2, 3), axes=("view", "row", "col"))


def projector(rule: str, codomain: lo.Space = VIEWS) -> lo.LinearOperator:
    return lo.from_functions(
        lambda x: np.zeros(codomain.shape, "f4"),
        lambda y: np.zeros(VOLUME.shape, "f4"),
        domain=VOLUME,
        codomain=codomain,
        rule=rule,
    )


def test_a_gram_of_a_projector_keeps_no_axis() -> None:
    A = projector("z y x -> view row col")
    assert str(A.gram().rule) == "z y x -> z2 y2 x2"
    assert str((A.H @ A).rule) == "z y x -> z2 y2 x2"
    assert str(A.gram(np.ones((5, 2, 3))).rule) == "z y x -> z2 y2 x2"


def test_an_aligned_projector_keeps_its_slices() -> None:
    A = projector("z y x -> view z col")
    assert str(A.gram().rule) == "z y x -> z y2 x2"
    assert str(A.H.rule) == "view z col -> z y x"
    assert str(A.H.gram().rule) == "view z col -> view2 z col2"


def test_halos_add_along_a_product() -> None:
    G = lo.Gradient(VOLUME)
    assert str(G.rule) == "z~1 y~1 x~1 -> component z y x"
    assert str((G.H @ G).rule) == "z~2 y~2 x~2 -> z y x"
    assert str((G @ G.H @ G).rule) == "z~3 y~3 x~3 -> component z y x"
    A = projector("z y x -> view z col")
    assert str((A @ G.gram()).rule) == "z~2 y~2 x~2 -> view z col"
    assert str((G @ A.H).rule) == "view z~1 col -> component z y x"


def test_a_sum_takes_the_weakest_relation_and_the_larger_halo() -> None:
    G = lo.Gradient(VOLUME)
    assert str((G.gram() + lo.Identity(VOLUME)).rule) == "z~2 y~2 x~2 -> z y x"
    A = projector("z y x -> view row col")
    assert str((A.gram() + G.gram()).rule) == "z~2 y~2 x~2 -> z2 y2 x2"


def test_stacks() -> None:
    G = lo.Gradient(VOLUME)
    A = projector("z y x -> view z col")
    stack = lo.vstack([A, G])
    assert str(stack.rule) == "z~1 y~1 x~1 -> view z col, component z y2 x2"
    both = lo.block_diagonal([G, G])
    assert str(both.rule) == "z~1 y~1 x~1, z~1 y~1 x~1 -> component z y x, component z y x"


def test_without_a_rule_no_axis_splits() -> None:
    A = lo.from_functions(abs, abs, domain=VOLUME)
    assert all(A.rule.relation(name) is Relation.WHOLE for name in A.rule.names)
    with pytest.raises(lo.errors.ShapeError, match="must not be split along 'z'"):
        A.block("z", 0, 1)


def test_axes_are_matched_by_position_not_by_name() -> None:
    plain = lo.Space((3, 4))
    named = lo.Space((3, 4), axes=("y", "x"))
    A = lo.Gradient(plain) @ lo.Identity(named)
    assert A.domain == plain or A.domain == named
    product = lo.Diagonal(np.ones((3, 4), "f4"), named) @ lo.Gradient(plain).H
    assert str(product.rule) == "component axis0~1 axis1~1 -> axis0 axis1"


def test_a_matrix_contracts_and_produces() -> None:
    M = matrix(3, 4)
    assert str(M.rule) == "col -> row"
    assert str(matrix(4, 4).gram().rule) == "col -> col2"
