"""The checks of functionals, by name; `linops/testing/checks.py` runs them."""

from __future__ import annotations

import functools
import math
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from linops.testing import functional_arrays, functional_laws, objects
from linops.testing.functional_subject import FunctionalSubject, same_value
from linops.testing.subject import Failure, NotApplicable, host, same_bits

__all__ = ["FUNCTIONAL_CHECKS", "FunctionalSubject"]


def check_pickling(s: FunctionalSubject) -> None:
    """A pickled copy gives equal bits; functions that cannot be pickled are named."""
    f = s.functional
    try:
        copy = pickle.loads(pickle.dumps(f))
    except pickle.PicklingError as error:
        if "module level" in str(error):
            raise NotApplicable(str(error)) from None
        raise Failure(f"it does not pickle: {error}") from None
    except Exception as error:
        raise Failure(f"it does not pickle: {type(error).__name__}: {error}") from error
    same = same_value(float(copy(s.x)), s.value)
    if "gradient" in s.maps:
        same = same and same_bits(copy.gradient(s.x), s.gradient)
    if not same:
        raise Failure("a pickled copy gives other numbers")
    for attribute in ("domain", "codomain", "rule", "tags", "precision", "name"):
        if getattr(copy, attribute) != getattr(f, attribute):
            raise Failure(f"a pickled copy has another {attribute}")


def check_threads(s: FunctionalSubject) -> None:
    """Several threads at once get the numbers that one gets."""
    points = [s.point(190 + k) for k in range(4)]
    for name, apply in s.maps.items():
        wanted = [host(apply(x)) for x in points]
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(apply, points * 2))
        for number, result in enumerate(found):
            if not same_bits(result, wanted[number % 4]):
                raise Failure(f"{name} gives other numbers from several threads at once")


def check_text(s: FunctionalSubject) -> None:
    """`repr` and `describe` name the functional and its domain."""
    f = s.functional
    for text, name in ((repr(f), "repr"), (f.describe(), "describe()")):
        for wanted in (f.name, str(f.domain)):
            if wanted not in text:
                raise Failure(f"{name} does not mention {wanted!r}")
    # One that runs by a plan says where as well.
    most = 3 if f._lowered else 1
    if len(repr(f).splitlines()) > most:
        raise Failure(f"repr is longer than {'one line' if most == 1 else 'three lines'}")


def check_cost(s: FunctionalSubject) -> None:
    """Flops and bytes of value and gradient are finite and not negative."""
    tested = {"f": s.functional}
    if "gradient" in s.maps:
        tested["f.gradient"] = s.functional.gradient  # type: ignore[assignment]
    for name, operator in tested.items():
        cost = operator.cost()
        for field in ("flops", "read", "written", "workspace"):
            value = getattr(cost, field)
            if not (math.isfinite(value) and value >= 0):
                raise Failure(f"{name}.cost().{field} is {value}")


def check_immutable(s: FunctionalSubject) -> None:
    """Nothing can be set or deleted after construction; it hashes by identity."""
    objects.immutable(s.functional)


FUNCTIONAL_CHECKS: dict[str, Callable[[FunctionalSubject], None]] = {
    "value": functional_arrays.check_value,
    "nan": functional_arrays.check_nan,
    "layouts": functional_arrays.check_layouts,
    "dtypes": functional_arrays.check_dtypes,
    "batches": functional_arrays.check_batches,
    "gradient": functional_laws.check_gradient,
    "hessian": functional_laws.check_hessian,
    "prox": functional_laws.check_prox,
    "firm": functional_laws.check_firm,
    "conjugate": functional_laws.check_conjugate,
    "surrogate": functional_laws.check_surrogate,
    "blocks": functional_laws.check_blocks,
    "padded_blocks": functional_laws.check_padded_blocks,
    "torch": functools.partial(functional_arrays.check_namespace, package="torch"),
    "jax": functools.partial(functional_arrays.check_namespace, package="jax"),
    "array_api_strict": functools.partial(
        functional_arrays.check_namespace, package="array_api_strict"
    ),
    "torch_derivatives": functional_arrays.check_torch_derivatives,
    "jax_derivatives": functional_arrays.check_jax_derivatives,
    "jax_arguments": functional_arrays.check_jax_arguments,
    "device": functional_arrays.check_device,
    "threads": check_threads,
    "immutable": check_immutable,
    "pickling": check_pickling,
    "text": check_text,
    "cost": check_cost,
}
"""Every check by the name that `skip` takes, in the order they run."""
