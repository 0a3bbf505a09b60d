"""The checks themselves: everything in the library passes them, and no mutant does."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scipy.sparse.linalg

import linops as lo
from linops.elementary.pointwise import Exp
from linops.testing import check_operator, dot_test, taylor_test

from .builders import NODES, OPERATORS, array, matrix, space


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_passes(name: str) -> None:
    skip = {}
    if name.startswith("sparse"):
        skip["device"] = "SciPy's sparse matrices live on the host"
        skip |= dict.fromkeys(("jax_derivatives", "jax_arguments"), "and are not traced")
    elif name in NODES:
        skip["jax"] = "their parts run in JAX one by one, here the whole runs inside jit"
    report = check_operator(OPERATORS[name](), skip=skip)
    assert len(report.passed) >= 20


class Counter:
    count = 0


class Mutant(lo.LinearOperator):
    """`y_i = 2 x_i - x_{i+1}`, right or with one fault."""

    batched = True

    def __init__(self, fault: str = "") -> None:
        rule = "x~1 -> x" if fault != "halo" else "x -> x"
        tags = {"self_adjoint": "self_adjoint", "psd": "psd", "sign": "nonnegative",
                "unitary": "unitary", "diagonal": "diagonal"}  # fmt: skip
        super().__init__(
            lo.Space(6), lo.Space(6), rule, tags=[tags[fault]] if fault in tags else []
        )
        self.fault = fault
        self.state = Counter()

    def _apply(self, x):
        from linops import arrays

        if self.fault == "in place":
            x[...] *= 2
            return x - arrays.narrow(arrays.widen(x / 2, -1, 0, 1), -1, 1, x.shape[-1] + 1)
        out = 2 * x - arrays.narrow(arrays.widen(x, -1, 0, 1), -1, 1, x.shape[-1] + 1)
        if self.fault == "state":
            self.state.count += 1
            return out * (1 + 1e-6 * self.state.count)
        if self.fault == "constant":
            return out + 1e-3
        if self.fault == "square":
            return out * abs(out)
        if self.fault == "nan":
            xp = arrays.namespace(out)
            return xp.where(out == out, out, xp.ones_like(out))
        if self.fault == "batch" and x.ndim > 1:
            return out[..., ::-1, :]
        return out

    def _apply_adjoint(self, y):
        from linops import arrays

        moved = arrays.narrow(arrays.widen(y, -1, 1, 0), -1, 0, y.shape[-1])
        if self.fault == "flipped sign":
            return 2 * y + moved
        if self.fault == "scale":
            return 1.001 * (2 * y - moved)
        if self.fault == "dropped bin":
            edge = arrays.widen(arrays.narrow(y, -1, 5, 6), -1, 5, 0)
            return 2 * y - moved - 2 * edge
        return 2 * y - moved

    def _block(self, axis, start, stop, padded):
        if self.fault == "block" and not padded:
            return lo.Zero(lo.Space(min(stop + 1, 6) - max(start - 1, 0)), lo.Space(stop - start))
        return None

    def _columns(self, index, axes):
        if self.fault == "columns":
            return lo.Zero(lo.Space(len(index)), lo.Space(6))
        return None

    def _diagonal(self):
        return np.full(6, 3, "float32") if self.fault == "own diagonal" else None

    def _gram_diagonal(self, weights):
        return np.full(6, 3, "float32") if self.fault == "gram" else None


FAULTS = {
    "flipped sign": "dot: adjoint differs from the forward by 2 at entry",
    "scale": "dot: adjoint differs from the forward by 0.002",
    "dropped bin": "dot: adjoint differs from the forward by 2 at entry (5, 5) of 6 x 6",
    "halo": "blocks: A.block('x', 0, 1) is not that part of A",
    "block": "blocks: A.block('x', 0, 1) is not that part of A",
    "in place": "layouts: ",
    "state": "outputs: A gives other bits on the second call",
    "constant": "zero: A @ zeros has the entry 0.001",
    "square": "additivity: ",
    "nan": "nan: A turns NaN into numbers",
    "batch": "batches: ",
    "columns": "columns: ",
    "own diagonal": "diagonal: ",
    "gram": "gram: A.gram().diagonal()",
    "self_adjoint": "tags: tagged self_adjoint",
    "psd": "",
    "sign": "tags: tagged nonnegative, but A e_",
    "unitary": "tags: tagged unitary",
    "diagonal": "tags: tagged diagonal",
}


@pytest.mark.slow
def test_the_mutant_without_a_fault_is_right() -> None:
    assert "dot" in check_operator(Mutant()).passed


@pytest.mark.slow
@pytest.mark.parametrize("fault", [name for name, line in FAULTS.items() if line])
def test_every_fault_is_named(fault: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(FAULTS[fault])):
        check_operator(Mutant(fault), libraries=("torch",))


def test_a_missing_conjugate_is_found() -> None:
    M = array((4, 5), "complex64")
    A = lo.from_functions(
        lambda x: M @ x, lambda y: M.T @ y, domain=lo.Space(5, "complex64"),
        codomain=lo.Space(4, "complex64"),
    )  # fmt: skip
    with pytest.raises(AssertionError, match=r"adjoint differs from the forward by .* of 4 x 5"):
        check_operator(A)


def test_an_undeclared_dtype_is_found() -> None:
    class Wide(lo.LinearOperator):
        batched = True
        _exact = True

        def __init__(self):
            super().__init__(lo.Space(3), lo.Space(3))

        def _apply(self, x):
            return x.astype("float64")

        _apply_adjoint = _apply

    with pytest.raises(AssertionError, match="spaces: A @ x has .* float64, declared is"):
        check_operator(Wide())


def test_a_false_psd_tag_is_found() -> None:
    A = lo.from_functions(
        lambda x: -x, lambda x: -x, domain=lo.Space(3), tags=["self_adjoint", "psd"]
    )
    with pytest.raises(AssertionError, match="tagged psd, but <x, A x> = -"):
        check_operator(A)


def test_an_approximate_adjoint_is_reported_by_name() -> None:
    A = lo.from_functions(
        lambda x: 2 * x, lambda y: y, domain=lo.Space(3), adjoint_kind="approximate"
    )
    report = check_operator(
        A, skip=dict.fromkeys(("block_adjoints", "gram"), "the pair does not match")
    )
    assert "declared approximate" in report.not_applicable["dot"]
    assert "approximate_adjoint" in repr(A)
    assert "approximate_adjoint" in A.describe()
    assert "approximate_adjoint" in (lo.Identity(lo.Space(3)) + 2 * A).tags
    assert "approximate_adjoint" in lo.vstack([A, A]).gram().tags


def test_skipping_is_told_and_misspelling_raises(capsys: pytest.CaptureFixture[str]) -> None:
    report = check_operator(lo.Identity(lo.Space(3)), skip={"threads": "because"})
    assert "skipped threads of Identity: because" in capsys.readouterr().out
    assert "threads" not in report.passed
    assert report.skipped == {"threads": "because"}
    with pytest.raises(ValueError, match="no check is called thread; there are spaces"):
        check_operator(lo.Identity(lo.Space(3)), skip={"thread": ""})
    with pytest.raises(TypeError, match=r"check_operator takes .* got a numpy.*linops\.Matrix"):
        check_operator(np.eye(3))


# --- the dot test -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("n", [1, 10, 300])
def test_correct_matrices_stay_below_two_eps(dtype: str, n: int) -> None:
    assert dot_test(matrix(n, n + 3, dtype)) < 2.5


def test_r_is_the_stated_formula_and_reproducible() -> None:
    x, y = array(6, "float64", 1), array(5, "float64", 2)
    M = array((5, 6), "float64")
    wrong = lo.from_functions(
        lambda v: M @ v, lambda v: M.T @ v * (1 + 1e-9), domain=lo.Space(6, "f8"),
        codomain=lo.Space(5, "f8"),
    )  # fmt: skip
    left, right = (M @ x) @ y, x @ (M.T @ y) * (1 + 1e-9)
    norm = np.linalg.norm
    r = abs(left - right) / (norm(M @ x) * norm(y) + norm(x) * norm(M.T @ y) * (1 + 1e-9))
    with pytest.raises(AssertionError) as error:
        dot_test(wrong, x, y)
    found = re.search(r"r = ([0-9.e+]+) eps", str(error.value))
    assert found is not None
    assert float(found[1]) == pytest.approx(r / np.finfo("f8").eps, rel=1e-3)
    assert "Gaussian x, Gaussian y" in str(error.value)
    assert "16 eps" in str(error.value)
    assert dot_test(matrix(5, 6)) == dot_test(matrix(5, 6))


def test_one_wrong_bin_of_many_is_found_with_its_place() -> None:
    big = lo.Space((20, 30), axes=("y", "x"))

    def adjoint(y):
        out = y.copy()
        out[19, 29] = 0
        return out

    A = lo.from_functions(lambda x: x.copy(), adjoint, domain=big)
    with pytest.raises(AssertionError, match=r"e_599 at \(y=19, x=29\)|Gaussian"):
        dot_test(A)


def test_a_non_finite_product_fails_and_zero_is_zero() -> None:
    A = lo.from_functions(lambda x: x * np.inf, lambda y: y * np.inf, domain=lo.Space(3))
    with np.errstate(all="ignore"), pytest.raises(AssertionError, match="not finite"):
        dot_test(A)
    assert dot_test(lo.Zero(lo.Space(3), lo.Space(2))) == 0


def test_fast_precision_has_its_own_limit_on_basis_vectors() -> None:
    def build(precision: str, error: float) -> lo.LinearOperator:
        # Entry (0, 0) of 64 x 64 differs: on dense pairs that is drowned, on e_0 it is not.
        def wrong(y):
            out = y.copy()
            out[0] *= 1 + error
            return out

        return lo.from_functions(
            lambda x: x.copy(), wrong, domain=lo.Space(4000), precision=precision
        )

    eps = float(np.finfo("f4").eps)
    assert 16 < dot_test(build("fast", 80 * eps)) < 64
    with pytest.raises(AssertionError, match="limit is 16"):
        dot_test(build("float32", 80 * eps))
    with pytest.raises(AssertionError, match="limit is 64"):
        dot_test(build("fast", 200 * eps))


def test_real_part_where_one_side_is_complex() -> None:
    assert dot_test(matrix(5, 6, "complex64", lo.Space(6))) < 2
    product = matrix(5, 6, "complex64", lo.Space(6))
    assert dot_test(product.H) < 2
    assert dot_test(product.gram()) < 2


def test_foreign_operators_and_other_namespaces() -> None:
    M = array((5, 6), "float64")
    assert dot_test(scipy.sparse.linalg.aslinearoperator(M)) < 2

    class Duck:
        shape, dtype = (5, 6), np.dtype("float64")

        def matvec(self, v):
            return M @ v

        def rmatvec(self, v):
            return -M.T @ v

    with pytest.raises(AssertionError, match="dot test"):
        dot_test(Duck())
    import torch

    x = torch.ones((3, 4))
    assert dot_test(lo.Gradient(space()), x) < 2


def test_taylor_orders() -> None:
    S = lo.Space(5, "float64")
    assert taylor_test(Exp(S), S.random(0)) > 1.9
    assert taylor_test(lo.Diagonal(S.random(1), S), S.random(0)) == float("inf")

    class Wrong(lo.Operator):
        def __init__(self):
            super().__init__(S, S)

        def _apply(self, x):
            return x**2

        def _jacobian(self, x):
            return lo.Diagonal(1.9 * x, S)

    with pytest.raises(AssertionError, match="Taylor test"):
        taylor_test(Wrong(), S.random(0))


def test_libraries_are_chosen() -> None:
    report = check_operator(Mutant(), libraries=())
    assert report.not_applicable["jax_derivatives"] == "jax was not asked for"
    assert "torch_derivatives" in check_operator(Mutant(), libraries=("torch",)).passed
    with pytest.raises(ValueError, match="libraries are torch, jax, array_api_strict, got numpy"):
        check_operator(Mutant(), libraries=("numpy",))


def test_a_derivative_that_is_not_the_pair_is_found() -> None:
    import torch

    class Detached(lo.LinearOperator):
        batched = True
        _exact = True

        def __init__(self):
            super().__init__(lo.Space(3), lo.Space(3))

        def _apply(self, x):
            return 2 * x

        _apply_adjoint = _apply

        def __call__(self, x):
            # The value is right, its graph is cut.
            return super().__call__(x.detach() if isinstance(x, torch.Tensor) else x)

    with pytest.raises(AssertionError, match="torch_derivatives: "):
        check_operator(Detached(), libraries=("torch",))
