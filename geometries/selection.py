"""What runs a projector: model, backend and kernel, chosen once, at construction.

A configuration that the compiled code cannot serve is told here, with every reason: `"numba"`
raises, `"auto"` warns and takes the portable code. Where a derivative in the geometry is followed
that is not compiled, `"auto"` is the portable code, without a warning. What each of them does is in
`geometries/kernels/`.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np

from geometries.admission import pitch_limit
from geometries.grid import Grid
from geometries.trajectory import Trajectory
from linops import arrays
from linops.arrays import Array
from linops.errors import GeometryError
from linops.precision import Precision

__all__ = ["Selection", "chosen", "followed", "frames_of", "untracked"]

_MODELS = ("siddon", "joseph", "footprint")
_PROFILES = ("trapezoid", "box")
_BACKENDS = ("auto", "numba", "portable")


class Selection(NamedTuple):
    """What a projector was asked for, and what was selected."""

    model: str
    profile: str | None
    asked: str
    backend: str
    kernel: str
    memory: int | None


def chosen(
    trajectory: Trajectory,
    grid: Grid,
    model: str,
    profile: str | None,
    backend: str,
    precision: Precision,
    memory: int | None,
) -> Selection:
    """The choice for a scan that is admitted already.

    Raises
    ------
    ValueError
        For an unknown model, profile or backend, where the backend cannot serve the scan, and for
        a memory that is no count of bytes.
    """
    if not isinstance(model, str) or model not in _MODELS:
        raise ValueError(f"model is {model!r}; it is one of {', '.join(_MODELS)}")
    if not isinstance(backend, str) or backend not in _BACKENDS:
        raise ValueError(f"backend is {backend!r}; it is one of {', '.join(_BACKENDS)}")
    if memory is not None and not (_is_number(memory) and memory > 0):
        raise ValueError(f"memory is {memory!r}; it is a number of bytes, or None")
    shape = _profile_of(model, profile)
    derived = followed(trajectory)
    if model == "footprint":
        _refuse_shapes(trajectory)
    reasons = _hindrances(grid, precision)
    traced = derived and not (model == "siddon" and _known(trajectory))
    if traced and backend == "numba":
        reasons.append(
            "a derivative in the geometry is followed, which compiled code has for model 'siddon' "
            "and torch tensors in CPU memory alone"
        )
    selected = _selected(backend, reasons)
    if traced:
        selected = "portable"
    kernel = "oblique" if derived else _kernel_of(model, trajectory.host, grid)
    bound = None if memory is None else max(1, int(memory))
    return Selection(model, shape, backend, selected, kernel, bound)


def followed(trajectory: Trajectory) -> bool:
    """Whether JAX traces a frame or a number of the detector, or torch records a derivative."""
    parts = [*_parts(trajectory), *trajectory.detector.parameters]
    return any(arrays.is_traced(part) or _recorded(part) for part in parts)


def untracked(choice: Selection, trajectory: Trajectory, grid: Grid) -> Selection:
    """The choice for compiled code on the values of a scan that a derivative follows.

    Its kernel is the general or a faster one, with the rule of the general one.
    """
    kernel = _kernel_of(choice.model, trajectory.host, grid)
    return choice._replace(kernel="aligned" if kernel == "aligned rows" else kernel)


def frames_of(trajectory: Trajectory) -> Array:
    """Source or direction, center, u and v of each view, side by side: `(views, 3 or 4, dims)`."""
    parts = _parts(trajectory)
    if trajectory.detector.surface is not None:
        # A surface is sampled by the number of the view, whatever block the view is in.
        numbers = np.zeros((trajectory.views, trajectory.dims))
        numbers[:, 0], numbers[:, 1] = np.arange(trajectory.views), trajectory.views
        parts.append(arrays.convert(arrays.unify(numbers, parts[0])[0], parts[0]))
    return arrays.namespace(*parts).stack(parts, axis=1)


def _hindrances(grid: Grid, precision: Precision) -> list[str]:
    """Why the compiled code cannot serve a scan; nothing where it can."""
    reasons = []
    limit = pitch_limit(grid, precision)
    if limit is not None:
        reasons.append(f"{limit} (precision='float64' has no such limit)")
    return reasons


def _selected(backend: str, reasons: list[str]) -> str:
    if backend == "numba":
        if reasons:
            raise GeometryError(
                f"backend 'numba' cannot serve this projector: {'; '.join(reasons)}"
                "; use backend='portable'"
            )
        return "numba"
    if backend == "portable" or not reasons:
        return "portable" if reasons or backend == "portable" else "numba"
    warnings.warn(
        f"backend 'auto' takes 'portable', which is slower on a CPU: {'; '.join(reasons)}",
        RuntimeWarning,
        stacklevel=5,
    )
    return "portable"


def _refuse_shapes(trajectory: Trajectory) -> None:
    """What no values are needed to tell that it has no footprint."""
    detector = trajectory.detector
    if detector.surface is not None:
        raise GeometryError("a detector that is a surface has no footprint; use model='siddon'")
    if trajectory.kind == "parallel" and detector.curvature is not None:
        raise GeometryError(
            f"a parallel beam on a curved detector (curvature {detector.curvature}) has no "
            "footprint here; use model='siddon'"
        )


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


def _kernel_of(model: str, trajectory: Trajectory, grid: Grid) -> str:
    """The kernel that model and frames allow, decided once for the whole scan."""
    from geometries.kernels import footprint_views, structure
    from geometries.kernels.volume_scan import VolumeScan

    frames = np.asarray(frames_of(trajectory))
    parts = trajectory.kind, frames, trajectory.detector, grid
    choose = footprint_views.kernel_of if model == "footprint" else structure.kernel_of
    if grid.dims == 3:
        return choose(VolumeScan.from_frames(*parts))
    if model == "footprint":
        choose(footprint_views.embedded(*parts))
    return "planar"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _known(trajectory: Trajectory) -> bool:
    """Whether all numbers of a scan can be read, in CPU memory."""
    parts = (*_parts(trajectory), *trajectory.detector.parameters)
    return all(arrays.is_concrete(part) and arrays.on_host(part) for part in parts)


def _recorded(part: Array) -> bool:
    if not arrays.is_torch(part):
        return False
    from linops.transforms.torch_function import recording

    return recording(part)


def _parts(trajectory: Trajectory) -> list[Array]:
    first = trajectory.directions if trajectory.sources is None else trajectory.sources
    parts = [first, trajectory.centers, trajectory.u, trajectory.v]
    return [part for part in parts if part is not None]
