"""`Projector`: line integrals of a scan as a leaf of the algebra.

It knows spaces, rule, blocks and memory order. Frames come from `geometries/trajectory.py`, the
checks of a scan from `geometries/admission.py`, the numbers from `geometries/kernels/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from geometries.admission import admit, pitch_limit
from geometries.beams import Beam
from geometries.grid import Grid
from geometries.trajectory import Trajectory
from linops import arrays
from linops.arrays import Array
from linops.compiled.hosted import hosted
from linops.cost import Cost, bytes_of
from linops.errors import GeometryError
from linops.operator import LinearOperator
from linops.precision import Precision
from linops.space import Space

__all__ = ["Projector", "ProjectorColumns"]

_MODELS = ("siddon", "footprint")
_PROFILES = ("trapezoid", "box")
_BACKENDS = ("auto", "numba")


class Projector(LinearOperator):
    """Line integrals through a grid: `(z, y, x)` to `(view, row, col)`, images to sinograms.

    Parameters
    ----------
    geometry
        A beam (`ParallelBeam`, `FanBeam`, `ConeBeam`) or a `Trajectory`.
    grid
        The volume `(z, y, x)` or image `(y, x)`.
    model
        `"siddon"`: the exact length of each ray within each cell, cells of constant value
        (Siddon 1985). `"footprint"`: the mean over each detector cell of a voxel's separable
        shadow (Long, Fessler and Balter 2010); see the page on models.
    backend
        `"auto"` or `"numba"`, compiled code on the CPU.
    precision
        `"fast"` (float32, fast-math), `"float32"` or `"float64"`; geometry is always set up in
        float64.
    profile
        Of a footprint along the columns: `"trapezoid"` (the default), or `"box"`. None for other
        models.

    Notes
    -----
    A value of the result is a line integral in physical length: the sum over cells of the cell's
    value times the length of the ray inside it. Rays of fan and cone beams are the segments from
    source to detector cell, rays of parallel beams infinite lines. A ray in a face between cells
    belongs to the cell of higher index. The adjoint is the plain transpose: V rays straight
    through a cell of size h give `A.H @ 1 = V h` there.

    Blocks (`A.block("view", 0, 10)`) keep `geometry` and `grid` of the whole scan.

    Raises
    ------
    GeometryError
        For a scan that the precision cannot resolve, another number of dimensions, or frames that
        the model does not permit.
    ValueError
        For an unknown model, profile, backend or precision, or a grid that the backend cannot
        serve.
    """

    batched = True
    _exact: ClassVar[bool] = True
    _host_arrays: ClassVar[Mapping[str, str]] = {"frames": "float64"}
    _host_out: ClassVar[bool] = True

    def __init__(
        self,
        geometry: Beam | Trajectory,
        grid: Grid,
        model: str = "siddon",
        backend: str = "auto",
        precision: str | Precision = "fast",
        profile: str | None = None,
    ) -> None:
        if not isinstance(model, str) or model not in _MODELS:
            raise ValueError(f"model is {model!r}; it is one of {', '.join(_MODELS)}")
        if not isinstance(backend, str) or backend not in _BACKENDS:
            raise ValueError(f"backend is {backend!r}; it is one of {', '.join(_BACKENDS)}")
        shape = _profile_of(model, profile)
        accuracy = Precision.of(precision)
        admit(geometry, grid, accuracy)
        limit = pitch_limit(grid, accuracy)
        if limit is not None:
            raise GeometryError(
                f"backend 'numba' cannot serve this grid: {limit}; use precision='float64'"
            )
        frames = _frames(geometry.trajectory.host)
        whole = np.zeros(2 + geometry.detector.dims - 1 + grid.dims, np.int32)
        whole[1] = geometry.views
        kernel = _kernel_of(model, geometry.trajectory.host, frames, grid)
        detector = geometry.detector.shape
        self._set_up(
            geometry,
            grid,
            model,
            shape,
            accuracy,
            kernel,
            frames,
            whole,
            geometry.views,
            detector,
            grid.shape,
        )

    def _set_up(
        self,
        geometry: Beam | Trajectory,
        grid: Grid,
        model: str,
        profile: str | None,
        precision: Precision,
        kernel: str,
        frames: np.ndarray,
        window: np.ndarray,
        views: int,
        cells: tuple[int, ...],
        voxels: tuple[int, ...],
    ) -> None:
        # window: begin and end of the real views, then the first row and column of the detector
        # and the first plane of each axis of the grid that this (part of a) projector covers.
        names = ("z", "y", "x")[-grid.dims :]
        rule = f"{' '.join(names)} -> view {' '.join(geometry.detector.axes)}"
        if kernel == "aligned rows":
            rule = "z y x -> view z col"
        domain = Space(voxels, precision.dtype, names, grid.spacing)
        codomain = Space((views, *cells), precision.dtype, ("view", *geometry.detector.axes))
        LinearOperator.__init__(
            self,
            domain,
            codomain,
            rule,
            precision=precision,
            name="Projector",
            tags=("nonnegative",),
        )
        self.geometry, self.grid, self.model = geometry, grid, model
        self.profile = profile
        self.backend = "numba"
        self._kernel = kernel
        self.frames = arrays.snapshot(frames)
        self.window = arrays.snapshot(window)

    # --- variants ------------------------------------------------------------------------

    def with_precision(self, precision: str | Precision) -> Projector:
        """The same scan in another precision."""
        return Projector(
            self.geometry, self.grid, self.model, self.backend, precision, self.profile
        )

    def with_geometry(self, geometry: Beam | Trajectory) -> Projector:
        """Another scan with as many views of the same kind, checked like a new one."""
        old, new = self.geometry.trajectory, geometry.trajectory
        if (new.kind, new.views, new.detector.shape) != (old.kind, old.views, old.detector.shape):
            raise GeometryError(
                f"with_geometry takes a {old.kind} scan of {old.views} views on "
                f"{old.detector.shape} cells, got {new.kind}, {new.views} views, "
                f"{new.detector.shape} cells"
            )
        return Projector(
            geometry, self.grid, self.model, self.backend, self.precision, self.profile
        )

    # --- hooks ---------------------------------------------------------------------------

    def _apply(self, x: Array) -> Array:
        return hosted(self, x)

    def _apply_adjoint(self, y: Array) -> Array:
        return hosted(self, y, adjoint=True)

    def _make_conjugate(self) -> LinearOperator:
        return self

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator | None:
        window = np.array(self.window)
        frames, views = self.frames, self.codomain.shape[0]
        cells, voxels = list(self.codomain.shape[1:]), list(self.domain.shape)
        count = stop - start
        if axis == "view":
            lo, hi = max(start, 0), max(min(stop, views), 0)
            window[:2] = np.clip(window[:2] - start, 0, count)
            if padded:
                frames = frames[np.clip(np.arange(start, stop), 0, max(views - 1, 0))]
            else:
                frames = frames[lo:hi]
            views = count
        for position, name in enumerate(self.rule.codomain[0][1:]):
            if name.name == axis:
                window[2 + position] += start
                cells[position] = count
        for position, name in enumerate(self.rule.domain[0]):
            if name.name == axis:
                window[2 + len(cells) + position] += start
                voxels[position] = count
        block = object.__new__(Projector)
        block._set_up(
            self.geometry, self.grid, self.model, self.profile, self.precision, self._kernel,
            frames, window, views, tuple(cells), tuple(voxels),
        )  # fmt: skip
        block.__dict__["_frozen"] = True
        return block

    def _columns(self, index: Array, axes: tuple[int, ...]) -> LinearOperator | None:
        dims = len(self.domain.shape)
        whole = tuple(self.domain.shape[-2:]) == tuple(self.grid.shape[-2:])
        if dims == 2:
            # The planar kernels for lists of cells see whole, real rows of the detector.
            real = np.asarray(self.window)[:2].tolist() == [0, self.codomain.shape[0]]
            whole = whole and real and self.codomain.shape[1:] == self.geometry.detector.shape
        if axes != tuple(range(dims))[-2:] or not whole or self._kernel == "sampled":
            return None
        return ProjectorColumns(self, index)

    def _gram_diagonal(self, weights: Array | None) -> Array | None:
        host = None if weights is None else arrays.to_numpy(weights).astype(self.dtype, copy=False)
        found = self._runner.gram_diagonal(host)
        return found if weights is None else arrays.convert(found, weights)

    def _cost(self) -> Cost:
        # A ray meets about as many cells as the longest in-plane side has, twice.
        crossings = 2.0 * self.codomain.size * max(self.domain.shape, default=0)
        read = bytes_of(self.domain) + bytes_of(self.codomain)
        return Cost(2.0 * crossings, read, bytes_of(self.codomain), bytes_of(self.domain))

    # --- on the host -----------------------------------------------------------------------

    @property
    def _runner(self) -> Any:
        found = self.__dict__.get("_cache_runner")
        if found is None:
            from geometries.kernels import runner

            found = runner.make(self)
            self.__dict__["_cache_runner"] = found
        return found

    def _forward_host(self, x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        return np.asarray(self._runner.forward(x, out))

    def _adjoint_host(self, y: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        return np.asarray(self._runner.adjoint(y, out))

    @property
    def _host_orders(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:  # type: ignore[override]
        # The kernels of volumes have slices and rows innermost.
        return None if self.grid.dims == 2 else ((1, 2, 0), (0, 2, 1))


class ProjectorColumns(LinearOperator):
    """A projector on a subset of in-plane positions with all their slices.

    The domain is `(s,)` for images and `(z, s)` for volumes; the cost is in proportion to s.
    """

    batched = True
    _exact: ClassVar[bool] = True

    def __init__(self, base: Projector, index: Array) -> None:
        slices = base.domain.shape[:-2]
        names = ("z", "s") if slices else ("s",)
        domain = Space((*slices, int(index.shape[0])), base.domain.dtype, names)
        right = " ".join(axis.name for axis in base.rule.codomain[0])
        super().__init__(
            domain,
            base.codomain,
            f"{' '.join(names)} -> {right}",
            precision=base.precision,
            name="Projector.columns",
            tags=("nonnegative",),
        )
        self.base = base
        self.index = arrays.snapshot(index)

    def _apply(self, x: Array) -> Array:
        return hosted(self, x)

    def _apply_adjoint(self, y: Array) -> Array:
        return hosted(self, y, adjoint=True)

    def _make_conjugate(self) -> LinearOperator:
        return self

    def _gram_diagonal(self, weights: Array | None) -> Array | None:
        from linops.elementary.select import Restriction

        whole = self.base._gram_diagonal(weights)
        pick = Restriction(self.base.domain, self.index)  # type: ignore[arg-type]
        return None if whole is None else pick(whole)

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator | None:
        if axis == "s":
            return None if padded else ProjectorColumns(self.base, self.index[start:stop])
        if padded and self.base.grid.dims == 2:
            # The planar kernels for lists of cells know no planes that are inert.
            return None
        block = self.base.block(axis, start, stop, padded)
        assert isinstance(block, Projector)
        return block.columns(self.index)

    def _cost(self) -> Cost:
        whole = self.base.cost()
        share = self.domain.size / max(self.base.domain.size, 1)
        return Cost(whole.flops * share, whole.read * share, whole.written, 0.0)

    @property
    def _host_orders(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:  # type: ignore[override]
        return None if self.base.grid.dims == 2 else ((1, 0), (0, 2, 1))

    def _forward_host(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.base._runner.forward_columns(x, arrays.to_numpy(self.index)))

    def _adjoint_host(self, y: np.ndarray) -> np.ndarray:
        return np.asarray(self.base._runner.adjoint_columns(y, arrays.to_numpy(self.index)))


def _frames(trajectory: Trajectory) -> np.ndarray:
    """Source or direction, centre, u and v of each view, side by side: `(views, 3 or 4, dims)`."""
    first = trajectory.directions if trajectory.sources is None else trajectory.sources
    parts = [first, trajectory.centers, trajectory.u]
    if trajectory.v is not None:
        parts.append(trajectory.v)
    if trajectory.detector.surface is not None:
        # A surface is sampled by the number of the view, whatever block the view is in.
        numbers = np.zeros_like(trajectory.centers)
        numbers[:, 0], numbers[:, 1] = np.arange(trajectory.views), trajectory.views
        parts.append(numbers)
    return np.stack([np.asarray(part) for part in parts], axis=1)


def _profile_of(model: str, profile: str | None) -> str | None:
    if model != "footprint":
        if profile is not None:
            raise ValueError(f"profile is {profile!r}; only model 'footprint' has one")
        return None
    if profile is None:
        return _PROFILES[0]
    if not isinstance(profile, str) or profile not in _PROFILES:
        raise ValueError(f"profile is {profile!r}; it is one of {', '.join(_PROFILES)}")
    return profile


def _kernel_of(model: str, trajectory: Trajectory, frames: np.ndarray, grid: Grid) -> str:
    """The kernel that model and frames allow, decided once for the whole scan."""
    from geometries.kernels import footprint_views, structure
    from geometries.kernels.volume_scan import VolumeScan

    choose = {"siddon": structure.kernel_of, "footprint": footprint_views.kernel_of}[model]
    parts = trajectory.kind, frames, trajectory.detector, grid
    if grid.dims == 3:
        return choose(VolumeScan.from_frames(*parts))
    if model == "footprint":
        choose(footprint_views.embedded(*parts))
    return "planar"
