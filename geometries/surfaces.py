"""`Surface`: detectors of any shape, by a function from detector coordinates to offsets.

Cells are numbered and spaced as on a flat detector; the surface says how far from the plane's frame
each of them stands. Offsets are evaluated for blocks of views, never for a whole scan at once, in
the library of the surface's parameters. Checks of their values are in `geometries/admission.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from linops import arrays, tracing
from linops.arrays import Array
from linops.errors import DTypeError, GeometryError, ShapeError

if TYPE_CHECKING:
    from geometries.detector import Detector

__all__ = ["Surface", "cell_points", "view_blocks"]

_KEPT = 1 << 26  # bytes of offsets that a surface on the host keeps
_BLOCK = 1 << 23  # bytes of offsets that are evaluated at a time


class Surface:
    """A detector's shape as offsets of its cells: `Detector(..., curvature=Surface(sampler))`.

    The cell with coordinates (a, b) of view k stands at `C + s_u u + s_v v + s_n n`, where
    `(s_u, s_v, s_n)` is what the sampler returns and n is the detector's normal, `v x u` (in 2-D
    `(-u_y, u_x)`), away from the source for circular scans. A flat detector is
    `(a, b, 0)`, a cylinder `(R sin(a/R), b, R cos(a/R) - R)`.

    Parameters
    ----------
    sampler
        `sampler(a, b, view, *parameters) -> (..., 3)`. `a`, `b` (physical length, float64 where
        the library has it) and `view` (integers) have one shape, `(views, rows, cols)` or, in
        2-D, `(views, cols)`; they hold the coordinates of the *whole* detector for some views
        of the scan. The result has that shape or broadcasts to it (a shape shared by all
        views may leave out the first axis), with a last axis of 3, floating. In 2-D b is 0, and
        the middle offset has to be exactly 0. It has to be a pure function.
    parameters
        Arrays that the sampler also takes, all of one library: NumPy (the default), torch or
        JAX, which is then the library of a, b and view. A portable projector differentiates
        through them. They are copied; gradients of torch reach the tensors given.

    Raises
    ------
    TypeError
        For a sampler that is not callable.
    DTypeError
        For parameters that are not arrays, or of two libraries.

    Examples
    --------
    A detector that bulges towards the source:

    >>> import numpy as np
    >>> from geometries import Detector, FanBeam
    >>> bulge = Surface(lambda a, b, view, depth: np.stack([a, b, -depth * np.cos(a)], -1), [2.0])
    >>> fan = FanBeam([0.0], Detector(3, curvature=bulge), 5.0, 10.0)
    >>> fan.trajectory.points()[0, 1]
    array([0., 3.])
    """

    __slots__ = ("__weakref__", "_chosen", "_free", "_kept", "parameters", "sampler")

    sampler: Callable[..., Any]
    parameters: tuple[Array, ...]
    _chosen: np.ndarray | None
    _kept: dict[Any, np.ndarray]
    _free: bool

    @tracing.run_outside
    def __init__(self, sampler: Callable[..., Any], parameters: Sequence[Any] = ()) -> None:
        if not callable(sampler):
            raise TypeError(f"sampler is {sampler!r}; it is a function of a, b, view, parameters")
        if arrays.is_array(parameters):
            raise DTypeError("parameters is an array; it is a tuple of arrays")
        try:
            given = [p if arrays.is_array(p) else np.asarray(p, np.float64) for p in parameters]
        except (TypeError, ValueError):
            raise DTypeError(
                f"parameters is {parameters!r}; it is a tuple of arrays or numbers"
            ) from None
        others = [p for p in given if not arrays.is_numpy(p)]
        if others:
            arrays.namespace(*others)
            given = [arrays.convert(p, others[0]) for p in given]
        kept = tuple(arrays.snapshot(p) if arrays.is_numpy(p) else arrays.copy(p) for p in given)
        self._fill(sampler, kept, None)

    def offsets(self, detector: Detector, views: Any, count: int) -> Array:
        """Offsets of all cells along u, v and n, `(V, rows, cols, 3)`, in 2-D `(V, cols, 3)`.

        In the library of the parameters, or whatever else the sampler returns, with its graph.

        Parameters
        ----------
        detector
            The cells.
        views
            Numbers of V views, integers.
        count
            How many views there are, for the check of numbers.

        Raises
        ------
        ShapeError, DTypeError
            Where the sampler returns another shape, or numbers that are not floating.
        """
        number = np.asarray(views, np.int64)
        if number.ndim != 1 or (number.size and not 0 <= number.min() <= number.max() < count):
            raise GeometryError(f"views are {views!r}; they are numbers below {count}")
        if self._chosen is not None:
            number = self._chosen[number]
        shape = (len(number), *detector.shape)
        like = (*self.parameters, *detector.parameters)
        a, b = arrays.unify(detector.columns(), detector.rows(), *like)[:2]
        xp = arrays.namespace(a)
        number = number.reshape(-1, *[1] * len(detector.shape))
        b = b[:, None] if detector.dims == 3 else b
        found = self.sampler(
            xp.broadcast_to(a, shape),
            xp.broadcast_to(b, shape),
            xp.broadcast_to(arrays.convert(number, a), shape),
            *self.parameters,
        )
        return _fit(found, shape)

    def on_host(self, detector: Detector, views: Any, count: int) -> np.ndarray:
        """The offsets in float64 NumPy, of the surface as `detached` makes it; some are kept."""
        number = np.asarray(views, np.int64)
        cells = math.prod(detector.shape)
        whole = 24 * cells * count <= _KEPT
        key = (detector.shape, detector.pitch, detector.offset, count)
        if key not in self._kept:
            wanted = np.arange(count) if whole else number
            found = np.asarray(arrays.to_numpy(self.offsets(detector, wanted, count)), np.float64)
            if not whole:
                return found
            found.setflags(write=False)
            self._kept[key] = found
        return self._kept[key][number]

    def of_views(self, chosen: np.ndarray) -> Surface:
        """The surface of some of the views, in another order."""
        made = object.__new__(Surface)
        numbers = chosen if self._chosen is None else self._chosen[chosen]
        return made._fill(self.sampler, self.parameters, numbers, self._free)

    def with_parameters(self, parameters: Sequence[Array]) -> Surface:
        """The same sampler with other parameters, of as many and of the same shapes."""
        shapes = [tuple(p.shape) for p in self.parameters]
        given = [tuple(p.shape) for p in parameters]
        if given != shapes:
            raise ShapeError(f"parameters of a surface have shapes {given}; they are {shapes}")
        made = Surface(self.sampler, parameters)
        object.__setattr__(made, "_chosen", self._chosen)
        return made

    def detached(self) -> Surface:
        """The same surface with parameters that carry no graph; itself where it is that.

        Raises
        ------
        DTypeError
            Under a trace, where values are unknown.
        """
        if self._free:
            return self
        plain = []
        for p in self.parameters:
            host = np.array(arrays.to_numpy(p))
            plain.append(host if arrays.is_numpy(p) else arrays.convert(host, _example(p)))
        return object.__new__(Surface)._fill(self.sampler, tuple(plain), self._chosen, True)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a Surface is immutable: cannot set {name!r}; build a new one")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Surface is immutable: cannot delete {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.sampler, self.parameters, self._chosen)

    def __repr__(self) -> str:
        name = getattr(self.sampler, "__name__", type(self.sampler).__name__)
        return f"Surface({name}, {len(self.parameters)} parameters)"

    def _fill(
        self,
        sampler: Callable[..., Any],
        parameters: tuple[Array, ...],
        chosen: np.ndarray | None,
        free: bool = False,
    ) -> Self:
        object.__setattr__(self, "sampler", sampler)
        object.__setattr__(self, "parameters", parameters)
        object.__setattr__(self, "_chosen", chosen)
        object.__setattr__(self, "_kept", {})
        object.__setattr__(self, "_free", free or all(map(arrays.is_numpy, parameters)))
        return self


def cell_points(
    detector: Detector, frames: tuple[np.ndarray, ...], views: np.ndarray, count: int
) -> np.ndarray:
    """Where the cells of some views stand, float64 NumPy, `(V, rows, cols, 3)`, `(V, cols, 2)`.

    `frames`: center, u and, in 3-D, v of these views, `(V, dims)` each; `views`: their numbers
    among the `count` views of the scan. `detector` has a surface on the host.
    """
    surface = detector.surface
    assert surface is not None
    offsets = surface.on_host(detector, views, count)
    centers, u = frames[:2]
    if detector.dims == 2:
        axes: tuple[np.ndarray | None, ...] = (u, None, np.stack([-u[:, 1], u[:, 0]], axis=1))
    else:
        n = np.cross(frames[2], u)
        axes = (u, frames[2], n / np.linalg.norm(n, axis=1, keepdims=True))
    shape = (len(centers), *[1] * len(detector.shape), detector.dims)
    points = np.reshape(centers, shape)
    for k, axis in enumerate(axes):
        if axis is not None:
            points = points + offsets[..., k : k + 1] * np.reshape(axis, shape)
    return points


def view_blocks(shape: tuple[int, ...], views: int) -> list[tuple[int, int]]:
    """Ranges of views whose offsets take a bounded size, whatever is computed of the scan."""
    step = max(1, _BLOCK // (24 * math.prod(shape)))
    return [(k, min(k + step, views)) for k in range(0, views, step)]


def _restore(sampler: Any, parameters: tuple[Array, ...], chosen: np.ndarray | None) -> Surface:
    return object.__new__(Surface)._fill(sampler, parameters, chosen)


def _example(x: Array) -> Array:
    # A plain array to convert to: x itself may be wrapped by torch.func.
    return arrays.zeros((), np.dtype("float32"), x)


def _fit(found: Any, shape: tuple[int, ...]) -> Array:
    if not arrays.is_array(found):
        raise DTypeError(f"the surface's sampler returned {type(found).__name__}; it is an array")
    if arrays.dtype_of(found).kind != "f":
        raise DTypeError(
            f"the surface's sampler returned dtype {found.dtype}; offsets are floating lengths"
        )
    wanted = (*shape, 3)
    got = tuple(found.shape)
    padded = (1,) * (len(wanted) - len(got)) + got
    fits = len(got) <= len(wanted) and got[-1:] == (3,)
    if not fits or any(n not in (1, m) for n, m in zip(padded, wanted, strict=True)):
        raise ShapeError(
            f"the surface's sampler returned shape {got}; it is {wanted}, or broadcasts to it: "
            "offsets along u, v and n in the last axis"
        )
    return arrays.namespace(found).broadcast_to(found, wanted)
