"""`Projector`: line integrals of a scan as a leaf of the algebra.

It knows spaces, rule, blocks and memory order. Frames come from `geometries/trajectory.py`, the
checks of a scan from `geometries/admission.py`, the numbers from `geometries/kernels/`.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Hashable, Mapping
from typing import Any, ClassVar

import numpy as np

from geometries.admission import admit
from geometries.beams import Beam
from geometries.carried import Carried, Outline, carried
from geometries.grid import Grid
from geometries.retained import refuse_written
from geometries.selection import Selection, chosen, followed, frames_of, untracked
from geometries.trajectory import Trajectory, chosen_views
from linops import arrays
from linops.arrays import Array
from linops.compiled.hosted import apply_on_host
from linops.cost import Cost, bytes_of
from linops.errors import GeometryError
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.precision import Precision
from linops.space import Space
from linops.transforms.pytree import unpack

__all__ = ["Projector"]


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
        (Siddon 1985). `"joseph"`: interpolation between cell centers across the longest axis of
        the ray, one sample a slab of cells (Joseph 1982). `"footprint"`: the mean over each
        detector cell of a voxel's separable shadow (Long, Fessler and Balter 2010); see the page on
        models.
    backend
        `"numba"`, compiled code for arrays of any namespace in CPU memory; `"portable"`, array code
        for any device, differentiable in the geometry; `"auto"`, the compiled code where it serves,
        else the portable one, with a warning that names every reason. Arrays on other devices are
        served by the portable code of an `"auto"` projector.
    precision
        `"fast"` (float32, fast-math), `"float32"` or `"float64"`; geometry is always set up in
        float64.
    profile
        Of a footprint along the columns: `"trapezoid"` (the default), or `"box"`. None for other
        models.
    memory
        Bytes that the portable code of rays may take beyond arrays that come and go. None: on a CPU
        at most `max(8 MiB, min(free / 4, 256 MiB))`, elsewhere a quarter of what is free.

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
        For an unknown model, profile, backend or precision, or a scan that backend "numba" cannot
        serve.
    """

    domain: Space
    codomain: Space
    batched = True
    _exact: ClassVar[bool] = True
    _host_arrays: ClassVar[Mapping[str, str]] = {"frames": "float64"}
    _host_out: ClassVar[bool] = True
    _alike: ClassVar[Mapping[str, str]] = {"geometry": "_likeness"}

    def __init__(
        self,
        geometry: Beam | Trajectory,
        grid: Grid,
        model: str = "siddon",
        backend: str = "auto",
        precision: str | Precision = "fast",
        profile: str | None = None,
        memory: int | None = None,
    ) -> None:
        accuracy = Precision.of(precision)
        admit(geometry, grid, accuracy)
        trajectory, detector = geometry.trajectory, geometry.detector
        choice = chosen(trajectory, grid, model, profile, backend, accuracy, memory)
        whole = np.zeros(2 + detector.dims - 1 + grid.dims, np.int32)
        whole[1] = geometry.views
        shapes = (geometry.views, *detector.shape), grid.shape
        known: tuple[Any, ...] = ((None, None), whole, *shapes)
        if not followed(trajectory):
            frames = frames_of(trajectory.host)
            self._set_up(geometry, grid, choice, accuracy, frames, *known)
            return
        from geometries.kernels.portable_scan import cell_offsets

        twin = None
        if choice.backend == "numba":
            plain, host = untracked(choice, trajectory, grid), trajectory.host
            twin = _made(host, grid, plain, accuracy, frames_of(host), *known)
        frames, cells = frames_of(trajectory), cell_offsets(trajectory)
        self._set_up(geometry, grid, choice, accuracy, frames, cells, whole, *shapes, twin)

    def _set_up(
        self,
        geometry: Any,
        grid: Grid,
        choice: Selection,
        precision: Precision,
        frames: Array,
        cells: tuple[Array | None, Array | None],
        window: np.ndarray,
        projections: tuple[int, ...],
        voxels: tuple[int, ...],
        twin: Projector | None = None,
    ) -> None:
        # window: begin and end of the real views, then the first row and column of the detector
        # and the first plane of each axis of the grid that this (part of a) projector covers.
        # twin: of a scan that a derivative follows, the compiled projector on its values.
        names = ("z", "y", "x")[-grid.dims :]
        rule = f"{' '.join(names)} -> view {' '.join(geometry.detector.axes)}"
        if choice.kernel == "aligned rows":
            rule = "z y x -> view z col"
        domain = Space(voxels, precision.dtype, names, grid.spacing)
        codomain = Space(projections, precision.dtype, ("view", *geometry.detector.axes))
        LinearOperator.__init__(
            self,
            domain,
            codomain,
            rule,
            precision=precision,
            name="Projector",
            tags=("nonnegative",),
        )
        self.__dict__["geometry"] = geometry
        self.grid, self._choice = grid, choice
        self.offsets, self.heights = cells
        self.frames = arrays.snapshot(frames)
        self.window = arrays.snapshot(window)
        self._twin = twin
        watch = getattr(getattr(geometry, "trajectory", None), "_watch", ())
        if watch:
            refuse_written(watch, "a Projector")
            self.__dict__["_cache_watch"] = watch

    # --- what was selected -----------------------------------------------------------------

    @property
    def geometry(self) -> Beam | Trajectory:
        """The scan, of which a block keeps the whole."""
        held = self._seen
        return held.geometry if isinstance(held, Carried) else held

    @property
    def _seen(self) -> Any:
        """The geometry as far as its kind, its count of views and its detector, no numbers read."""
        return self.__dict__["geometry"]

    @property
    def model(self) -> str:
        """`"siddon"`, `"joseph"` or `"footprint"`."""
        return self._choice.model

    @property
    def profile(self) -> str | None:
        """Of a footprint; None for other models."""
        return self._choice.profile

    @property
    def backend(self) -> str:
        """`"numba"` or `"portable"`: what runs for arrays in CPU memory."""
        return self._choice.backend

    @property
    def path(self) -> str | None:
        """The way that the frames allow compiled code to take, view by view.

        `"planar"`, `"aligned rows"`, `"aligned"`, `"columns"`, `"oblique"` or `"sampled"` (see
        `geometries/kernels/structure.py`, which has their tolerances), or where views differ the
        number of each, `"4 aligned, 3 columns"`; of a footprint `"rows"` takes the place of the
        last three; None for portable code, which has one way. `describe()` shows it.
        """
        if self.backend != "numba":
            return None
        return self._kernel if self._twin is None else self._twin.path

    @property
    def memory(self) -> int | None:
        """Bytes for temporaries of the portable code, if they were given."""
        return self._choice.memory

    @property
    def _likeness(self) -> Any:
        """What of the geometry is not in the frames, as far as compiled code reads it."""
        seen = self._seen
        if self.backend != "numba" or self._twin is not None or isinstance(seen, Outline):
            return seen
        return Outline(seen.kind, seen.views, seen.detector.host)

    def _data_and_static(self) -> tuple[dict[str, Any], tuple[tuple[str, Hashable], ...]]:
        data, static = super()._data_and_static()
        seen = self._seen
        if isinstance(seen, Carried):
            outline, parts = seen.outline, seen.parts
        else:
            whole = seen.views == self.frames.shape[0] and not arrays.is_traced(self.window)
            whole = whole and np.asarray(self.window)[:2].tolist() == [0, seen.views]
            found = None if isinstance(seen, Outline) else carried(seen, whole)
            if found is None:
                return data, static
            outline, parts = found
            if self.backend == "numba":
                # Compiled code reads the bits of frames on the host, whatever library has them.
                data["frames"] = np.asarray(arrays.to_numpy(self.frames), np.float64)
        data["geometry"] = parts
        kept = ((name, outline if name == "geometry" else value) for name, value in static)
        return data, tuple(kept)

    @classmethod
    def _of_data(
        cls, static: tuple[tuple[str, Hashable], ...], data: Mapping[str, Any], name: str
    ) -> Any:
        parts = dict(data)
        found = parts.pop("geometry", None)
        bits = parts["frames"]
        if arrays.is_jax(bits) and not arrays.is_traced(bits) and str(bits.dtype) == "uint32":
            # What a jitted function returns, in numbers again.
            parts["frames"] = unpack(arrays.to_numpy(bits), np.dtype("float64"))
        made = super()._of_data(static, parts, name)
        if found is not None:
            outline: Any = made.__dict__["geometry"]
            made.__dict__["geometry"] = Carried(outline, found, parts["frames"])
        return made

    @property
    def _kernel(self) -> str:
        return self._choice.kernel

    # --- variants ------------------------------------------------------------------------

    def with_precision(self, precision: str | Precision) -> Projector:
        """The same scan in another precision."""
        return self._like(self.geometry, precision)

    def with_geometry(self, geometry: Beam | Trajectory) -> Projector:
        """Another scan with as many views of the same kind, checked like a new one."""
        old, new = self.geometry.trajectory, getattr(geometry, "trajectory", None)
        if not isinstance(new, Trajectory):
            raise GeometryError(f"with_geometry takes a beam or a Trajectory, got {geometry!r}")
        if (new.kind, new.views, new.detector.shape) != (old.kind, old.views, old.detector.shape):
            raise GeometryError(
                f"with_geometry takes a {old.kind} scan of {old.views} views on "
                f"{old.detector.shape} cells, got {new.kind}, {new.views} views, "
                f"{new.detector.shape} cells"
            )
        return self._like(geometry, self.precision)

    def replace(self, **changes: Any) -> Projector:
        """Another geometry in the place of this one, as `with_geometry` takes it.

        Raises
        ------
        TypeError
            For anything else, which frames, kernel and spaces follow from.
        """
        if set(changes) != {"geometry"}:
            raise TypeError(
                f"Projector.replace takes a geometry, got {', '.join(changes)}: build a new "
                "Projector, or take with_precision"
            )
        return self.with_geometry(changes["geometry"])

    def geometry_operator(self, x: Array) -> Operator:
        """The projections of `x` as an Operator of the frames, with derivatives in them.

        Its argument is the tuple (sources or directions, centers, u[, v]); see
        `geometries.geometry_gradient.GeometryOperator`.
        """
        from geometries.geometry_gradient import GeometryOperator

        return GeometryOperator(self, x)

    def _like(self, geometry: Beam | Trajectory, precision: str | Precision) -> Projector:
        choice = self._choice
        return Projector(
            geometry, self.grid, choice.model, choice.asked, precision, choice.profile,
            choice.memory,
        )  # fmt: skip

    # --- hooks ---------------------------------------------------------------------------

    def _apply(self, x: Array) -> Array:
        return self._projected(x, adjoint=False)

    def _apply_adjoint(self, y: Array) -> Array:
        return self._projected(y, adjoint=True)

    def _projected(self, x: Array, adjoint: bool) -> Array:
        self._refuse_written()
        if self._compiled_for(x):
            return apply_on_host(self, x, adjoint)
        if self._twin is not None and arrays.is_numpy(x):
            return apply_on_host(self._twin, x, adjoint)
        from geometries.kernels import portable

        return portable.project(self, x, adjoint)

    def _compiled_for(self, x: Array) -> bool:
        if self.backend != "numba" or self._twin is not None:
            return False
        return self._choice.asked == "numba" or arrays.on_host(x)

    def _make_conjugate(self) -> LinearOperator:
        return self

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> Projector:
        window = np.array(self.window)
        frames, offsets, views = self.frames, self.offsets, self.codomain.shape[0]
        cells, voxels = list(self.codomain.shape[1:]), list(self.domain.shape)
        count = stop - start
        if axis == "view":
            lo, hi = max(start, 0), max(min(stop, views), 0)
            window[:2] = np.clip(window[:2] - start, 0, count)
            taken = np.arange(start, stop) if padded else np.arange(lo, hi)
            taken = np.clip(taken, 0, max(views - 1, 0))
            frames, offsets, views = *self._views(taken), count
        for position, name in enumerate(self.rule.codomain[0][1:]):
            if name.name == axis:
                window[2 + position] += start
                cells[position] = count
        for position, name in enumerate(self.rule.domain[0]):
            if name.name == axis:
                window[2 + len(cells) + position] += start
                voxels[position] = count
        twin = None if self._twin is None else self._twin._block(axis, start, stop, padded)
        return _made(
            self._seen, self.grid, self._choice, self.precision, frames,
            (offsets, self.heights), window, (views, *cells), tuple(voxels), twin,
        )  # fmt: skip

    def _select_rows(self, axis: str, index: np.ndarray) -> Projector | None:
        # A window of padded views has no order to pick from.
        if axis != "view" or arrays.is_traced(self.window):
            return None
        if np.asarray(self.window)[:2].tolist() != [0, self.codomain.shape[0]]:
            return None
        window = np.array(self.window)
        window[:2] = 0, len(index)
        frames, offsets = self._views(index)
        twin = None if self._twin is None else self._twin._select_rows(axis, index)
        return _made(
            self._seen, self.grid, self._choice, self.precision, frames,
            (offsets, self.heights), window, (len(index), *self.codomain.shape[1:]),
            self.domain.shape, twin,
        )  # fmt: skip

    def _views(self, index: np.ndarray) -> tuple[Array, Array | None]:
        """The frames of some views, and their offsets where each view has its own."""
        offsets = self.offsets
        if offsets is not None and offsets.shape[0] > 1:
            offsets = chosen_views(offsets, index)
        return chosen_views(self.frames, index), offsets

    def _columns(self, index: Array, axes: tuple[int, ...]) -> LinearOperator | None:
        from geometries.projector_columns import ProjectorColumns

        dims = len(self.domain.shape)
        flat = self.model == "joseph" and dims == 2
        if self.backend != "numba" or self._twin is not None or flat:
            return None
        whole = tuple(self.domain.shape[-2:]) == tuple(self.grid.shape[-2:])
        if dims == 2:
            # The planar kernels for lists of cells see whole, real rows of the detector, which a
            # traced window leaves open.
            known = not arrays.is_traced(self.window)
            real = known and np.asarray(self.window)[:2].tolist() == [0, self.codomain.shape[0]]
            whole = whole and real and self.codomain.shape[1:] == self._seen.detector.shape
        if axes != tuple(range(dims))[-2:] or not whole or self._kernel == "sampled":
            return None
        return ProjectorColumns(self, index)

    def _refuse_written(self) -> None:
        watch = self.__dict__.get("_cache_watch")
        if watch:
            refuse_written(watch, self.name)

    def _gram_diagonal(self, weights: Array | None) -> Array:
        self._refuse_written()
        if self.backend != "numba" or self._twin is not None:
            from geometries.kernels import portable

            return portable.gram_diagonal(self, weights)
        host = None if weights is None else arrays.to_numpy(weights).astype(self.dtype, copy=False)
        found = self._runner.gram_diagonal(host)
        return found if weights is None else arrays.convert(found, weights)

    def _approximate_inverse(self) -> LinearOperator | None:
        """Filtered backprojection, where there is a formula for the scan."""
        from geometries.analytic.reconstruct import fbp_operator, fdk_operator

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what its image lacks, iterations bring
            for make in (fbp_operator, fdk_operator):
                with contextlib.suppress(TypeError, ValueError):
                    inverse: LinearOperator = make(self)
                    if (inverse.domain.shape, inverse.codomain.shape) == self._ends:
                        return inverse
        return None

    @property
    def _ends(self) -> tuple[Any, Any]:
        return self.codomain.shape, self.domain.shape

    def _cost(self) -> Cost:
        # A ray meets about as many cells as the longest in-plane side has, twice.
        crossings = 2.0 * self.codomain.size * max(self.domain.shape, default=0)
        read = bytes_of(self.domain) + bytes_of(self.codomain)
        return Cost(2.0 * crossings, read, bytes_of(self.codomain), *self._held())

    def _within(self, memory: float) -> Projector:
        if self.backend != "portable" or (self.memory is not None and self.memory <= memory):
            return self
        return _made(
            self._seen, self.grid, self._choice._replace(memory=max(1, int(memory))),
            self.precision, self.frames, (self.offsets, self.heights), self.window,
            self.codomain.shape, self.domain.shape,
        )  # fmt: skip

    def _held(self) -> tuple[float, float]:
        """Bytes beside input and result, of both directions: docs/performance.md, Memory."""
        if self.backend == "portable" and self.model != "footprint":
            from geometries.kernels.portable_memory import workspace

            held = workspace(self.codomain.size, self.model, self.domain.shape, self.memory)
            return held, held
        if self.grid.dims == 3:
            # One copy in the kernel's order; scratch of threads is small beside it.
            return bytes_of(self.domain), bytes_of(self.codomain)
        rows, columns = self.domain.shape
        padded = rows * (columns + 64.0)
        total = 8.0 * rows * columns if self.precision == "float32" else 0.0
        return 2 * padded * self.dtype.itemsize, 16 * padded + total + 2.4e6

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


def _made(*parts: Any) -> Projector:
    """A projector of parts that are checked, as `_set_up` takes them."""
    return Projector._opened(lambda made: made._set_up(*parts))
