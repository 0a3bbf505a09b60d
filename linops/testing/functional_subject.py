"""The functional under test with what all its checks share: points, values, gradients."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property
from typing import Any

import numpy as np

from linops.errors import DTypeError
from linops.functionals import Functional
from linops.testing.dot import epsilon
from linops.testing.subject import (
    Failure,
    NotApplicable,
    Setting,
    each,
    elements,
    host,
    plain,
    same_bits,
)

__all__ = ["FunctionalSubject", "inner", "norm", "plus", "same_value"]

SIZES = (1.0, 0.1, 8.0)
STEPS = (0.3, 2.0)


class FunctionalSubject(Setting):
    """A functional, points to look at it from, and its maps where it has them.

    Parameters
    ----------
    functional
        What is tested.
    seed, libraries
        As for `Setting`.
    x
        A point in whose neighborhood it is smooth; None where any Gaussian element will do.
    """

    def __init__(
        self, functional: Functional, seed: int, libraries: Collection[str] | None, x: Any
    ) -> None:
        self.functional = functional
        self.given = x
        space = plain(functional.domain)
        narrow = float(np.finfo(functional.precision.dtype).eps)
        super().__init__(seed, libraries, max(epsilon(space), narrow))
        self.space = space

    def point(self, salt: int = 0, size: float = 1.0) -> Any:
        """An element that depends on the seed and on `salt`; near the given one, if any."""
        drawn = self.space.random(self.generator(salt))
        if self.given is None:
            return each(lambda part: np.asarray(size * part, part.dtype), drawn)
        parts = zip(elements(host(self.given)), elements(drawn), strict=True)
        near = [np.asarray(p * (1 + 0.05 * size * np.tanh(q.real)), q.dtype) for p, q in parts]
        return tuple(near) if isinstance(drawn, tuple) else near[0]

    @cached_property
    def x(self) -> Any:
        """The first point; checks must not change it."""
        return self.point(1)

    @cached_property
    def value(self) -> float:
        """The value there."""
        return float(self.functional(self.x))

    @cached_property
    def maps(self) -> dict[str, Callable[[Any], Any]]:
        """What it has of value, gradient and proximal map, as functions of an element."""
        f = self.functional
        found: dict[str, Callable[[Any], Any]] = {"f": f}
        if not isinstance(self._gradient, str):
            found["gradient"] = f.gradient
        if not isinstance(self._prox, str):
            found["prox"] = lambda x: f.prox(x, STEPS[0])
        return found

    @property
    def gradient(self) -> Any:
        """The gradient at `x`, as NumPy arrays."""
        if isinstance(self._gradient, str):
            raise NotApplicable(self._gradient)
        return self._gradient

    def needs_prox(self) -> None:
        """Leave the check where there is no proximal map."""
        if isinstance(self._prox, str):
            raise NotApplicable(self._prox)

    def surrogate(self, x: Any) -> Any:
        """The surrogate at `x`."""
        try:
            return self.functional.surrogate(x)
        except (TypeError, NotImplementedError) as error:
            raise _absence(error) from None

    def hessian(self, x: Any) -> Any:
        """The derivative of the gradient at `x`."""
        _ = self.gradient
        try:
            return self.functional.gradient.jacobian(x)
        except (TypeError, NotImplementedError) as error:
            raise _absence(error) from None

    @cached_property
    def gain(self) -> float:  # type: ignore[override]
        """How much the gradient enlarges, and at least 1, as a proximal map does."""
        size = norm(self.x)
        found = 1.0
        if not isinstance(self._gradient, str) and size:
            found = max(found, norm(self._gradient) / size)
        return found

    def close_values(self, found: Any, wanted: Any, x: Any, what: str) -> None:
        """Raise unless two values of the functional at `x` agree to rounding."""
        a, b = float(found), float(wanted)
        if same_value(a, b):
            return
        slope = 0.0 if isinstance(self._gradient, str) else self.gain * norm(x) ** 2
        if not abs(a - b) <= 64 * self.eps * (abs(b) + slope):
            raise Failure(f"{what}: {a:.9g} against {b:.9g}")

    def close_maps(self, name: str, found: Any, wanted: Any, x: Any, what: str) -> None:
        """The same for the results of one of `maps`."""
        if name == "f":
            self.close_values(found, wanted, x, what)
        else:
            self.close(self.space, found, wanted, norm(x), what)

    @cached_property
    def _gradient(self) -> Any:
        try:
            return host(self.functional.gradient(self.x))
        except (TypeError, NotImplementedError) as error:
            return str(_absence(error))

    @cached_property
    def _prox(self) -> Any:
        try:
            return host(self.functional.prox(self.x, STEPS[0]))
        except NotImplementedError as error:
            return str(error)


def inner(x: Any, y: Any) -> float:
    """The real part of `<x, y>`, in double precision."""
    pairs = zip(elements(host(x)), elements(host(y)), strict=True)
    return float(sum(np.vdot(_double(p), _double(q)).real for p, q in pairs))


def norm(x: Any) -> float:
    """The length of an element, in double precision."""
    return float(np.sqrt(inner(x, x)))


def plus(x: Any, factor: float, d: Any) -> Any:
    """`x + factor * d` in the dtypes of x."""
    pairs = zip(elements(host(x)), elements(host(d)), strict=True)
    moved = [np.asarray(p + factor * q, p.dtype) for p, q in pairs]
    return tuple(moved) if isinstance(x, tuple) else moved[0]


def same_value(a: float, b: float) -> bool:
    """Whether two values are equal, infinite and NaN ones too."""
    return same_bits(np.asarray(a), np.asarray(b))


def _absence(error: Exception) -> Exception:
    """What a functional says it lacks is a reason; any other error is a failure."""
    if isinstance(error, DTypeError):
        return error
    return NotApplicable(str(error))


def _double(x: np.ndarray) -> np.ndarray:
    return np.asarray(x, np.complex128 if x.dtype.kind == "c" else np.float64)
