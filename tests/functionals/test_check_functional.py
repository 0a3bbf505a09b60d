"""`check_functional` finds what is wrong, names it, and says what it could not look at."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

import linops as lo
from linops.elementary.plane_windows import PlaneMask
from linops.testing import check_functional

SPACE = lo.Space((4, 3), "float64", axes=("y", "x"))


class Square(lo.Functional):
    """`|x|^2 / 2` by hand, right in all it says."""

    batched = True

    def __init__(self, space: lo.Space = SPACE) -> None:
        super().__init__(space, "y x ->")

    def _value(self, x: Any) -> Any:
        return 0.5 * self._sum(x * x)

    def _gradient(self, x: Any) -> Any:
        return 1.0 * x

    def _hessian(self, x: Any) -> lo.LinearOperator:
        return lo.Identity(self.domain)

    def _prox(self, x: Any, step: Any) -> Any:
        return x / (1 + step)

    def surrogate(self, x: Any) -> lo.LinearOperator:
        return lo.Identity(self.domain)

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> Any:
        position = self.domain.axes.index(axis)
        shape = list(self.domain.shape)
        n, shape[position] = shape[position], stop - start
        small = lo.Space(shape, "float64", axes=("y", "x"))
        if not padded:
            return type(self)(small)
        cuts = [(0, position)]
        return type(self)(small) @ PlaneMask(small, cuts, -start, n - start, self.rule.domain)


class SlantedGradient(Square):
    def _gradient(self, x: Any) -> Any:
        return 1.01 * x


class LooseCurvature(Square):
    def _hessian(self, x: Any) -> lo.LinearOperator:
        return 1.1 * lo.Identity(self.domain)


class ShortStep(Square):
    def _prox(self, x: Any, step: Any) -> Any:
        return x / (1 + 0.99 * step)


class DropsAnEntry(Square):
    def _prox(self, x: Any, step: Any) -> Any:
        found = np.array(x / (1 + step))
        found[..., 0, 0] = x[..., 0, 0]
        return found


class ForgetsTheStep(Square):
    def conjugate_prox(self, x: Any, step: Any) -> Any:
        return self.prox(x, 1 / step)


class SmallSurrogate(Square):
    def surrogate(self, x: Any) -> lo.LinearOperator:
        return 0.98 * lo.Identity(self.domain)


class UntaggedSurrogate(Square):
    def surrogate(self, x: Any) -> lo.LinearOperator:
        return lo.from_functions(lambda v: v, lambda v: v, domain=self.domain)


class HeavyBlocks(Square):
    """Its blocks weigh more than their share."""

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> Any:
        found = super()._block(axis, start, stop, padded)
        return 1.5 * found


class WritesIntoItsInput(Square):
    def _value(self, x: Any) -> Any:
        found = super()._value(x)
        if x.flags.writeable:
            x *= 2
        return found


class Counts(Square):
    calls: ClassVar[list[int]] = []

    def _value(self, x: Any) -> Any:
        self.calls.append(1)
        return super()._value(x) + len(self.calls)


class HidesNotANumber(Square):
    def _value(self, x: Any) -> Any:
        return super()._value(np.nan_to_num(x))


class OneNumberForABatch(Square):
    def _value(self, x: Any) -> Any:
        return 0.5 * float(np.sum(x * x))


class CountsEntries(Square):
    """Entries that are not 0: its proximal map jumps, as that of no convex functional does."""

    def _value(self, x: Any) -> Any:
        return self._sum((np.abs(x) > 0) * 1.0)

    def _gradient(self, x: Any) -> Any:
        return 0.0 * x

    def _prox(self, x: Any, step: Any) -> Any:
        return np.where(x * x > 2 * step, x, 0.0)


def test_what_is_right_passes_and_the_report_names_it() -> None:
    report = check_functional(Square(), libraries=())
    wanted = "value gradient hessian prox firm conjugate surrogate blocks padded_blocks batches"
    assert set(wanted.split()) <= set(report.passed)
    assert {"layouts", "dtypes", "pickling", "threads", "cost", "text"} <= set(report.passed)
    assert report.not_applicable["torch"] == "torch was not asked for"
    assert str(report).startswith(repr(Square())) and "torch was not asked for" in str(report)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "check", "message"),
    [
        (SlantedGradient, "gradient", "not that of the value"),
        (LooseCurvature, "hessian", "not the derivative of the gradient"),
        (ShortStep, "prox", "no minimizer"),
        (DropsAnEntry, "prox", "no minimizer"),
        (ForgetsTheStep, "conjugate", "is not x"),
        (SmallSurrogate, "surrogate", "does not majorize"),
        (UntaggedSurrogate, "surrogate", "tags"),
        (HeavyBlocks, "blocks", "do not add up"),
        (WritesIntoItsInput, "layouts", "changes its"),
        (Counts, "value", "holds a state"),
        (HidesNotANumber, "nan", "of NaN"),
        (OneNumberForABatch, "batches", "shape"),
        (CountsEntries, "firm", "not firmly nonexpansive"),
    ],
)
def test_what_is_wrong_is_named(wrong: Any, check: str, message: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check_functional(wrong(), libraries=())
    lines = [line.strip() for line in str(caught.value).splitlines()]
    assert any(line.startswith(f"{check}: ") and message in line for line in lines), lines


def test_values_in_other_libraries_are_compared() -> None:
    class Doubled(Square):
        def _value(self, x: Any) -> Any:
            return super()._value(x) * (1.0 if type(x) is np.ndarray else 2.0)

    pytest.importorskip("torch")
    with pytest.raises(AssertionError, match=r"torch: f on torch: .*\n.*torch_derivatives"):
        check_functional(Doubled(), libraries=("torch",), skip={"pickling": "defined in a test"})


def test_skips_are_printed_and_absences_have_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    f = lo.LeastSquares(lo.Space(2, "float64")) @ lo.Matrix(np.ones((2, 12)), SPACE)
    report = check_functional(f, libraries=(), skip={"threads": "an example"})
    assert capsys.readouterr().out == f"check_functional: skipped threads of {f.name}: an example\n"
    assert report.skipped == {"threads": "an example"}
    assert "no proximal map in closed form" in report.not_applicable["prox"]
    box = check_functional(lo.Box(SPACE, 0.0, 1.0), libraries=())
    assert "not differentiable" in box.not_applicable["gradient"]
    assert "prox" in box.passed


def test_a_point_is_given_where_not_every_one_will_do() -> None:
    class NegativeLogarithm(lo.Functional):
        def __init__(self) -> None:
            super().__init__(SPACE, "y! x! ->")

        def _value(self, x: Any) -> Any:
            with np.errstate(all="ignore"):
                return float(np.sum(np.where(x > 0, -np.log(x), np.inf)))

        def _gradient(self, x: Any) -> Any:
            return -1 / x

    local = {"pickling": "defined in a test", "nan": "infinite there"}
    f = NegativeLogarithm()
    report = check_functional(f, x=np.full((4, 3), 2.0), libraries=(), skip=local)
    assert "gradient" in report.passed
    with pytest.raises(lo.errors.ShapeError):
        check_functional(f, x=np.ones(3), libraries=())


def test_what_it_takes() -> None:
    with pytest.raises(TypeError, match="functional as f, got the linear operator"):
        check_functional(lo.Identity(SPACE))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no check is called proximity; there are value"):
        check_functional(Square(), skip={"proximity": ""})
    with pytest.raises(ValueError, match="libraries are torch"):
        check_functional(Square(), libraries=("tensorflow",))
