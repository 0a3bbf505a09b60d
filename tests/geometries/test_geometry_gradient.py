"""Derivatives in the geometry: published values, differences, both modes, both libraries."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from cell_matrix import cell_matrix
from slopes import SCANS, SOLID, frames, wave

from geometries import Detector, FanBeam, Grid, Projector, Trajectory
from geometries.kernels import portable
from linops.compiled import pool
from linops.errors import GeometryError
from linops.testing import check_operator


def normalised(parts: list[np.ndarray], parallel: bool) -> tuple[np.ndarray, ...]:
    free = (1,) if parallel else (0, 1)
    return tuple(
        p if k in free else p / np.linalg.norm(p, axis=1, keepdims=True)
        for k, p in enumerate(parts)
    )


@pytest.mark.parametrize(("case", "value"), [("parallel F", -8.113498009), ("fan F", -0.247236319)])
def test_published_slopes_of_a_center(case: str, value: float) -> None:
    A = Projector(*SCANS[case], precision="float64")
    x, y = wave(A.domain.shape, 0), wave(A.codomain.shape, 0.31)
    N, at = A.geometry_operator(x), frames(A)
    np.testing.assert_array_equal(N(at), A @ x)
    assert N.vjp(at, y)[1][0, 0] == pytest.approx(value, rel=1e-6)
    move = tuple(np.zeros_like(f) for f in at)
    move[1][0, 0] = 1
    assert (N.jvp(at, move) * y).sum() == pytest.approx(value, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "model", "backend"),
    [
        *((name, "siddon", "numba") for name in SCANS),
        *((name, "siddon", "portable") for name in ("fan F", "parallel 3-D", "inside")),
        ("fan F", "joseph", "numba"),
        ("cone", "joseph", "portable"),
    ],
)
def test_both_modes_are_the_differences_of_the_projection(
    name: str, model: str, backend: str
) -> None:
    A = Projector(*SCANS[name], model, backend, "float64")
    # Tilted cones against the cell matrix itself, which shares no code with a kernel.
    project = by_cells if (name, model) == ("cone", "siddon") else by_projector
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, *A.domain.shape))
    N, at = A.geometry_operator(x), frames(A)
    y = rng.standard_normal(N.codomain.shape)
    J = N.jacobian(at)
    back = J.H(y)
    parallel = A.geometry.kind == "parallel"
    for number, part in enumerate(at):
        for index in np.ndindex(part.shape):
            move = [np.zeros_like(f) for f in at]
            move[number][index] = 1
            slopes = []
            for step in (1e-5, 3e-6):
                ends = [
                    project(A, _scan(A, normalised(
                        [f + s * m for f, m in zip(at, move, strict=True)], parallel)), x)
                    for s in (step, -step)
                ]  # fmt: skip
                slopes.append((ends[0] - ends[1]) / (2 * step))
            forward = J(tuple(move))
            scale = max(np.abs(slopes[1]).max(), 0.1)
            np.testing.assert_allclose(forward, slopes[1], atol=2e-6 * scale)
            assert back[number][index] == pytest.approx((y * forward).sum(), abs=1e-11)


def by_projector(A: Projector, scan: Trajectory, x: np.ndarray) -> np.ndarray:
    return np.asarray(A.with_geometry(scan) @ x)


def by_cells(A: Projector, scan: Trajectory, x: np.ndarray) -> np.ndarray:
    flat = x.reshape(len(x), -1) @ cell_matrix(scan, A.grid).T
    return flat.reshape(len(x), *A.codomain.shape)


def _scan(A: Projector, parts: tuple[np.ndarray, ...]) -> Trajectory:
    t = A.geometry.trajectory
    # Steps of 1e-5 leave axes orthogonal within what a Trajectory asks.
    return Trajectory(t.kind, *parts[:3], parts[3] if len(parts) == 4 else None, t.detector)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fan F", "parallel 3-D", "cone"])
def test_the_compiled_derivative_runs_by_itself_and_on_any_threads(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    A = Projector(*SCANS[name])
    B = A.with_precision("float64")
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal((2, *A.domain.shape)), rng.standard_normal((2, *A.codomain.shape))
    at = frames(A)
    move = tuple(rng.standard_normal(f.shape) for f in at)
    monkeypatch.setattr(portable, "run", None)  # what array code would call
    exact = B.geometry_operator(x).jacobian(at)
    found = A.geometry_operator(x.astype("float32")).jacobian(at)
    pairs = zip(found.H(y.astype("float32")), exact.H(y), strict=True)
    for one, two in ((found @ move, exact @ move), *pairs):
        assert np.linalg.norm(one - two) <= 1e-4 * np.linalg.norm(two)
    results = []
    for count in (1, 3):
        with pool.limit(count, exceed=True):
            results.append([exact @ move, *exact.H(y)])
    assert all(np.array_equal(one, two) for one, two in zip(*results, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["siddon", "joseph"])
@pytest.mark.parametrize("name", ["parallel F", "cone"])
def test_the_jacobian_keeps_the_contract(name: str, model: str) -> None:
    A = Projector(*SCANS[name], model, "portable", "float64")
    J = A.geometry_operator(wave(A.domain.shape, 0)).jacobian(frames(A))
    check_operator(J, skip={"jax": "float64 without x64", "pickling": "made for one volume"})
    assert J.codomain.shape == A.codomain.shape


@pytest.mark.parametrize("lead", [(0,), (2, 0)])
def test_empty_batches_have_slopes_of_zero(lead: tuple[int, ...]) -> None:
    A = Projector(*SCANS["cone"])
    at = frames(A)
    N = A.geometry_operator(np.ones((*lead, *SOLID.shape), "float32"))
    assert N.jvp(at, at).shape == N(at).shape == (*lead, *A.codomain.shape)
    for part, back in zip(at, N.vjp(at, N(at)), strict=True):
        np.testing.assert_array_equal(back, np.zeros(part.shape))


def test_moving_an_axis_along_itself_changes_nothing() -> None:
    A = Projector(*SCANS["parallel 3-D"], precision="float64")
    N, at = A.geometry_operator(wave(A.domain.shape, 0)), frames(A)
    for number in (0, 2, 3):
        move = tuple(f * (k == number) for k, f in enumerate(at))
        np.testing.assert_allclose(N.jvp(at, move), 0, atol=1e-13)
    back = N.vjp(at, wave(A.codomain.shape, 0.31))
    for number in (0, 2, 3):
        np.testing.assert_allclose((back[number] * at[number]).sum(1), 0, atol=1e-13)


def test_every_update_is_checked() -> None:
    A = Projector(*SCANS["cone"], precision="float64")
    N, at = A.geometry_operator(wave(A.domain.shape, 0)), frames(A)
    for wrong, fault in (
        ((at[0], at[0], *at[2:]), "source stands at the detector's center"),
        ((*at[:2], 2 * at[2], at[3]), "unit"),
        ((np.full_like(at[0], np.nan), *at[1:]), "finite"),
    ):
        for call in (N, N.jacobian):
            with pytest.raises(GeometryError, match=fault):
                call(wrong)
    np.testing.assert_array_equal(N(at), A @ N.x)


@pytest.mark.parametrize(("name", "model"), [("fan F", "siddon"), ("cone", "joseph")])
def test_slopes_do_not_depend_on_tiles_and_batches(name: str, model: str) -> None:
    scan, grid = SCANS[name]
    rng = np.random.default_rng(2)
    found = []
    for memory in (None, 3500 if name == "fan F" else 9000):
        A = Projector(scan, grid, model, "portable", "float64", memory=memory)
        at = frames(A)
        J = A.geometry_operator(wave(grid.shape, 0)).jacobian(at)
        assert (max(J.setup.tiles) > 1) == (memory is not None)
        rng = np.random.default_rng(2)
        move = tuple(rng.standard_normal(f.shape) for f in at)
        found.append((J @ move, *J.H(wave(A.codomain.shape, 0.31))))
    for one, two in zip(*found, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-10, atol=1e-10)


def test_a_slope_takes_half_the_budget_however_many_blocks_there_are() -> None:
    budget, peaks = 1 << 20, []
    for views in (4, 12):
        fan = FanBeam(np.linspace(0, 3, views), Detector(48, 1.5), 200, 300)
        A = Projector(fan, Grid((64, 64)), backend="portable", memory=budget)
        J = A.geometry_operator(np.ones((64, 64), "float32")).jacobian(frames(A))
        y = np.ones(A.codomain.shape, "float32")
        for call in (lambda J=J, y=y: J.H(y), lambda J=J, A=A: J(frames(A))):
            tracemalloc.start()
            call()
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert max(peaks) <= 1.3 * budget / 2
    assert peaks[2] - peaks[0] < 0.1 * budget and peaks[3] - peaks[1] < 0.1 * budget
