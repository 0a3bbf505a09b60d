"""Checks of the operator as an object: immutable, picklable, shared by threads, told in text."""

from __future__ import annotations

import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from linops.operator import Operator
from linops.structure import children
from linops.testing.subject import (
    Failure,
    NotApplicable,
    Subject,
    each,
    elements,
    host,
    plain,
    same_bits,
)

__all__ = [
    "check_cost",
    "check_immutable",
    "check_nan",
    "check_pickling",
    "check_text",
    "check_threads",
    "immutable",
]


def check_immutable(s: Subject) -> None:
    """Nothing can be set or deleted after construction; the operator hashes by identity."""
    immutable(s.operator)


def immutable(A: Operator) -> None:
    """Raise where an attribute of an operator or functional can be changed."""
    for change, arguments in ((setattr, ("name", "other")), (delattr, ("name",))):
        try:
            change(A, *arguments)
        except AttributeError:
            continue
        raise Failure("attributes can be changed after construction")
    if hash(A) != object.__hash__(A):
        raise Failure("it does not hash by identity")


def check_pickling(s: Subject) -> None:
    """A pickled copy gives equal bits; functions that cannot be pickled are named."""
    A = s.operator
    try:
        copy = pickle.loads(pickle.dumps(A))
    except pickle.PicklingError as error:
        if "module level" in str(error):
            raise NotApplicable(str(error)) from None
        raise Failure(f"it does not pickle: {error}") from None
    except Exception as error:
        raise Failure(f"it does not pickle: {type(error).__name__}: {error}") from error
    if not same_bits(copy(s.x), s.Ax) or not same_bits(copy.H(s.y), s.Hy):
        raise Failure("a pickled copy gives other numbers")
    for attribute in ("domain", "codomain", "rule", "tags", "precision", "name"):
        if getattr(copy, attribute) != getattr(A, attribute):
            raise Failure(f"a pickled copy has another {attribute}")


def check_threads(s: Subject) -> None:
    """Several threads at once get the numbers that one gets."""
    A = s.operator
    inputs = [plain(A.domain).random(s.generator(30 + i)) for i in range(4)]
    wanted = [host(each(np.array, A(x))) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(A, inputs * 4))
    for number, result in enumerate(found):
        if not same_bits(result, wanted[number % 4]):
            raise Failure("applied from several threads at once it gives other numbers")


def check_text(s: Subject) -> None:
    """`repr` and `describe` name the operator and its spaces, for every node of the tree."""
    A = s.operator
    for text, name in ((repr(A), "repr"), (A.describe(), "describe()")):
        for wanted in (A.name, str(A.domain), str(A.codomain), *sorted(A.tags)):
            if wanted not in text:
                raise Failure(f"{name} does not mention {wanted!r}")
    # One that runs by a plan says where as well.
    most = 3 if A._lowered else 1
    if len(repr(A).splitlines()) > most:
        raise Failure(f"repr is longer than {'one line' if most == 1 else 'three lines'}")
    lines = A.describe().splitlines()
    if len(lines) != _count(A) + (most if A._lowered else 0):
        raise Failure(f"describe() has {len(lines)} lines for {_count(A)} operators")


def check_cost(s: Subject) -> None:
    """Flops and bytes are finite and not negative."""
    for B, name in ((s.operator, "A"), (s.operator.H, "A.H")):
        cost = B.cost()
        for field in ("flops", "read", "written", "workspace"):
            value = getattr(cost, field)
            if not (math.isfinite(value) and value >= 0):
                raise Failure(f"{name}.cost().{field} is {value}")


def check_nan(s: Subject) -> None:
    """NaN goes through: it never comes out as a number everywhere."""
    for B, image, name in ((s.operator, s.Ax, "A"), (s.operator.H, s.Hy, "A.H")):
        if all(not np.any(part) for part in elements(image)):
            raise NotApplicable("its result is zero")
        with np.errstate(all="ignore"):
            nan: Any = each(lambda part: part * np.nan, plain(B.domain).ones())
            found = host(B(nan))
        if not any(np.isnan(part).any() for part in elements(found)):
            raise Failure(f"{name} turns NaN into numbers")


def _count(operator: Any) -> int:
    return 1 + sum(_count(child) for child in children(operator))
