"""The operator under test with what all checks share: vectors, images, a yardstick for rounding."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Collection
from functools import cached_property
from typing import Any

import numpy as np

from linops import arrays
from linops.home import LOCAL
from linops.linear_operator import LinearOperator
from linops.space import AnySpace, ProductSpace
from linops.testing.dot import epsilon

__all__ = [
    "NAMESPACES",
    "Failure",
    "NotApplicable",
    "Setting",
    "Subject",
    "each",
    "elements",
    "host",
    "plain",
    "same_bits",
]

NAMESPACES = {"torch": "torch", "jax": "jax.numpy", "array_api_strict": "array_api_strict"}
"""Namespaces besides NumPy, by the package that has to be installed."""

DENSE_LIMIT = 4096
"""Entries up to which checks form a matrix."""


class Failure(AssertionError):
    """What one check found wrong, in one line."""


class NotApplicable(Exception):
    """A check that says nothing about this operator, with the reason."""


class Setting:
    """What a run of checks shares: random numbers, libraries, a yardstick for rounding.

    Parameters
    ----------
    seed
        Of all random elements.
    libraries
        Packages besides NumPy that checks may use; every one of `NAMESPACES` by default.
    eps
        Spacing of the coarsest numbers that the arithmetic uses.
    """

    gain: float
    """How much the map enlarges: the scale of its rounding errors."""

    def __init__(self, seed: int, libraries: Collection[str] | None, eps: float) -> None:
        self.seed = seed
        self.libraries = tuple(NAMESPACES) if libraries is None else tuple(libraries)
        self.eps = eps

    def generator(self, salt: int = 0) -> np.random.Generator:
        """Random numbers that depend on the seed and on `salt` alone."""
        return np.random.default_rng([self.seed, salt])

    def library(self, package: str) -> Any:
        """The namespace of another library, for checks that were asked for."""
        if package not in self.libraries:
            raise NotApplicable(f"{package} was not asked for")
        if importlib.util.find_spec(package) is None:
            raise NotApplicable(f"{package} is not installed")
        return importlib.import_module(NAMESPACES[package])

    def close(
        self, space: AnySpace, found: Any, wanted: Any, size: float, what: str, units: float = 32.0
    ) -> None:
        """Raise unless two results agree to rounding.

        Parameters
        ----------
        space
            That both are elements of.
        found, wanted
            The results, on the host or not.
        size
            Norm of the input they come from.
        what
            The claim, for the message.
        units
            Units of eps times (gain * size + |wanted|) that are allowed.
        """
        found, wanted = host(found), host(wanted)
        error, worst = 0.0, ""
        parts = zip(_members(found), _members(wanted), space.members, strict=True)
        for number, (a, b, member) in enumerate(parts):
            if a.shape != b.shape:
                raise Failure(f"{what}: shape {a.shape} against {b.shape}")
            if not a.size:
                continue
            with np.errstate(all="ignore"):
                difference = np.abs(a.astype(_wide(a)) - b.astype(_wide(b)))
            bad = ~np.isfinite(difference)
            if bad.any():
                place = np.unravel_index(int(np.argmax(bad)), a.shape)
                raise Failure(f"{what}: {a[place]} against {b[place]} at {_where(place, member)}")
            place = np.unravel_index(int(np.argmax(difference)), a.shape)
            if difference[place] > error:
                error = float(difference[place])
                label = f" of member {number}" if isinstance(space, ProductSpace) else ""
                worst = f"{a[place]:.7g} against {b[place]:.7g} at {_where(place, member)}{label}"
        scale = self.gain * size + sum(
            float(np.linalg.norm(part.astype(_wide(part)).ravel())) for part in _members(wanted)
        )
        if error > units * self.eps * scale:
            raise Failure(f"{what}: they differ by {error:.3g} ({worst})")


class Subject(Setting):
    """An operator, random elements of its spaces, and how large rounding may be.

    Parameters
    ----------
    operator
        What is tested.
    seed
        Of all random elements.
    libraries
        Packages besides NumPy that checks may use; every one of `NAMESPACES` by default.
    """

    def __init__(
        self, operator: LinearOperator, seed: int, libraries: Collection[str] | None = None
    ) -> None:
        self.operator = operator
        spaces = max(epsilon(operator.domain), epsilon(operator.codomain))
        super().__init__(
            seed, libraries, max(spaces, float(np.finfo(operator.precision.dtype).eps))
        )

    @cached_property
    def x(self) -> Any:
        """A Gaussian element of the domain; checks must not change it."""
        return plain(self.operator.domain).random(self.generator(1))

    @cached_property
    def y(self) -> Any:
        """A Gaussian element of the codomain."""
        return plain(self.operator.codomain).random(self.generator(2))

    @cached_property
    def Ax(self) -> Any:
        """`A @ x`."""
        return host(self.operator(self.x))

    @cached_property
    def Hy(self) -> Any:
        """`A.H @ y`."""
        return host(self.operator.H(self.y))

    @cached_property
    def gain(self) -> float:  # type: ignore[override]
        """How much the operator enlarges, from two applies: the scale of its rounding errors."""
        found = []
        for source, image, target in (
            (self.x, self.Ax, self.operator),
            (self.y, self.Hy, self.operator.H),
        ):
            size = float(target.domain.norm(source))
            if size:
                found.append(float(target.codomain.norm(image)) / size)
                again = host(target.H(image))
                before = float(target.codomain.norm(image))
                if before:
                    found.append(float(target.domain.norm(again)) / before)
        return max(found, default=0.0)

    @cached_property
    def small(self) -> bool:
        """Whether matrices may be formed."""
        rows, columns = self.operator.shape
        return rows * columns <= DENSE_LIMIT

    @cached_property
    def dense(self) -> np.ndarray:
        """The matrix of a small operator."""
        if not self.small:
            raise NotApplicable(f"its matrix would have {self.operator.shape} entries")
        return self.operator.to_dense(limit=None)


def each(function: Any, x: Any) -> Any:
    """`function` on an array, or on every member of a tuple."""
    return tuple(function(part) for part in x) if isinstance(x, tuple) else function(x)


def elements(x: Any) -> tuple[Any, ...]:
    """The members of an element, one for a plain space."""
    return x if isinstance(x, tuple) else (x,)


def host(x: Any) -> Any:
    """An element as NumPy arrays."""
    return each(arrays.to_numpy, x)


def plain(space: AnySpace) -> AnySpace:
    """The space of arrays of the real shape, which lie on no devices."""
    return space.with_home(LOCAL)


def same_bits(a: Any, b: Any) -> bool:
    """Whether two elements are equal, NaN equal to NaN."""
    return all(
        p.shape == q.shape and np.array_equal(p, q, equal_nan=True)
        for p, q in zip(elements(host(a)), elements(host(b)), strict=True)
    )


_members = elements


def _wide(x: np.ndarray) -> Any:
    return np.complex128 if x.dtype.kind == "c" else np.float64


def _where(place: tuple[Any, ...], member: Any) -> str:
    batch = len(place) - member.ndim
    names = [None] * batch + list(member.axes or [None] * member.ndim)
    text = ", ".join(
        f"{name}={int(i)}" if name else str(int(i)) for name, i in zip(names, place, strict=True)
    )
    return f"({text})"
