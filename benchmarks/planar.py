"""Planar projectors beside others, interleaved in one process: python -m benchmarks.planar

Prints milliseconds and the ratio to the fast kernels. ASTRA's CPU projectors, scikit-image and
SciPy's product with the stored matrix take part where they are installed. All run on
512 x 512 cells, 360 views, 736 bins, float32; `--size` divides all three. `--processor` counts
processor time, which says more on a machine that is in use (with LINOPS_NUM_THREADS=1 thread for
thread).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numba import njit

from geometries.kernels import planar
from geometries.kernels.planar_rays import Beam, ray, split
from linops.compiled import pool

Cases = dict[str, Callable[[], Any]]


def scan_of(kind: str, n: int, views: int, columns: int) -> planar.PlanarScan:
    """A circular scan of unit cells; the fan stands 2 n away and magnifies 1.5 times."""
    turn = np.pi if kind == "parallel" else 2 * np.pi
    t = np.linspace(0, turn, views, endpoint=False)
    e_u = np.stack([np.cos(t), np.sin(t)], 1)
    e_r = np.stack([-np.sin(t), np.cos(t)], 1)
    none = np.zeros_like(e_u)
    if kind == "parallel":
        frames, pitch = (none, e_r, none, e_u), 1.0
    else:
        frames, pitch = (-2.0 * n * e_r, none, 1.0 * n * e_r, e_u), 1.5
    return planar.PlanarScan(
        kind, *frames, columns, pitch, 0.0, None, (n, n), (1.0, 1.0), (0.0, 0.0)
    )


def ours(kind: str, n: int, views: int, columns: int, image: Any, data: Any) -> Iterator[Any]:
    """Our kernels in three precisions and on one thread."""
    scan = scan_of(kind, n, views, columns)
    for precision in ("fast", "float32", "float64"):
        dtype = np.float64 if precision == "float64" else np.float32
        x, y = image[None].astype(dtype), data[None].astype(dtype)
        ax, aty = np.empty_like(y), np.empty_like(x)

        def forward(x: Any = x, ax: Any = ax, precision: str = precision) -> None:
            planar.forward(scan, x, ax, precision=precision)

        def adjoint(y: Any = y, aty: Any = aty, precision: str = precision) -> None:
            planar.adjoint(scan, y, aty, precision=precision)

        def alone(call: Callable[[], None]) -> Callable[[], None]:
            def run() -> None:
                with pool.limit(1):
                    call()

            return run

        yield precision, forward, adjoint
        if precision == "fast":
            yield "fast, 1 thread", alone(forward), alone(adjoint)


def astra(kind: str, n: int, views: int, columns: int, image: Any, data: Any) -> Iterator[Any]:
    """ASTRA's CPU projectors, through data objects made once."""
    try:
        import astra
    except ImportError:
        return
    turn = np.pi if kind == "parallel" else 2 * np.pi
    angles = np.linspace(0, turn, views, endpoint=False)
    volume = astra.create_vol_geom(n, n)
    if kind == "parallel":
        scan = astra.create_proj_geom("parallel", 1.0, columns, angles)
        names = ("line", "linear")
    else:
        scan = astra.create_proj_geom("fanflat", 1.5, columns, angles, 2.0 * n, 1.0 * n)
        names = ("line_fanflat",)
    for name in names:
        projector = astra.create_projector(name, scan, volume)
        x = astra.data2d.create("-vol", volume, image)
        y = astra.data2d.create("-sino", scan, data)
        calls = []
        for algorithm, target in (("FP", "VolumeDataId"), ("BP", "ReconstructionDataId")):
            config = astra.astra_dict(algorithm)
            config["ProjectorId"] = projector
            config["ProjectionDataId"] = y
            config[target] = x
            made = astra.algorithm.create(config)
            calls.append(lambda made=made: astra.algorithm.run(made))
        yield f"astra {name}", *calls


def skimage(n: int, views: int, columns: int, image: Any, data: Any) -> Iterator[Any]:
    """scikit-image on its own detector of n bins."""
    try:
        from skimage.transform import iradon, radon
    except ImportError:
        return
    degrees = np.linspace(0, 180, views, endpoint=False)
    square = data[:, :n].T.copy()
    yield (
        "skimage radon, iradon",
        lambda: radon(image, degrees, circle=False),
        lambda: iradon(square, degrees, filter_name=None, circle=True),
    )


def stored(kind: str, n: int, views: int, columns: int, image: Any, data: Any) -> Iterator[Any]:
    """The product with the matrix stored as CSR, one thread; its adjoint with the transpose's."""
    try:
        from scipy.sparse import csr_array
    except ImportError:
        return
    beam = scan_of(kind, n, views, columns).beam
    starts = np.zeros(views * columns + 1, np.int64)
    cells, lengths = entries(beam, views, columns, starts)
    matrix = csr_array((lengths, cells, starts), shape=(views * columns, n * n))
    transpose = matrix.T.tocsr()
    x, y = image.ravel(), data.ravel()
    yield "SciPy CSR, 1 thread", lambda: matrix @ x, lambda: transpose @ y


@njit
def entries(beam: Beam, views: int, columns: int, starts: Any) -> Any:
    """Cells and lengths of all rays; `starts` gets where each ray's begin."""
    nx, ny = beam.shape
    cells = np.empty(2 * views * columns * max(nx, ny), np.int32)
    lengths = np.empty(len(cells), np.float32)
    n = 0
    for row in range(views * columns):
        axis, back, slope, step, spread, low, high = ray(beam, row // columns, row % columns)
        slabs, width = (ny, nx) if axis == 0 else (nx, ny)
        for j in range(slabs):
            first, one, two = split(back, slope, step, spread, low, high, j, slabs / 2)
            for place, length in ((int(first), one), (int(first) + 1, two)):
                if length > 0.0 and 0 <= place < width:
                    cells[n] = j * nx + place if axis == 0 else place * nx + j
                    lengths[n] = length
                    n += 1
        starts[row + 1] = n
    return cells[:n].copy(), lengths[:n].copy()


def batch(kind: str, n: int, views: int, columns: int, image: Any, data: Any) -> Iterator[Any]:
    """Eight images in one call, "fast"."""
    scan = scan_of(kind, n, views, columns)
    x, y = np.stack([image] * 8), np.stack([data] * 8)
    ax, aty = np.empty_like(y), np.empty_like(x)
    yield (
        "fast, 8 images",
        lambda: planar.forward(scan, x, ax),
        lambda: planar.adjoint(scan, y, aty),
    )


def compare(
    title: str, cases: list[tuple[str, Any, Any]], seconds: float, clock: Callable[[], float]
) -> None:
    """Print medians, ratios to the first case and adjoint to forward, rounds interleaved."""
    print(title)
    print(f"  {'':24}{'forward ms':>12}{'ratio':>8}{'adjoint ms':>12}{'ratio':>8}{'adj/fwd':>8}")
    times: dict[tuple[str, int], list[float]] = {
        (name, i): [] for name, *_ in cases for i in (0, 1)
    }
    start = time.perf_counter()
    warm = False
    while not warm or not times[cases[0][0], 0] or time.perf_counter() - start < seconds:
        for name, *calls in cases:
            for i, call in enumerate(calls):
                before = clock()
                call()
                times[name, i].append(clock() - before)
        if not warm:
            warm, start = True, time.perf_counter()
            times = {key: [] for key in times}
    median = {key: statistics.median(values) for key, values in times.items()}
    first = cases[0][0]
    for name, *_ in cases:
        f, a = median[name, 0], median[name, 1]
        print(
            f"  {name:24}{f * 1e3:12.1f}{f / median[first, 0]:8.2f}"
            f"{a * 1e3:12.1f}{a / median[first, 1]:8.2f}{a / f:8.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=1, help="divide 512, 360, 736 by this")
    parser.add_argument("--seconds", type=float, default=10.0, help="of measurement a table")
    parser.add_argument("--stored", action="store_true", help="also SciPy CSR: takes 4 GB")
    parser.add_argument("--ours", action="store_true", help="no other library")
    parser.add_argument("--processor", action="store_true", help="time of all threads")
    arguments = parser.parse_args()
    clock = time.process_time if arguments.processor else time.perf_counter
    n, views, columns = (count // arguments.size for count in (512, 360, 736))
    rng = np.random.default_rng(0)
    image = rng.random((n, n)).astype(np.float32)
    data = rng.random((views, columns)).astype(np.float32)
    for kind in ("parallel", "fan"):
        sizes = (n, views, columns, image, data)
        cases = [*ours(kind, *sizes), *batch(kind, *sizes)]
        if not arguments.ours:
            cases += astra(kind, *sizes)
            if kind == "parallel":
                cases += skimage(*sizes)
        if arguments.stored:
            cases += stored(kind, *sizes)
        title = f"{kind}: {n} x {n} cells, {views} views, {columns} bins, {pool.workers()} threads"
        compare(title, cases, arguments.seconds, clock)


if __name__ == "__main__":
    main()
