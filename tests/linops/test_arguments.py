"""Wrong kinds of argument, masked arrays, NumPy's integers: told by name at the door."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import linops as lo
import solvers
from linops.arguments import checked
from linops.errors import DTypeError, ShapeError

S = lo.Space((4, 6), axes=("row", "col"))
K = np.ones(3, "f4")
M = np.array([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]])
MASKED = np.ma.masked_array(np.ones((4, 6), "f4"), np.zeros((4, 6), bool))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: lo.Identity(5), r"Identity takes a Space .* as space, got 5; .*linops.Space\(5\)"),
        (lambda: lo.Identity(K), r"as space, got a numpy.ndarray of shape \(3,\).*Diagonal"),
        (lambda: lo.Convolve(K, S), r"space and kernel look swapped: Convolve\(space, kernel"),
        (lambda: lo.Diagonal(S, K), r"array and domain look swapped: Diagonal\(array, domain"),
        (lambda: lo.Huber(0.1, S), r"space and delta look swapped: Huber\(space, delta"),
        (lambda: lo.Pad(1, S), r"space and widths look swapped: Pad\(space, widths"),
        (lambda: lo.FFT(lo.Identity(S)), r"got the linear operator Identity; .*\.domain"),
        (lambda: lo.Convolve(S, None), "Convolve takes an array as kernel, got None"),
        (lambda: lo.FFT(S, 1.5), "FFT takes .* as axes, got 1.5"),
        (lambda: lo.SumOver(S, [0, None]), "got None as entry 1"),
        (lambda: lo.Space(3, axes=5), "Space takes .* as axes, got 5"),
        (lambda: lo.Space(3, spacing=1j), "Space takes .* as spacing, got 1j"),
        (lambda: S.random("a"), "Space.random takes .* as seed, got the string 'a'"),
        (lambda: lo.Identity(S).block("row", 0.0, 1), "Identity.block takes .* as start, got 0.0"),
        (lambda: lo.Identity(S).block(None, 0, 1), "as axis, got None"),
        (lambda: lo.Identity(S).columns([1], axes=2.5), "as axes, got 2.5"),
        (lambda: lo.vstack(lo.Identity(S)), r"put it into a list: vstack\(\[operators\]\)"),
        (lambda: lo.vstack([lo.Exp(S)]), "nonlinear operator Exp as entry 0; .*jacobian"),
        (lambda: lo.from_functions(np.ones(3), domain=S), "a function as apply, got"),
        (lambda: solvers.cgls(np.eye(3), K, iterations=1), "cgls takes a linear operator as A"),
        (lambda: solvers.cgls(None, K, iterations=1), "as A, got None"),
        (lambda: solvers.sirt(lo.Exp(S), K, iterations=1), r"nonlinear operator Exp; .*jacobian"),
        (lambda: solvers.tv(np.sin, K, iterations=1), "linops.from_functions"),
    ],
)
def test_a_wrong_kind_names_the_argument_what_came_and_the_fix(
    call: Callable[[], Any], said: str
) -> None:
    with pytest.raises(DTypeError, match=said):
        call()


def test_a_product_where_one_array_is_meant() -> None:
    with pytest.raises(ShapeError, match="pick a member of the product space first"):
        lo.FFT(lo.ProductSpace([S]))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="do not nest"):
        lo.ProductSpace([lo.ProductSpace([S])])  # type: ignore[list-item]


def test_only_what_the_annotation_says_is_checked_and_converted() -> None:
    @checked
    def f(a: int, b: float | None = None, *, c: str | int | tuple[str | int, ...] = ()) -> Any:
        return a, b, c

    assert f(np.int64(3), np.float64(2), c=np.array([1, 2])) == (3, 2.0, [1, 2])
    assert type(f(np.uint8(3))[0]) is int and type(f(np.array(3))[0]) is int
    assert f(1, c=["x", np.int8(2)]) == (1, None, ["x", 2])
    for wrong in (lambda: f(True), lambda: f(1, "2"), lambda: f(1, c=[2.0]), lambda: f(2.0)):
        with pytest.raises(DTypeError, match="f takes "):
            wrong()
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'a'"):
        f()  # type: ignore[call-arg]


def test_axes_of_numpy_serve_as_those_of_python() -> None:
    i = np.int64
    assert lo.Space(np.array([4, 6])) == lo.Space((4, 6))
    assert lo.FFT(S, i(1)).codomain.shape == (4, 4)
    assert lo.SumOver(S, np.array([0, 1])).codomain.shape == ()
    assert lo.Convolve(S, K, i(1), origin=i(1)).codomain.shape == (4, 6)
    assert lo.Reshape(S, i(24)).codomain.shape == (24,)
    assert lo.Transpose(S, np.array([1, 0])).codomain.shape == (6, 4)
    for axes in ("col", 1, i(1), -1, ("col",)):
        x = S.random(0)
        np.testing.assert_array_equal(lo.Restriction(S, [0, 2], axes=axes) @ x, x[:, [0, 2]])
        np.testing.assert_array_equal(lo.Scatter(S, [0, 2], axes=axes).H @ x, x[:, [0, 2]])
        np.testing.assert_array_equal(lo.Identity(S).columns([0, 2], axes).H @ x, x[:, [0, 2]])
    with pytest.raises(ShapeError, match="2147483647 planes"):
        lo.Space(2**31)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("kind", ["matrix", "sparse", "pylops"])
def test_what_can_only_be_an_operator_is_wrapped(kind: str) -> None:
    if kind == "pylops":
        theirs: Any = pytest.importorskip("pylops").MatrixMult(M)
    else:
        theirs = {"matrix": np.asmatrix, "sparse": scipy.sparse.csr_array}[kind](M)
    D = lo.Diagonal(np.array([1.0, 2.0]))
    E = lo.Diagonal(np.array([1.0, 2.0, 3.0]))
    np.testing.assert_allclose((D @ theirs).to_dense(), np.diag([1, 2]) @ M)
    if kind != "pylops":  # whose own '@' wants one of its kind on the right
        np.testing.assert_allclose((theirs @ E).to_dense(), M @ np.diag([1, 2, 3]))
    y = np.array([1.0, 2.0])
    found = solvers.cgls(theirs, y, iterations=10).solution
    np.testing.assert_allclose(found, np.linalg.lstsq(M, y)[0], atol=1e-10)


@pytest.mark.parametrize(
    "call",
    [
        lambda: lo.Identity(S) @ MASKED,
        lambda: lo.Identity(S)(MASKED),
        lambda: lo.Exp(S)(MASKED),
        lambda: lo.L1(S)(MASKED),
        lambda: lo.L1(S).prox(MASKED, 1.0),
        lambda: lo.Huber(S).gradient(MASKED),
        lambda: S.inner(MASKED, MASKED),
        lambda: lo.Diagonal(MASKED),
        lambda: lo.Matrix(MASKED),
        lambda: lo.Convolve(S, MASKED),
        lambda: lo.Restriction(S, np.ma.masked_array([1, 2])),
        lambda: lo.Proximity(MASKED, 1.0),
        lambda: lo.LeastSquares(S, MASKED),
        lambda: lo.Identity(S).gram(MASKED),
        lambda: lo.Exp(S).jacobian(MASKED),
        lambda: lo.vstack([lo.Identity(S)]).H @ (MASKED,),
        lambda: solvers.cgls(lo.Identity(S), MASKED, iterations=1),
        lambda: solvers.cgls(lo.Identity(S), S.ones(), x0=MASKED, iterations=1),
        lambda: solvers.sirt(lo.Identity(S), MASKED, iterations=1),
        lambda: solvers.tv(lo.Identity(S), MASKED, iterations=1),
        lambda: solvers.tv(lo.Identity(S), S.ones(), data_weights=MASKED, iterations=1),
        lambda: solvers.vcd(lo.Identity(S), MASKED, iterations=1),
        lambda: solvers.vcd(lo.Identity(S), S.ones(), weights=MASKED, iterations=1),
    ],
)
def test_masked_arrays_are_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(DTypeError, match=r"masked array.*filled"):
        call()


def test_functions_that_take_operators_name_what_they_got() -> None:
    with pytest.raises(DTypeError, match="apply_into takes an Operator as A, got the string"):
        lo.apply_into("no", np.ones(2), np.ones(2))  # type: ignore[arg-type]
    for value in (None, True):
        with pytest.raises(DTypeError, match="separable takes a list of functionals as terms"):
            lo.separable(value)  # type: ignore[arg-type]
