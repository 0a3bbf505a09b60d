"""Derivatives in the geometry: `A.geometry_operator(x)`, and what autodiff sees of a projector.

`GeometryOperator` maps frames to projections of one volume; `GeometryJacobian` is its derivative, a
linear operator. Portable projectors built from torch or JAX arrays use the same derivative, so
`jax.grad` and torch's backward record no ray. The arithmetic is in
`geometries/kernels/portable_gradient.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from geometries.kernels import portable, portable_scan
from geometries.kernels.portable_gradient import MovingFrames, pull, push, straight
from geometries.surface_gradient import SampledMoves, parameter_spaces, with_parameters
from geometries.trajectory import Trajectory
from linops import arrays
from linops.arrays import Array
from linops.compiled.hosted import apply_on_host
from linops.errors import GeometryError
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.space import ProductSpace, Space
from linops.transforms import declared
from linops.transforms.pytree import decode
from linops.transforms.torch_function import recording

if TYPE_CHECKING:
    from geometries.detector import Detector
    from geometries.projector import Projector

__all__ = ["GeometryJacobian", "GeometryOperator", "project_followed"]

_TWICE = (
    "second derivatives with respect to the geometry are not available; differentiate once in the "
    "geometry, or hold one of the two fixed (detach, jax.lax.stop_gradient)"
)


class GeometryOperator(Operator):
    """Frames to the projections of one volume: `A.geometry_operator(x)`.

    The domain is a tuple: sources (or directions), centers, u and, for volumes, v, `(views, dims)`
    each, then the parameters of the detector's surface, if it has one, in their own shapes and
    dtypes. `jvp`, `vjp` and `jacobian` are the derivatives in them; axes and directions are
    normalised, so moving one along itself changes nothing. Derivatives in parameters are there
    where these belong to torch or JAX. Each call is checked like a new projector; under a trace
    shapes alone are, and invalid frames give NaN.
    """

    domain: ProductSpace
    codomain: Space

    def __init__(self, base: Projector, x: Array) -> None:
        if not arrays.is_array(x):
            raise GeometryError("geometry_operator takes an array: the volume that is projected")
        base.domain.check_shape(x, f"{base.name}.geometry_operator")
        trajectory = base.geometry.trajectory
        whole = (trajectory.views, *trajectory.detector.shape), base.grid.shape
        if (base.codomain.shape, base.domain.shape) != whole:
            raise GeometryError(
                "geometry_operator is asked of a block; frames belong to whole scans: ask the "
                "projector of which it is a block, or project some views with trajectory[views]"
            )
        if base.model == "footprint":
            raise GeometryError(
                "geometry_operator follows rays, which model 'footprint' has not; build the "
                "projector from torch or JAX numbers and differentiate it"
            )
        batch = tuple(x.shape)[: x.ndim - base.domain.ndim]
        views, dims = trajectory.views, trajectory.dims
        names = ["directions" if trajectory.sources is None else "sources", "centers", "u", "v"]
        member = Space((views, dims), _wide(x), ("view", "xyz"))
        axes = tuple(f"batch{k}" for k in range(len(batch))) + tuple(base.codomain.axes or ())
        super().__init__(
            ProductSpace((member,) * (dims + 1) + parameter_spaces(trajectory.detector.surface)),
            Space((*batch, *base.codomain.shape), base.dtype, axes),
            precision=base.precision,
            name="Projector.geometry_operator",
        )
        self.base = base
        self.x = arrays.snapshot(x)
        self.names = tuple(names[: dims + 1])

    def _apply(self, point: tuple[Array, ...]) -> Array:
        projector = self._projector(point)
        x = self.x
        like = next((part for part in point if not arrays.is_numpy(part)), point[0])
        if not arrays.is_numpy(like) and arrays.is_numpy(x):
            x = arrays.convert(x, like)
        found = projector(x)
        return found if arrays.is_jax(found) else arrays.convert(found, like)

    def _jacobian(self, point: tuple[Array, ...]) -> LinearOperator:
        base, count = self.base, len(self.names)
        trajectory = self._projector(point).geometry.trajectory
        x = arrays.cast(self.x, base.domain.dtype)
        setup = portable_scan.setup_of(base, x, slopes=True)
        sampled = len(point) > count
        offsets, heights = portable_scan.cell_offsets(
            trajectory if sampled else base.geometry.trajectory.host
        )
        heights = arrays.convert(heights, offsets)

        cells = portable_scan.part_of(setup, offsets, heights, base.window)[:2]
        moved = GeometryJacobian(setup, point[:count], cells, base.window, x, sampled, False,
                                 base.backend == "numba" and base.model == "siddon")  # fmt: skip
        if not sampled:
            return moved

        def sample(detector: Detector) -> Array:
            offsets = portable_scan.surface_offsets(detector, trajectory.views)
            return portable_scan.part_of(setup, offsets, heights, base.window)[0]

        sampled_moves = SampledMoves(self.domain, moved.domain, trajectory.detector, sample)
        chained: LinearOperator = moved @ sampled_moves
        return chained

    def _projector(self, point: tuple[Array, ...]) -> Projector:
        trajectory, count = self.base.geometry.trajectory, len(self.names)
        detector = with_parameters(trajectory.detector, point[count:])
        first, middle, u, *v = point[:count]
        new = Trajectory(trajectory.kind, first, middle, u, v[0] if v else None, detector)
        return self.base.with_geometry(new)


class GeometryJacobian(LinearOperator):
    """The derivative of projections, or of a back projection, in the geometry.

    The domain is a tuple of changes of the frames and, where `cells` is set, of the offsets and
    heights of the detector's cells. Each batch of rays is traced again in every apply.
    """

    domain: ProductSpace
    codomain: Space

    def __init__(
        self,
        setup: portable_scan.Setup,
        vectors: Sequence[Array],
        offsets: Sequence[Array],
        window: Array,
        held: Array,
        cells: bool,
        back: bool,
        compiled: bool = False,
        free: bool = False,
    ) -> None:
        parts = (*vectors, *offsets) if cells else tuple(vectors)
        wide = _wide(held)
        source, target = setup.voxels, setup.cells
        if back:
            source, target = target, source
        batch = tuple(held.shape)[: held.ndim - len(source)]
        super().__init__(
            ProductSpace(tuple(Space(tuple(part.shape), wide) for part in parts)),
            Space((*batch, *target), arrays.dtype_of(held)),
            name="derivative in the geometry",
        )
        self.setup, self.window = setup, window
        self.vectors, self.offsets = tuple(vectors), tuple(offsets)
        self.held = held
        self._cells, self._back, self._free = cells, back, free
        self._compiled = compiled

    def _apply(self, moves: tuple[Array, ...]) -> Array:
        if self._empty:
            return arrays.zeros(self.codomain.shape, self.codomain.dtype, moves[0])
        fixed, recorded = self._fixed()
        if recorded:
            return declared.refuse_derivative(fixed(moves), _TWICE, recorded)
        if not self._back and self._known(moves):
            from geometries.kernels import ray_slopes

            at, held = self._on_host()
            there = [arrays.to_numpy(move) for move in moves]
            found = ray_slopes.push(self.setup, self.window, at, self._moves(there, at), held)
            return arrays.convert(found.reshape(self.codomain.shape), moves[0])
        at, held, scan = self._operands(moves[0])
        move = self._moves(moves, at)
        pushed = _pushed_back if self._back else _pushed
        found = portable.run(pushed, self.setup, held, scan, at, move, held)
        return arrays.namespace(found).reshape(found, self.codomain.shape)

    def _apply_adjoint(self, y: Array) -> tuple[Array, ...]:
        if self._empty:
            return tuple(arrays.zeros(s.shape, s.dtype, y) for s in self.domain.members)
        fixed, recorded = self._fixed()
        if recorded:
            kept: tuple[Array, ...] = declared.refuse_derivative(fixed.H(y), _TWICE, recorded)
            return kept
        if self._known((y,)):
            from geometries.kernels import ray_slopes

            at, held = self._on_host()
            there = arrays.to_numpy(y).reshape(len(held), *self._ends()[1])
            pair = (there, held) if self._back else (held, there)
            gradient = ray_slopes.pull(self.setup, self.window, at, *pair, self._cells)
            return tuple(arrays.convert(part, y) for part in gradient)
        at, held, scan = self._operands(y)
        y = arrays.namespace(y).reshape(y, (held.shape[0], *self._ends()[1]))
        pair = (y, held) if self._back else (held, y)
        found = portable.run(pull, self.setup, held, scan, at, *pair)
        return tuple(found if self._cells else found[: len(self.vectors)])

    def _make_conjugate(self) -> LinearOperator:
        return self

    @property
    def _empty(self) -> bool:
        return 0 in (*self.codomain.shape, *self.held.shape)

    def _known(self, given: Sequence[Array]) -> bool:
        """Whether the compiled code may have all operands."""
        parts = (*given, *self.vectors, *self.offsets, self.held, self.window)
        return self._compiled and all(arrays.is_concrete(p) and arrays.on_host(p) for p in parts)

    def _on_host(self) -> tuple[MovingFrames, np.ndarray]:
        parts = (*self.vectors, *self.offsets)
        at = _frames([np.asarray(arrays.to_numpy(part), np.float64) for part in parts])
        return at, arrays.to_numpy(self.held).reshape(-1, *self._ends()[0])

    def _moves(self, moves: Sequence[Array], at: MovingFrames) -> MovingFrames:
        if self._cells:
            return _frames(moves)
        still = [
            arrays.zeros(tuple(p.shape), arrays.dtype_of(p), p) for p in (at.offsets, at.heights)
        ]
        return _frames((*moves, *still))

    def _ends(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        ends = self.setup.voxels, self.setup.cells
        return ends[::-1] if self._back else ends

    def _fixed(self) -> tuple[Any, list[Array]]:
        """The same without graphs, and the tensors that have one."""
        parts = (*self.vectors, *self.offsets, self.held)
        recorded = [] if self._free else [part for part in parts if recording(part)]
        if not recorded:
            return self, []
        plain = [part.detach() if arrays.is_torch(part) else part for part in parts]
        count = len(self.vectors)
        return GeometryJacobian(
            self.setup, plain[:count], (plain[count], plain[count + 1]), self.window, plain[-1],
            self._cells, self._back, self._compiled, free=True,
        ), recorded  # fmt: skip

    def _operands(self, like: Array) -> tuple[MovingFrames, Array, portable_scan.ScanArrays]:
        wide = np.dtype("float64" if arrays.has_float64(like) else "float32")

        def there(part: Array) -> Array:
            part = arrays.convert(arrays.cast(part, wide), like)
            return declared.refuse(part, _TWICE) if arrays.is_jax(part) else part

        at = _frames(tuple(there(part) for part in (*self.vectors, *self.offsets)))
        held = arrays.convert(self.held, like)
        held = arrays.namespace(held).reshape(held, (-1, *self._ends()[0]))
        vectors = straight(self.setup, at).vectors
        scan = portable_scan.windowed(self.setup, vectors, at.offsets, at.heights, self.window)
        return at, held, scan


class FollowedProjection(LinearOperator):
    """A projection, or its adjoint, along rays whose frames and cells are followed themselves."""

    _exact: ClassVar[bool] = True
    batched: bool = True

    def __init__(self, rays: FollowedRays, parts: Sequence[Array], back: bool, like: Array) -> None:
        shapes = rays.setup.voxels, rays.setup.cells
        source, target = (Space(shape, arrays.dtype_of(like)) for shape in shapes)
        ends = (target, source) if back else (source, target)
        super().__init__(ends[0], ends[1], name="Projector")
        self.setup, self.window, self._twin = rays.setup, rays.window, rays.twin
        self.parts = tuple(parts)
        self._back = back

    def _apply(self, x: Array) -> Array:
        return self._rays.project(self.parts, x, self._back)

    def _apply_adjoint(self, y: Array) -> Array:
        return self._rays.project(self.parts, y, not self._back)

    @property
    def _rays(self) -> FollowedRays:
        return FollowedRays(self.setup, self.window, self._twin)

    def _make_conjugate(self) -> LinearOperator:
        return self


@dataclass(frozen=True, eq=False)
class FollowedRays:
    """What is not followed of a scan that is: sizes, the window, compiled code for its values."""

    setup: portable_scan.Setup
    window: Array
    twin: Projector | None

    def project(self, parts: Sequence[Array], x: Array, adjoint: bool) -> Array:
        """The projection, or its adjoint, differentiable in frames and cells and in `x`."""
        setup, window, twin = self.setup, self.window, self.twin
        if twin is not None and not arrays.on_host(x):
            twin = None

        def value(*arguments: Array) -> Array:
            *vectors, offsets, heights, x = arguments
            if twin is not None:
                return apply_on_host(twin, x, adjoint)
            scan = portable_scan.windowed(setup, tuple(vectors), offsets, heights, window)
            return portable.project_with(setup, scan, x, adjoint)

        def derivatives(*arguments: Array) -> list[tuple[tuple[int, ...], LinearOperator]]:
            *vectors, offsets, heights, x = arguments
            cells = (offsets, heights)
            moved = GeometryJacobian(
                setup, vectors, cells, window, x, True, adjoint, twin is not None
            )
            fixed = FollowedProjection(self, arguments[:-1], adjoint, x)
            return [(tuple(range(len(parts))), moved), ((len(parts),), fixed)]

        return declared.apply(value, derivatives, [*parts, x])


def project_followed(projector: Projector, x: Array, adjoint: bool) -> Array:
    """`projector @ x`, or its adjoint, differentiable in its frames and cells, and in `x`.

    `x` is of the frames' library.
    """
    setup = portable_scan.setup_of(projector, x, slopes=True)
    frames, offsets, heights = _together(
        (decode(projector.frames), projector.offsets, projector.heights), x
    )
    cells = portable_scan.part_of(setup, offsets, heights, projector.window)[:2]
    vectors = [frames[:, k, :] for k in range(projector.grid.dims + 1)]
    rays = FollowedRays(setup, projector.window, projector._twin)
    return rays.project((*vectors, *cells), x, adjoint)


def _together(parts: Sequence[Array], like: Array) -> list[Array]:
    dtype = np.dtype(_wide(like))
    return [arrays.convert(arrays.cast(part, dtype), like) for part in parts]


def _pushed(
    setup: portable_scan.Setup,
    scan: portable_scan.ScanArrays,
    at: MovingFrames,
    move: MovingFrames,
    held: Array,
) -> Array:
    return push(setup, scan, at, move, held, False)


def _pushed_back(
    setup: portable_scan.Setup,
    scan: portable_scan.ScanArrays,
    at: MovingFrames,
    move: MovingFrames,
    held: Array,
) -> Array:
    return push(setup, scan, at, move, held, True)


def _frames(parts: Sequence[Array]) -> MovingFrames:
    first, middle, u, *v, offsets, heights = parts
    return MovingFrames(first, middle, u, v[0] if v else None, offsets, heights)


def _wide(like: Array) -> str:
    return "float64" if arrays.has_float64(like) else "float32"
