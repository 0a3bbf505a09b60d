"""Frames of torch and JAX: dtype, device and graph kept, checked on values or NaN under a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from geometries import ConeBeam, Detector, FanBeam, Grid, ParallelBeam, Projector, Trajectory
from geometries.admission import admit
from linops.errors import DTypeError, GeometryError

torch = pytest.importorskip("torch")
T = (0.3, -1.1, 2.0)


def tensor(values: Any, gradient: bool = False) -> Any:
    return torch.tensor(values, dtype=torch.float64, requires_grad=gradient)


def end_points(beam: Any) -> Any:
    """One number that every frame and every cell's place enters, with distinct weights."""
    frames = beam.trajectory
    places = frames.points()
    weights = np.sin(np.arange(int(np.prod(places.shape)))).reshape(places.shape)
    total = (places * frames.centers.new_tensor(weights)).sum()
    first = frames.directions if frames.sources is None else frames.sources
    return total + (first**3).sum()


def difference(f: Callable[[np.ndarray], float], x: np.ndarray) -> np.ndarray:
    step = 1e-6
    out = np.zeros_like(x)
    for k in np.ndindex(x.shape):
        d = np.zeros_like(x)
        d[k] = step
        out[k] = (f(x + d) - f(x - d)) / (2 * step)
    return out


def cone(angles: Any, a: Any, d: Any, advance: Any, offset: Any, pitch: Any) -> ConeBeam:
    return ConeBeam(angles, Detector((2, 3), pitch, offset), a, d, advance)


def fan(angles: Any, a: Any, d: Any, offset: Any, pitch: Any, radius: Any) -> FanBeam:
    return FanBeam(angles, Detector(3, pitch, offset, radius), a, d)


NUMBERS: list[tuple[Callable[..., Any], list[Any]]] = [
    (cone, [T, 7.1, 12.4, 1.7, (0.11, -0.17), (0.67, 0.91)]),
    (fan, [T, (7.1, 7.2, 7.3), (12.4, 12.5, 12.0), 0.13, 0.91, 12.4]),
    (lambda t, o: ParallelBeam(t, Detector(3, 0.9, o)), [T, 0.2]),
    (
        lambda R, t: ConeBeam(T, Detector((2, 3)), 7.1, 12.4).transform(R, t),
        [[[0.6, -0.8, 0.0], [0.8, 0.6, 0.0], [0.0, 0.0, 1.0]], [(0.1, 0.2, 0.3)] * 3],
    ),
]


@pytest.mark.parametrize(("build", "numbers"), NUMBERS)
def test_every_constructor_is_differentiable_in_all_its_numbers(
    build: Callable[..., Any], numbers: list[Any]
) -> None:
    given = [tensor(n, True) for n in numbers]
    found = torch.autograd.grad(end_points(build(*given)), given)
    for k, slope in enumerate(found):

        def value(x: np.ndarray, k: int = k) -> float:
            changed = [tensor(x) if i == k else tensor(n) for i, n in enumerate(numbers)]
            return float(end_points(build(*changed)))

        np.testing.assert_allclose(slope, difference(value, np.array(numbers[k])), atol=2e-7)


def test_forward_mode_and_vmap_reach_the_frames() -> None:
    angles, tangent = tensor(T), tensor((1.0, -2.0, 0.5))

    def f(t: Any) -> Any:
        return end_points(cone(t, 7.1, 12.4, 1.7, 0.0, 1.0))

    slope = torch.func.grad(f)(angles)
    _, pushed = torch.func.jvp(f, (angles,), (tangent,))
    assert float(pushed) == pytest.approx(float(slope @ tangent), rel=1e-12)
    several = torch.func.vmap(f)(torch.stack([angles, angles + 0.1]))
    np.testing.assert_allclose(several, [f(angles), f(angles + 0.1)], rtol=1e-13)


def test_values_do_not_depend_on_the_library() -> None:
    for build, numbers in NUMBERS:
        plain, other = build(*numbers), build(*map(tensor, numbers))
        assert other.host.trajectory.u.dtype == np.float64
        for name in ("centers", "u", "normals"):
            assert isinstance(getattr(other, name), torch.Tensor)
            np.testing.assert_allclose(getattr(other, name), getattr(plain, name), atol=1e-15)
        places = other.trajectory.points()
        assert places.shape == (3, *plain.detector.shape, plain.dims)
        np.testing.assert_allclose(places, plain.trajectory.points(), atol=2e-15)
        np.testing.assert_allclose(places[1], plain.trajectory.pixels(1), atol=2e-15)


def test_float32_angles_make_float64_frames_and_stay_float32_themselves() -> None:
    angles = torch.tensor(T, dtype=torch.float32, requires_grad=True)
    beam = ParallelBeam(angles, Detector(3))
    assert (beam.angles.dtype, beam.u.dtype) == (torch.float32, torch.float64)
    np.testing.assert_array_equal(beam.host.u[:, 0], np.cos(np.float64(np.float32(T))))
    beam.u.sum().backward()
    assert angles.grad is not None and angles.grad.dtype == torch.float32
    assert ParallelBeam(angles.to(torch.bfloat16), Detector(3)).u.dtype == torch.float64


def test_frames_are_copies_that_keep_the_graph() -> None:
    centers = tensor([(0.0, 3.0)], True)
    frames = Trajectory("fan", [(0.0, -5.0)], centers, [(1.0, 0.0)], None, Detector(2))
    with torch.no_grad():
        centers += 7
    assert frames.host.centers.tolist() == [[0, 3]]
    frames.centers.sum().backward()
    assert centers.grad.tolist() == [[1, 1]]


def test_subsets_and_repr_of_tensors() -> None:
    beam = fan(tensor(T, True), tensor((7.1, 7.2, 7.3)), 12.4, 0.0, 1.0, None)
    part = beam[[2, 0]]
    assert part.host.source_to_axis.tolist() == [7.3, 7.1]
    assert part.u.requires_grad and part.angles.requires_grad
    np.testing.assert_array_equal(part.host.u, beam.host.u[[2, 0]])
    assert "source_to_axis=7.1..7.3" in repr(beam)
    assert hash(Detector(3, tensor(1.0))) is not None


def test_axes_are_normalised_so_that_radial_derivatives_are_zero() -> None:
    u = tensor([(1.0, 0.0)], True)
    frames = Trajectory("fan", [(0.0, -5.0)], [(0.0, 3.0)], u, None, Detector(2))
    (slope,) = torch.autograd.grad((frames.u * tensor([(3.0, 2.0)])).sum(), u)
    np.testing.assert_array_equal(slope, [(0.0, 2.0)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"centers": [(0.0, 3.0), (np.nan, 0)]}, "view 1: centers is not finite"),
        ({"u": [(1.0, 0.0), (0.0, 2.0)]}, "view 1: u is not a unit vector"),
        ({"sources": [(0, -5.0), (-3.0, 0.0)]}, "view 1: the source"),
        ({"u": [(1.0, 0.0), (1.0, 5e-5)]}, "view 1: the detector is seen edge-on"),
        ({"u": [(1.0, 0.0, 0.0)] * 2}, "u has shape"),
    ],
)
def test_known_values_are_checked_whatever_the_library(change: Any, message: str) -> None:
    jnp = pytest.importorskip("jax.numpy")
    frames: dict[str, Any] = {
        "sources": [(0.0, -5.0), (5.0, 0.0)],
        "centers": [(0.0, 3.0), (-3.0, 0.0)],
        "u": [(1.0, 0.0), (0.0, 1.0)],
        **change,
    }
    for make in (tensor, jnp.asarray):
        arrays = [make(frames[k]) for k in ("sources", "centers", "u")]
        with pytest.raises(GeometryError, match=message):
            Trajectory("fan", *arrays, None, Detector(2))


def test_mixed_libraries_join_one_and_two_are_refused() -> None:
    jnp = pytest.importorskip("jax.numpy")
    with pytest.raises(DTypeError, match="one namespace"):
        Trajectory("fan", tensor([(0, -5)]), jnp.ones((1, 2)), [(1.0, 0.0)], None, Detector(2))


@pytest.mark.slow
def test_jax_traces_frames_and_gives_nan_for_invalid_views() -> None:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def both(d: Any, s: Any) -> Any:
        beam = FanBeam(jnp.asarray(T), Detector(3), 7.0, d)
        admit(beam, Grid((4, 4)), "fast")
        assert not beam.trajectory.concrete and "traced" in repr(beam)
        with pytest.raises(DTypeError, match="traced"):
            _ = beam.host
        return beam.centers, beam.transform(jnp.eye(2) * s).centers, beam.u

    kept, turned, u = jax.jit(both)(jnp.asarray([12.0, 0.0, 12.0]), 1.0)
    # A detector in the source: view 1 alone is NaN, in all its frames.
    assert np.isnan(np.asarray(kept)).tolist() == [[False] * 2, [True] * 2, [False] * 2]
    assert np.isnan(np.asarray(u)[1]).all() and np.isfinite(np.asarray(u)[[0, 2]]).all()
    np.testing.assert_allclose(kept[0], FanBeam(T, Detector(3), 7.0, 12.0).centers[0], atol=1e-6)
    # A distance that is not positive, the length of nothing, is NaN by itself.
    kept, _, _ = jax.jit(both)(jnp.asarray([12.0, -3.0, 12.0]), 1.0)
    assert np.isnan(np.asarray(kept)[1]).all()
    wide = jax.jit(lambda p: FanBeam(T, Detector(3, p), 7.0, 12.0).trajectory.points())(-1.0)
    assert np.isnan(np.asarray(wide)[:, [0, 2]]).all()
    _, reflected, _ = jax.jit(both)(jnp.asarray([12.0, 12.0, 12.0]), -1.2)
    assert np.isnan(np.asarray(reflected)).all()
    assert np.isfinite(np.asarray(turned)[0]).all()


@pytest.mark.slow
def test_jax_gradients_reach_angles_distances_and_pitch() -> None:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    @jax.jit
    def value(t: Any, a: Any, pitch: Any, offset: Any) -> Any:
        beam = ConeBeam(t, Detector((2, 3), pitch, offset), a, 12.4, 1.7)
        return (beam.trajectory.points() ** 3).sum()

    with jax.enable_x64(True):
        given = (jnp.asarray(T), jnp.asarray(7.1), jnp.asarray(0.9), jnp.asarray((0.1, 0.2)))
        slopes = jax.grad(value, argnums=(0, 1, 2, 3))(*given)
        pushed = jax.jvp(value, given, tuple(jnp.ones_like(x) for x in given))[1]
        for k, slope in enumerate(slopes):

            def f(x: np.ndarray, k: int = k) -> float:
                return float(value(*(jnp.asarray(x) if i == k else g for i, g in enumerate(given))))

            np.testing.assert_allclose(
                slope, difference(f, np.array(given[k], dtype=float)), rtol=1e-6, atol=1e-5
            )
        assert float(pushed) == pytest.approx(sum(float(s.sum()) for s in slopes), rel=1e-12)


def test_numbers_of_a_detector_are_checked_where_they_are_known() -> None:
    for bad in (tensor(-1.0), tensor(np.nan), tensor((1.0, 0.0)), tensor((1.0, 1.0, 1.0))):
        with pytest.raises(GeometryError, match="pitch"):
            Detector((2, 3), pitch=bad)
    with pytest.raises(DTypeError, match="pitch"):
        Detector((2, 3), pitch=torch.ones(2, 2))
    with pytest.raises(GeometryError, match="curvature"):
        Detector(40, curvature=tensor(2.0))
    assert repr(Detector(3, tensor(0.5))) == repr(Detector(3, 0.5))


def test_compiled_kernels_and_analytic_steps_take_the_values() -> None:
    from geometries import fbp

    image = np.ones((6, 6), "float32")
    plain = Projector(ParallelBeam(T, Detector(9, 0.9, 0.2)), Grid((6, 6)))
    other = Projector(ParallelBeam(tensor(T), Detector(9, tensor(0.9), 0.2)), Grid((6, 6)))
    np.testing.assert_array_equal(other @ image, plain @ image)
    np.testing.assert_array_equal(fbp(other, other @ image), fbp(plain, plain @ image))
    learned = Projector(ParallelBeam(tensor(T, True), Detector(9)), Grid((6, 6)))
    with pytest.raises(GeometryError, match="geometry_operator"):
        fbp(learned, plain @ image)


def test_values_are_read_once_and_each_frame_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    from linops import arrays

    reads = []
    whole = arrays.to_numpy

    def counting(x: Any) -> np.ndarray:
        if not isinstance(x, np.ndarray):
            reads.append(tuple(x.shape))
        return whole(x)

    beam = ConeBeam(T, Detector((2, 3)), 7.1, 12.4)
    assert beam.sources is not None and beam.v is not None
    frames = [tensor(np.array(x)) for x in (beam.sources, beam.centers, beam.u, beam.v)]
    monkeypatch.setattr(arrays, "to_numpy", counting)
    Projector(Trajectory("cone", *frames, Detector((2, 3))), Grid((4, 4, 4)))
    assert reads == [(3, 3)] * 4


@pytest.mark.slow
@pytest.mark.parametrize("build", ["distance", "pitch", "parallel"])
def test_what_an_invalid_traced_frame_projects_is_nan(build: str) -> None:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    image = jnp.ones((6, 6), "float32")

    def project(number: Any) -> Any:
        if build == "distance":
            distances = jnp.stack([jnp.asarray(40.0), number, jnp.asarray(40.0)])
            beam: Any = FanBeam(T, Detector(5), 20.0, distances)
        elif build == "pitch":
            beam = FanBeam(T, Detector(5, number), 20.0, 40.0)
        else:
            beam = ParallelBeam(T, Detector(5, number))
        A = Projector(beam, Grid((6, 6)), backend="portable")
        return A @ image, A.H @ jnp.ones((3, 5), "float32")

    for number in (40.0, 1.0):
        assert all(np.isfinite(np.asarray(part)).all() for part in jax.jit(project)(number))
    lost, back = jax.jit(project)(-1.0)
    views = [1] if build == "distance" else [0, 1, 2]
    assert np.isnan(np.asarray(lost)).all(axis=1).nonzero()[0].tolist() == views
    assert np.isnan(np.asarray(back)).any()


def test_ends_that_float32_merges_are_refused_with_the_way_out() -> None:
    jnp = pytest.importorskip("jax.numpy")
    frames = [(1e6, 0.0)], [(1e6 + 0.01, 1.0)], [(0.0, 1.0)]
    Trajectory("fan", *frames, None, Detector(5))
    with pytest.raises(GeometryError, match="view 0.*float32 here.*float64 serves"):
        Trajectory("fan", *map(jnp.asarray, frames), None, Detector(5))
