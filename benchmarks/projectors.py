"""Projectors beside others, forward and adjoint: python -m benchmarks.projectors

The figure: issue "Projectors", section Speed. Four cases, float32, as many threads as there are
(peers thread as they please): par2, fan2 (512 x 512, 360 views, 736 bins), par3 (128^3, 128 views,
128 x 192), cone3 (128^3, 128 views, 192 x 192, magnification 1.5). Rounds alternate between all who
take part; a line gives the best time of each and its ratio to ours, so more than 1 is slower than
we are. A peer that is not installed, or has no such case, is skipped with the reason
(`benchmarks/requirements.txt` lists them). Peers have models and scales of their own: values are
not compared here but in the tests.

`--processor` counts processor time, of all threads, which says more on a machine that is in use.
`--exponents` fits how the cost grows with views, rows, columns and cells; `--startup` times the
first call of a fresh process with a warm cache, and a cold compilation; `--batch` a batch of 8.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from geometries import ConeBeam, Detector, FanBeam, Grid, ParallelBeam, Projector
from linops.compiled import pool

Pair = tuple[Callable[[], Any], Callable[[], Any]]


@dataclass(frozen=True)
class Case:
    """A scan: the grid's side, views, detector rows (0: planar) and columns."""

    name: str
    side: int
    views: int
    rows: int
    columns: int
    cells: tuple[int, ...] = ()

    @property
    def grid(self) -> tuple[int, ...]:
        return self.cells or (self.side,) * (3 if self.rows else 2)

    @property
    def angles(self) -> np.ndarray:
        turn = np.pi if self.name.startswith("par") else 2 * np.pi
        return np.linspace(0, turn, self.views, endpoint=False) + 1e-3

    @property
    def distances(self) -> tuple[float, float]:
        """From the source to the axis and to the detector."""
        axis = 300.0 * self.side / 128 if self.rows else 2.0 * self.side
        return axis, 1.5 * axis

    @property
    def pitch(self) -> float:
        return {"fan2": 1.5, "cone3": 1.3}.get(self.name, 1.0)

    def projector(self) -> Projector:
        shape = (self.rows, self.columns) if self.rows else (self.columns,)
        detector = Detector(shape, self.pitch)
        axis, far = self.distances
        if self.name.startswith("par"):
            beam: Any = ParallelBeam(self.angles, detector)
        elif self.rows:
            beam = ConeBeam(self.angles, detector, axis, far)
        else:
            beam = FanBeam(self.angles, detector, axis, far)
        return Projector(beam, Grid(self.grid), precision="fast")


CASES = [
    Case("par2", 512, 360, 0, 736),
    Case("fan2", 512, 360, 0, 736),
    Case("par3", 128, 128, 128, 192),
    Case("cone3", 128, 128, 192, 192),
]


class NotHere(Exception):
    """This peer does not take part in this case; the message says why."""


def ours(case: Case, batch: int = 0) -> Pair:
    """The compiled projector, on arrays in its own memory order."""
    A = case.projector()
    rng = np.random.default_rng(0)
    lead = (batch,) if batch else ()
    x = rng.random((*lead, *A.domain.shape), np.float32)
    y = rng.random((*lead, *A.codomain.shape), np.float32)
    if case.rows:  # what A @ x and A.H @ y return: z, and rows, innermost
        x = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, -3, -1)), -1, -3)
        y = np.swapaxes(np.ascontiguousarray(np.swapaxes(y, -1, -2)), -1, -2)
    return lambda: A @ x, lambda: A.H @ y


def astra(case: Case) -> Pair:
    """ASTRA's CPU projectors `line` and `line_fanflat`, one thread; a volume slice by slice."""
    import astra

    if case.name == "cone3":
        raise NotHere("no cone beam on the CPU")
    n, slices = case.side, case.rows or 1
    volume = astra.create_vol_geom(n, n)
    if case.name == "fan2":
        axis, far = case.distances
        scan = astra.create_proj_geom(
            "fanflat", case.pitch, case.columns, case.angles, axis, far - axis
        )
        projector = astra.create_projector("line_fanflat", scan, volume)
    else:
        scan = astra.create_proj_geom("parallel", case.pitch, case.columns, case.angles)
        projector = astra.create_projector("line", scan, volume)
    x = astra.data2d.create("-vol", volume, 1.0)
    y = astra.data2d.create("-sino", scan, 1.0)
    calls = []
    for name, target in (("FP", "VolumeDataId"), ("BP", "ReconstructionDataId")):
        config = astra.astra_dict(name)
        config.update({"ProjectorId": projector, "ProjectionDataId": y, target: x})
        made = astra.algorithm.create(config)
        calls.append(lambda made=made: [astra.algorithm.run(made) for _ in range(slices)])
    return calls[0], calls[1]


def skimage(case: Case) -> Pair:
    """scikit-image's radon and iradon, on their own detector of n bins."""
    from skimage.transform import iradon, radon

    if case.name != "par2":
        raise NotHere("parallel images only")
    degrees = np.rad2deg(case.angles)
    image = np.random.default_rng(0).random((case.side, case.side), np.float32)
    data = np.random.default_rng(0).random((case.side, case.views), np.float32)
    return (
        lambda: radon(image, degrees, circle=False),
        lambda: iradon(data, degrees, filter_name=None, circle=True),
    )


def stored(case: Case) -> Pair:
    """SciPy's product with the matrix as CSR, and with its transpose as CSR, one thread."""
    from scipy.sparse import csr_array, vstack

    if case.rows:
        raise NotHere("the matrix would not fit")
    A = case.projector()
    n = A.domain.size
    step = 64
    parts = []
    for first in range(0, n, step):
        some = A.columns(np.arange(first, first + step))
        parts.append(csr_array((some @ np.eye(step, dtype=np.float32)).reshape(step, -1)))
    transpose = vstack(parts, format="csr")
    matrix = transpose.T.tocsr()
    x = np.ones(n, np.float32)
    y = np.ones(A.codomain.size, np.float32)
    return lambda: matrix @ x, lambda: transpose @ y


def rtk(case: Case) -> Pair:
    """The Reconstruction Toolkit's Joseph projectors (itk-rtk)."""
    import itk
    from itk import RTK

    if case.name != "cone3":
        raise NotHere("set up for the cone alone")
    kind = itk.Image[itk.F, 3]
    geometry = RTK.ThreeDCircularProjectionGeometry.New()
    axis, far = case.distances
    for angle in np.rad2deg(case.angles):
        geometry.AddProjection(axis, far, float(angle))

    def image(size: list[int], pitch: list[float]) -> Any:
        source = RTK.ConstantImageSource[kind].New()
        source.SetOrigin([-0.5 * (n - 1) * p for n, p in zip(size, pitch, strict=True)])
        source.SetSpacing(pitch)
        source.SetSize(size)
        source.SetConstant(1.0)
        source.Update()
        made = source.GetOutput()
        made.DisconnectPipeline()
        return made

    volume = image([case.side] * 3, [1.0] * 3)
    data = image([case.columns, case.rows, case.views], [case.pitch, case.pitch, 1.0])

    def run(filter_of: Any, first: Any, second: Any) -> Callable[[], Any]:
        def call() -> None:
            made = filter_of[kind, kind].New()
            made.SetInput(0, first)
            made.SetInput(1, second)
            made.SetGeometry(geometry)
            made.InPlaceOff()  # or the first call takes the memory of its input along
            made.Update()

        return call

    return (
        run(RTK.JosephForwardProjectionImageFilter, data, volume),
        run(RTK.JosephBackProjectionImageFilter, volume, data),
    )


def leap(case: Case) -> Pair:
    """LEAP's separable footprint projectors on the CPU (leapct)."""
    from leapctype import tomographicModels

    model = tomographicModels()
    model.set_gpu(-1)
    degrees = np.rad2deg(case.angles).astype(np.float32)
    rows = case.rows or 1
    center = 0.5 * (rows - 1), 0.5 * (case.columns - 1)
    shape = (case.views, rows, case.columns, case.pitch, case.pitch, *center, degrees)
    if case.name.startswith("par"):
        model.set_parallelbeam(*shape)
    elif case.rows:
        model.set_conebeam(*shape, *case.distances)
    else:
        model.set_fanbeam(*shape, *case.distances)
    model.set_volume(case.side, case.side, case.side if case.rows else 1, 1.0, 1.0)
    x = np.ones((case.side if case.rows else 1, case.side, case.side), np.float32)
    y = np.ones((case.views, rows, case.columns), np.float32)
    return lambda: model.project(y, x), lambda: model.backproject(y, x)


def parallelproj(case: Case) -> Pair:
    """parallelproj's Joseph projectors, C with OpenMP."""
    import parallelproj

    A = case.projector()
    frames = A.geometry.trajectory
    columns = (np.arange(case.columns) - 0.5 * (case.columns - 1)) * case.pitch
    rows = (np.arange(case.rows or 1) - 0.5 * ((case.rows or 1) - 1)) * case.pitch
    shape = (case.views, rows.size, columns.size, 3)

    def solid(points: Any) -> np.ndarray:
        flat = np.asarray(points)
        return flat if flat.shape[1] == 3 else np.pad(flat, ((0, 0), (0, 1)))

    ends = solid(frames.centers)[:, None, None] + np.zeros(shape)
    ends = ends + columns[None, None, :, None] * solid(frames.u)[:, None, None]
    ends = ends + rows[None, :, None, None] * np.array([0.0, 0.0, 1.0])
    if frames.sources is None:
        ahead = solid(frames.directions)[:, None, None] * 2.0 * case.side
        starts, ends = ends - ahead, ends + ahead
    else:
        starts = np.broadcast_to(solid(frames.sources)[:, None, None], shape)
    starts, ends = (np.ascontiguousarray(p, np.float32) for p in (starts, ends))
    grid = (case.side, case.side, case.side if case.rows else 1)
    x, y = np.ones(grid, np.float32), np.ones(shape[:3], np.float32)
    origin = np.array([-0.5 * (n - 1) for n in grid], np.float32)
    size = np.ones(3, np.float32)
    return (
        lambda: parallelproj.joseph3d_fwd(starts, ends, x, origin, size),
        lambda: parallelproj.joseph3d_back(starts, ends, grid, origin, size, y),
    )


def mbirjax(case: Case) -> Pair:
    """MBIRJAX's separable footprint projectors, on JAX's CPU backend."""
    import mbirjax  # before JAX: it sets up one device a core

    import jax  # isort: skip

    if case.name == "fan2":
        raise NotHere("set up for parallel and cone beams")
    shape = (case.views, case.rows or 1, case.columns)
    angles = case.angles.astype(np.float32)
    if case.name.startswith("par"):
        model = mbirjax.ParallelBeamModel(shape, angles)
    else:
        axis, far = case.distances
        model = mbirjax.ConeBeamModel(shape, angles, source_detector_dist=far, source_iso_dist=axis)
        model.set_params(delta_det_channel=case.pitch, delta_det_row=case.pitch, delta_voxel=1.0)
    model.set_params(recon_shape=(case.side, case.side, case.side if case.rows else 1))
    x = jax.numpy.ones(model.get_params("recon_shape"), "float32")
    y = jax.numpy.ones(shape, "float32")
    return (
        lambda: jax.block_until_ready(model.forward_project(x)),
        lambda: jax.block_until_ready(model.back_project(y)),
    )


def diffct(case: Case) -> Pair:
    """diffct needs CUDA for its kernels; its torch fallback on the CPU takes minutes here."""
    import diffct  # noqa: F401

    raise NotHere("its CPU path needs a smaller size than these (18 s on par2)")


PEERS = [astra, skimage, stored, rtk, leap, parallelproj, mbirjax, diffct]


def compare(case: Case, peers: list[Callable[[Case], Pair]], rounds: int) -> None:
    print(f"{case.name}: grid {case.grid}, {case.views} views, {case.rows} x {case.columns} cells")
    runs: list[tuple[str, Pair]] = [("linops", ours(case))]
    for peer in peers:
        try:
            pair = peer(case)
            for call in pair:
                call()
            runs.append((peer.__name__, pair))
        except NotHere as reason:
            print(f"  {peer.__name__:14} skipped: {reason}")
        except ImportError as reason:
            print(f"  {peer.__name__:14} skipped: not installed ({reason})")
        except Exception as reason:  # a peer may fail in any way; the table goes on without it
            print(f"  {peer.__name__:14} skipped: {type(reason).__name__}: {reason}")
    best = interleaved([call for _, pair in runs for call in pair], rounds)
    for k, (name, _) in enumerate(runs):
        f, a = best[2 * k], best[2 * k + 1]
        print(
            f"  {name:14} forward {f * 1e3:9.1f} ms  x {f / best[0]:6.1f}"
            f"   adjoint {a * 1e3:9.1f} ms  x {a / best[1]:6.1f}   adjoint / forward {a / f:.2f}",
            flush=True,
        )


clock = time.perf_counter


def interleaved(calls: list[Callable[[], Any]], rounds: int) -> list[float]:
    """The best time of each call, in alternating rounds after one that warms up."""
    best = [math.inf] * len(calls)
    for turn in range(rounds + 1):
        for k, call in enumerate(calls):
            begin = clock()
            call()
            if turn:
                best[k] = min(best[k], clock() - begin)
    return best


def exponents(case: Case, rounds: int) -> None:
    """Fit cost ~ n^p as one extent after the other doubles; 1 is linear, less is better."""
    half = replace(case, views=case.views // 2)
    changes = {"views": (half, case)}
    if case.rows:
        changes["rows"] = (replace(case, rows=case.rows // 2), case)
    changes["columns"] = (replace(case, columns=case.columns // 2), case)
    less = replace(case, cells=tuple(n // 2 for n in case.grid))
    changes["cells"] = (less, case)
    print(f"{case.name}: exponents of the cost")
    for name, (small, large) in changes.items():
        best = interleaved([*ours(small), *ours(large)], rounds)
        grown = math.log(math.prod(large.grid) / math.prod(small.grid)) if name == "cells" else 0
        grown = grown or math.log(2)
        found = [math.log(best[2 + k] / best[k]) / grown for k in (0, 1)]
        print(f"  {name:8} forward {found[0]:5.2f}   adjoint {found[1]:5.2f}", flush=True)


def batches(case: Case, rounds: int) -> None:
    """A batch of 8 against 8 calls."""
    best = interleaved([*ours(case), *ours(case, 8)], rounds)
    print(
        f"{case.name}: a batch of 8 costs {best[2] / best[0]:.2f} single forward calls, "
        f"{best[3] / best[1]:.2f} single adjoint calls"
    )


_ONCE = """
import time
start = time.process_time(), time.perf_counter()
from benchmarks.projectors import Case
import numpy as np
A = Case({name!r}, 16, 8, {rows}, 16).projector()
middle = time.process_time(), time.perf_counter()
A.H @ (A @ np.ones(A.domain.shape, np.float32))
end = time.process_time(), time.perf_counter()
print(end[0] - middle[0], end[1] - middle[1])
"""


def startup(case: Case) -> None:
    """First forward and adjoint of a fresh process, cold and then with the cache that leaves."""
    code = _ONCE.format(name=case.name, rows=min(case.rows, 16))
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
        for state in ("cold", "warm"):
            done = subprocess.run(
                [sys.executable, "-c", code], env=environment, capture_output=True, text=True
            )
            with contextlib.suppress(ValueError):
                processor, wall = (float(word) for word in done.stdout.split())
                print(
                    f"{case.name}: first forward and adjoint, {state} cache: "
                    f"{processor:.2f} s of processor time, {wall:.2f} s"
                )
            if done.returncode:
                print(done.stderr[-500:])


def cases_of(names: list[str], size: int) -> Iterator[Case]:
    for case in CASES:
        if case.name in names:
            yield replace(
                case,
                side=case.side // size,
                views=case.views // size,
                rows=case.rows // size,
                columns=case.columns // size,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", default=[case.name for case in CASES])
    parser.add_argument("--peers", nargs="*", default=[peer.__name__ for peer in PEERS])
    parser.add_argument("--size", type=int, default=1, help="divide every extent by this")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--exponents", action="store_true")
    parser.add_argument("--startup", action="store_true")
    parser.add_argument("--batch", action="store_true")
    parser.add_argument("--processor", action="store_true")
    options = parser.parse_args()
    if options.processor:
        global clock
        clock = time.process_time
    with contextlib.suppress(OSError):
        print(f"{pool.workers()} threads, load {os.getloadavg()[0]:.1f} before the first call")
    for case in cases_of(options.cases, options.size):
        if options.exponents:
            exponents(case, options.rounds)
        elif options.startup:
            startup(case)
        elif options.batch:
            batches(case, options.rounds)
        else:
            compare(case, [p for p in PEERS if p.__name__ in options.peers], options.rounds)


if __name__ == "__main__":
    main()
