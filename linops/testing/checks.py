"""`check_operator` and `check_functional`: all checks of one operator or functional, by name.

>>> import linops as lo
>>> from linops.testing import check_operator
>>> report = check_operator(lo.Gradient(lo.Space((3, 4))), skip={"threads": "an example"})
check_operator: skipped threads of Gradient: an example
>>> report.passed[:2]
('spaces', 'zero')
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from linops.arguments import checking
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.testing import block_law, derivative_laws, handling, laws, objects
from linops.testing.subject import NAMESPACES, Failure, NotApplicable, Subject

if TYPE_CHECKING:
    from linops.functionals import Functional

__all__ = ["CHECKS", "CheckReport", "check_functional", "check_operator"]

CHECKS: dict[str, Callable[[Subject], None]] = {
    "spaces": handling.check_spaces,
    "zero": laws.check_zero,
    "outputs": handling.check_outputs,
    "layouts": handling.check_layouts,
    "dot": laws.check_dot,
    "additivity": laws.check_additivity,
    "homogeneity": laws.check_homogeneity,
    "involution": laws.check_involution,
    "transpose": laws.check_transpose,
    "dtypes": handling.check_dtypes,
    "batches": handling.check_batches,
    "nan": objects.check_nan,
    "blocks": block_law.check_blocks,
    "padded_blocks": block_law.check_padded_blocks,
    "block_adjoints": block_law.check_block_adjoints,
    "nested_blocks": block_law.check_nested_blocks,
    "columns": laws.check_columns,
    "diagonal": laws.check_diagonal,
    "gram": laws.check_gram,
    "tags": laws.check_tags,
    "torch": functools.partial(handling.check_namespace, package="torch"),
    "jax": functools.partial(handling.check_namespace, package="jax"),
    "array_api_strict": functools.partial(handling.check_namespace, package="array_api_strict"),
    "torch_derivatives": derivative_laws.check_torch_derivatives,
    "jax_derivatives": derivative_laws.check_jax_derivatives,
    "jax_arguments": derivative_laws.check_jax_arguments,
    "device": handling.check_device,
    "threads": objects.check_threads,
    "immutable": objects.check_immutable,
    "pickling": objects.check_pickling,
    "text": objects.check_text,
    "cost": objects.check_cost,
}
"""Every check by the name that `skip` takes, in the order they run."""


@dataclass(frozen=True)
class CheckReport:
    """What a run of checks found: their names, with the reason where one did not run."""

    operator: str
    passed: tuple[str, ...]
    skipped: Mapping[str, str]
    not_applicable: Mapping[str, str]

    def __str__(self) -> str:
        lines = [f"{self.operator}: {len(self.passed)} checks passed"]
        for name, reason in {**self.skipped, **self.not_applicable}.items():
            lines.append(f"  {name}: {reason}")
        return "\n".join(lines)


@checking("A", "seed")
def check_operator(
    A: LinearOperator,
    *,
    skip: Mapping[str, str] | None = None,
    libraries: Collection[str] | None = None,
    seed: int = 0,
) -> CheckReport:
    """Run every check of `CHECKS` on `A` and its adjoint.

    Parameters
    ----------
    A
        The operator. Small extents (up to about 8 an axis) make the run fast and failures exact:
        where the matrix has at most 4096 entries, the entry at fault is named.
    skip
        `{name: reason}` of checks that are left out; each is printed with its reason.
    libraries
        Which of "torch", "jax" and "array_api_strict" the checks use; by default every one that
        is installed. `()` keeps to NumPy, which is fast and imports nothing.
    seed
        Of all random elements: equal seeds give equal runs.

    Returns
    -------
    CheckReport
        Names of the checks that passed, that were skipped, and that do not apply (a library that
        is not installed, an adjoint that is declared approximate, ...).

    Raises
    ------
    AssertionError
        One line for every check that failed.
    ValueError
        For a name in `skip` that is no check, or in `libraries` that is no library.
    """
    if not isinstance(A, LinearOperator):
        raise TypeError(
            f"check_operator takes a LinearOperator, got {type(A).__name__}; wrap a foreign "
            "operator with linops.as_operator first"
        )
    _check_names(CHECKS, skip, libraries)
    return run_checks("check_operator", CHECKS, A, Subject(A, seed, libraries), skip or {})


@checking("f", "seed")
def check_functional(
    f: Functional,
    *,
    x: Any = None,
    skip: Mapping[str, str] | None = None,
    libraries: Collection[str] | None = None,
    seed: int = 0,
) -> CheckReport:
    """Run every check of `FUNCTIONAL_CHECKS` on `f`, its gradient, prox and surrogate.

    What a functional does not have (a gradient, a closed prox, a surrogate) does not apply, with
    the reason that the functional gives.

    Parameters
    ----------
    f
        The functional. Small extents (up to about 8 an axis) make the run fast.
    x
        An element of the domain in whose neighborhood `f` is finite and smooth, for functionals
        that are not so everywhere; Gaussian elements of several sizes by default.
    skip
        `{name: reason}` of checks that are left out; each is printed with its reason. Leave out
        "firm" and "conjugate" of a functional that is not convex.
    libraries
        Which of "torch", "jax" and "array_api_strict" the checks use; by default every one that
        is installed. `()` keeps to NumPy.
    seed
        Of all random elements: equal seeds give equal runs.

    Returns
    -------
    CheckReport
        Names of the checks that passed, that were skipped, and that do not apply.

    Raises
    ------
    AssertionError
        One line for every check that failed.
    ValueError
        For a name in `skip` that is no check, or in `libraries` that is no library.
    """
    from linops.testing.functionals import FUNCTIONAL_CHECKS, FunctionalSubject

    _check_names(FUNCTIONAL_CHECKS, skip, libraries)
    if x is not None:
        f.domain.check_shape(x, "check_functional")
    subject = FunctionalSubject(f, seed, libraries, x)
    return run_checks("check_functional", FUNCTIONAL_CHECKS, f, subject, skip or {})


def run_checks(
    caller: str,
    checks: Mapping[str, Callable[[Any], None]],
    tested: Operator,
    subject: Any,
    skip: Mapping[str, str],
) -> CheckReport:
    """Run all `checks` but those of `skip` on `subject`, and report what they found."""
    passed: list[str] = []
    failed: list[str] = []
    idle: dict[str, str] = {}
    first: Exception | None = None
    for name, check in checks.items():
        if name in skip:
            print(f"{caller}: skipped {name} of {tested.name}: {skip[name]}")
            continue
        try:
            check(subject)
        except NotApplicable as reason:
            idle[name] = str(reason)
        except Failure as error:
            failed.append(f"{name}: {error}")
        except Exception as error:
            failed.append(f"{name}: raised {type(error).__name__}: {error}")
            first = first or error
        else:
            passed.append(name)
    if failed:
        listed = "\n  ".join(failed)
        raise AssertionError(
            f"{tested!r} fails {len(failed)} of {len(checks) - len(skip)} checks:\n  {listed}"
        ) from first
    return CheckReport(repr(tested), tuple(passed), dict(skip), idle)


def _check_names(
    checks: Mapping[str, Any], skip: Mapping[str, str] | None, libraries: Collection[str] | None
) -> None:
    unknown = sorted(set(skip or {}) - set(checks))
    if unknown:
        raise ValueError(f"no check is called {', '.join(unknown)}; there are {', '.join(checks)}")
    strange = sorted(set(libraries or ()) - set(NAMESPACES))
    if strange:
        raise ValueError(f"libraries are {', '.join(NAMESPACES)}, got {', '.join(strange)}")
