"""Exact Siddon on NVIDIA GPUs through numba.cuda: any frames, images and volumes.

The rays are those of `rays3d`: the compiled functions that the CPU kernel `oblique` calls serve
here as device functions, so both have the same weights. Forward: one thread a ray. Adjoint and
gram diagonal: one thread a cell, which finds the rays that cross it and adds them in the order of
views, columns and rows; so nothing is atomic and every result has one value. Sums are float64,
data float32 or float64. An image is a volume of one slice.

The kernels are in `cuda_kernels`. CUDA starts when a runner is made, not at import. `available`
says whether it can; `CudaRunner` has the methods of the other runners and takes NumPy arrays
(copied to the device and back) or whatever has `__cuda_array_interface__`. Choosing this backend
is left to the projector.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from geometries.kernels.volume_scan import VolumeScan, pack

if TYPE_CHECKING:
    from geometries.projector import Projector

__all__ = ["CudaRunner", "available", "make"]

_THREADS = 128


def available() -> bool:
    """Whether Numba finds a CUDA device (in its simulator: always). Starts CUDA."""
    from numba import cuda

    return bool(cuda.is_available())


def make(projector: Projector) -> CudaRunner:
    """The runner of a projector on the GPU."""
    return CudaRunner(projector)


class CudaRunner:
    """`forward`, `adjoint` and `gram_diagonal` of a projector, or of a block of one, on the GPU.

    Arrays are in the user's order, `(..., z, y, x)` and `(..., view, row, col)`, or without z and
    row. Results are new arrays on the device of the argument (NumPy for NumPy), of the
    projector's dtype; those on a device come as Numba arrays, which every namespace takes over
    without a copy. `stream` is the pointer of the CUDA stream to work on, 0 the default one.

    Raises
    ------
    RuntimeError
        Where there is no CUDA device.
    """

    def __init__(self, projector: Projector) -> None:
        if not available():
            raise RuntimeError("no CUDA device that Numba can use; take backend='auto'")
        frames = np.asarray(projector.frames, np.float64)
        seen, grid = projector._seen, projector.grid
        window = [int(n) for n in np.asarray(projector.window)]
        numbers = np.arange(projector.codomain.shape[0])
        numbers[: window[0]] = -1
        numbers[window[1] :] = -1
        self._flat = grid.dims == 2
        if self._flat:
            scan = _solid(seen, frames, grid)
            first = [0, window[3], window[4], 0, window[2]]
        else:
            scan = VolumeScan.from_frames(seen.kind, frames, seen.detector.host, grid)
            first = [window[4], window[5], window[6], window[2], window[3]]
        self._dtype = projector.domain.dtype
        self._cells, self._rays = projector.domain.shape, projector.codomain.shape
        packed = pack(scan)
        self._host = (
            packed.frames, packed.along, packed.normal, packed.heights, packed.spacing,
            packed.counts, packed.sampling, packed.keys, numbers, np.array(first, np.int64),
        )  # fmt: skip
        self._kinds = np.array([packed.cone, packed.curved], np.int64)
        self._staged: dict[Any, tuple[Any, ...]] = {}

    def forward(self, x: Any, out: Any = None, *, stream: int = 0) -> Any:
        """Line integrals of `x`, into `out` if given (C order)."""
        return self._run("forward", x, out, self._cells, self._rays, stream)

    def adjoint(self, y: Any, out: Any = None, *, stream: int = 0) -> Any:
        """The transpose."""
        return self._run("adjoint", y, out, self._rays, self._cells, stream)

    def gram_diagonal(self, weights: Any = None, *, stream: int = 0) -> Any:
        """`sum_i w_i a_ij^2` for every cell; weights 1 by default."""
        if weights is None:
            weights = np.ones(self._rays, self._dtype)
        return self._run("gram", weights, None, self._rays, self._cells, stream)

    def _run(
        self, name: str, x: Any, out: Any, given: tuple[int, ...], wanted: tuple[int, ...],
        stream: int,
    ) -> Any:  # fmt: skip
        from numba import cuda

        host = isinstance(x, np.ndarray)
        device = getattr(getattr(x, "device", None), "index", None)
        with cuda.gpus[device] if isinstance(device, int) else nullcontext():
            on: Any = cuda.external_stream(stream) if stream else 0
            if host:
                data = cuda.to_device(np.ascontiguousarray(x, self._dtype), on)
            else:
                data = cuda.as_cuda_array(x)
            batch = tuple(data.shape[: data.ndim - len(given)])
            count = math.prod(batch)
            shape = (*batch, *wanted)
            made = cuda.device_array(shape, self._dtype, stream=on)
            if out is not None and not host:
                made = cuda.as_cuda_array(out)
            if math.prod(shape):
                flat = made.reshape((count, *self._four(wanted)))
                source = data.reshape((count, *self._four(given)))
                kernel = getattr(import_module("geometries.kernels.cuda_kernels"), name)
                blocks = -(-flat.size // _THREADS)
                kernel[blocks, _THREADS, on](*self._tables(device, on), source, flat)
            if not host:
                return made if out is None else out
            result = made.copy_to_host(stream=on)
            if on:
                on.synchronize()
            if out is None:
                return result
            out[...] = result
            return out

    def _four(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape with the one slice, or row, that images and sinograms leave out."""
        if not self._flat:
            return shape
        return (1, *shape) if shape == self._cells else (shape[0], 1, shape[1])

    def _tables(self, device: Any, on: Any) -> tuple[Any, ...]:
        """The scan on a device, staged once."""
        from numba import cuda

        if device not in self._staged:
            kept = [self._kinds, *self._host]
            # Arrays without elements have no address.
            kept = [part if part.size else np.zeros((1,) * part.ndim) for part in kept]
            self._staged[device] = tuple(cuda.to_device(part, on) for part in kept)
        return self._staged[device]


def _solid(geometry: Any, frames: np.ndarray, grid: Any) -> VolumeScan:
    """A planar scan as a scan of one slice by one row."""
    detector = geometry.detector.host
    parts = np.pad(frames, ((0, 0), (0, 0), (0, 1)))
    parallel = geometry.kind == "parallel"
    up = np.zeros_like(parts[:, 0])
    up[:, 2] = 1.0
    return VolumeScan(
        kind="parallel" if parallel else "cone",
        origins=parts[:, 0],
        directions=parts[:, 0],
        centers=parts[:, 1],
        u=parts[:, 2],
        v=up,
        shape=(1, detector.shape[0]),
        pitch=(1.0, detector.pitch[0]),
        offset=(0.0, detector.offset[0]),
        curvature=detector.curvature,
        grid_shape=(1, grid.shape[0], grid.shape[1]),
        spacing=(1.0, grid.spacing[0], grid.spacing[1]),
        center=(0.0, grid.center[0], grid.center[1]),
    )
