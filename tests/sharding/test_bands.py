"""Bands: as long as fits, of every share at a time, and the same results whatever their length."""

from __future__ import annotations

import re

import numpy as np
import pytest

import geometries as ct
import linops as lo
from sharding import Described, plan
from sharding.drafts import draft
from sharding.fitting import _in_bands
from sharding.partitions import Request
from sharding.plans import Plan
from sharding.states import Sharded


def _cone(planes: int, views: int = 8) -> ct.Projector:
    scan = ct.ConeBeam(np.linspace(0, 6, views), ct.Detector((planes, 12), 2.0), 100.0, 200.0)
    return ct.Projector(scan, ct.Grid((planes, 12, 12)), precision="float32")


def _views_against_slabs(A: ct.Projector, devices: int) -> Plan:
    """Projections cut by views, volumes by slabs."""
    jax = pytest.importorskip("jax")
    p = plan(A, devices=jax.devices("cpu")[:devices], executor="shard_map", partition="view")
    request = Request(("view",), {"view": devices})
    return draft(A, p.mesh, p.settings, request, None, [(Sharded(0),)], [(Sharded(0),)])


@pytest.mark.slow
def test_a_band_of_every_share_is_in_flight_at_a_time() -> None:
    A, n = _cone(64), 4
    p = _views_against_slabs(A, n)
    assert [step.kind for step in p.adjoint.steps] == ["Compute", "ReduceScatter"]
    share = 4 * A.domain.size // n
    whole = [account.temporaries / share for account in p.accounts]
    banded = _in_bands(p, {"z": 64 // n // n}).accounts
    # All partial slabs are n output shares; in bands of share / n planes they are one, beside the
    # share that is made and what the kernel copies of a band.
    assert min(whole) > n
    assert max(account.temporaries / share for account in banded) < 2.6
    stated = _in_bands(p, {"z": 64 // n // n}).stated.peak
    assert stated < p.stated.peak - (n - 2) * share


@pytest.mark.slow
@pytest.mark.parametrize("planes", [12, 7])
def test_results_do_not_depend_on_the_length_of_bands(planes: int) -> None:
    A, n = _cone(planes), 3
    x, y = A.domain.random(0), A.codomain.random(1)
    p = _views_against_slabs(A, n)
    wanted = np.asarray(p.lower() @ x), np.asarray(p.lower().H @ y)
    for length in (3, 1):
        B = _in_bands(p, {"z": length}).lower()
        np.testing.assert_allclose(B @ x, wanted[0], rtol=0, atol=1e-6 * abs(wanted[0]).max())
        # Each voxel belongs to one band.
        np.testing.assert_array_equal(B.H @ y, wanted[1])


def test_bands_are_as_long_as_fits() -> None:
    # Interpolation has workspace that its bands share.
    space = lo.Space((48, 16, 16), "float32", ("z", "y", "x"))
    bent = np.random.default_rng(0).uniform(-1, 1, (3, *space.shape))
    A = lo.Interpolate(space, displacement=bent)
    devices = Described.several(2)
    full = plan(A, devices=devices, partition="z").footprint.total
    for part in (0.9, 0.6):
        p = plan(A, devices=devices, partition="z", memory=part * full)
        name, length = re.search(r"in bands: \{'(\w+)': (\d+)\}", p.explain()).groups()
        assert p.footprint.total <= part * full
        longer = plan(A, devices=devices, partition="z", chunks={name: int(length) + 1})
        assert longer.footprint.total > part * full


def test_a_refusal_says_what_would_fit() -> None:
    A = lo.Gradient(lo.Space((64, 64, 64), "float32", ("z", "y", "x")))
    needed = plan(A, devices=Described.several(2), partition="z").footprint.total
    with pytest.raises(lo.errors.PlacementError) as refused:
        plan(A, devices=Described.several(2), partition="z", memory=needed // 3)
    text = str(refused.value)
    assert f"needs {needed:,} bytes on each of 2 devices" in text
    assert f"allowed are {needed // 3:,}" in text
    count = int(re.search(r"\((\d+) devices would do", text)[1])
    plan(A, devices=Described.several(count), partition="z", memory=needed // 3)
    with pytest.raises(lo.errors.PlacementError):
        plan(A, devices=Described.several(count // 2), partition="z", memory=needed // 3)


def test_lengths_that_are_asked_for_win_over_limits() -> None:
    A = _cone(8)
    p = plan(A, devices=2, partition="view", memory=1000, chunks={"view": 3})
    assert "in bands: {'view': 3}" in p.explain()
    B, x, y = p.lower(), A.domain.random(0), A.codomain.random(1)
    np.testing.assert_array_equal(B @ x, A @ x)
    np.testing.assert_allclose(B.H @ y, A.H @ y, rtol=0, atol=1e-6 * np.abs(A.H @ y).max())
