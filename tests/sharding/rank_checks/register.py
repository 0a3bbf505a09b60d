"""The checks by name, and what they compare with."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import geometries as ct
import linops as lo
import sharding

__all__ = [
    "CHECKS",
    "all_good",
    "assert_close",
    "check",
    "grids",
    "line_space",
    "parts_of",
    "plan",
    "projector",
    "put",
    "raises",
    "scans",
]

CHECKS: dict[str, Callable[[int, int], None]] = {}


def check(function: Callable[[int, int], None]) -> Callable[[int, int], None]:
    """Register a check by its name."""
    CHECKS[function.__name__] = function
    return function


def parts_of(x: Any) -> list[np.ndarray]:
    """Members as NumPy arrays; DTensors are gathered."""
    members = x if isinstance(x, tuple) else (x,)
    return [lo.arrays.to_numpy(m) if lo.arrays.is_array(m) else np.asarray(m) for m in members]


def assert_close(got: Any, wanted: Any, rtol: float = 1e-12) -> None:
    """Members agree to rounding of their largest entry."""
    got, wanted = parts_of(got), parts_of(wanted)
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted, strict=True):
        assert a.shape == b.shape, (a.shape, b.shape)
        if b.size:
            np.testing.assert_allclose(a, b, rtol=0, atol=rtol * (np.abs(b).max() + 1e-30))


def put(space: Any, x: Any) -> Any:
    return space.home.put(x)


def raises(kind: type[Exception], words: str, call: Callable[[], Any]) -> None:
    with pytest.raises(kind, match=re.escape(words)):
        call()


def projector(shape: tuple[int, ...], views: int, turn: float = 0.0) -> lo.LinearOperator:
    angles = np.linspace(0, np.pi, views, endpoint=False) + 0.1 + turn
    detector = ct.Detector((*shape[:-2], 7), pitch=1.5)
    return ct.Projector(ct.ParallelBeam(angles, detector), ct.Grid(shape), precision="float64")


def plan(A: Any, devices: Any = None, executor: str = "torch", *rest: Any, **options: Any) -> Any:
    """`sharding.plan` on the ranks, also where there is one alone."""
    return sharding.plan(A, devices, executor, *rest, **options)


def line_space(n: int) -> lo.Space:
    return lo.Space((n, 4), "float64", ("z", "y"))


def scans(world: int) -> list[tuple[tuple[int, ...], int, Any]]:
    """Shape, views and partition of scans, of which some leave ranks without a share."""
    if world == 4:
        return [((5, 4), 5, partition) for partition in grids(world)]
    whole = ["view", "y"] if world == 2 else ["y"]
    return [*(((5, 4), 5, partition) for partition in whole), ((1, 4), 1, "view")]


def grids(world: int) -> list[Any]:
    return [{"view": None, "y": None}] if world == 4 else []


def all_good(rank: int) -> None:
    """The group can still be used."""
    A = projector((5, 4), 5)
    B = plan(A, partition="view").lower()
    assert_close(B @ A.domain.random(1), A @ A.domain.random(1))
