#!/usr/bin/env python3
"""From a CT slice to its scan and back, by five methods; `make demo` runs this.

Without arguments: the real slice that pydicom ships (without pydicom the phantom of Shepp and
Logan), scanned in fan beam with photon noise, then FBP, CGLS, SIRT, TV and VCD, a table of their
errors and one picture.

With `--scan FILE` (.npz, .npy, HDF5 in the layout of Data Exchange, TIFF) the same five methods
reconstruct your own sinogram:

    reconstruct_slice.py --scan tooth.h5 --center auto
    reconstruct_slice.py --scan nut.npy --geometry fan --reverse --pitch 0.35 --offset 0.27 \\
        --source-to-axis 110 --source-to-detector 300 --size 256

Where the file holds flats (or `--flat` gives some), counts are corrected and their logarithm taken.
Flags take angles in degrees and lengths in any one unit; `docs/conventions.md` says which way the
angles turn and what the offset means.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import linops as lo
from geometries import Detector, FanBeam, Grid, ParallelBeam, Projector, fbp, shepp_logan
from linops.functionals import QGGMRF
from solvers import cgls, sirt, tv, vcd

WATER = 0.0195  # attenuation of water per mm, at about 70 keV
SMALL = 1e-6


@dataclass(frozen=True)
class Task:
    """What all methods get: a scan, and the scale that makes its images values about 1."""

    title: str
    projector: Projector
    sinogram: np.ndarray  # line integrals (view, col)
    weights: np.ndarray  # inverse variance of each of them
    scale: float  # attenuation per length of the value 1
    absolute_noise: bool  # whether `weights` are inverse variances, or only in proportion to them
    truth: np.ndarray | None = None  # in units of `scale`


@dataclass(frozen=True)
class Outcome:
    """One method's image, in units of `Task.scale`, and what it took."""

    method: str
    settings: str
    image: np.ndarray
    seconds: float


# --- the two kinds of scan -------------------------------------------------------------------


def simulated(photons: float, views: int, seed: int) -> Task:
    """The slice that pydicom ships, scanned: `photons` a detector cell leave the tube.

    Each cell adds up the photons of four rays through it, so the data are not made by the very
    operator that reconstructs them. Without pydicom it is the phantom of Shepp and Logan.
    """
    phantom = None
    try:
        from pydicom import dcmread
        from pydicom.data import get_testdata_file

        file = dcmread(get_testdata_file("CT_small.dcm", download=False))
        hu = file.pixel_array * float(file.RescaleSlope) + float(file.RescaleIntercept)
        water = np.clip(1 + hu / 1000, 0, None).astype("float32")
        grid = Grid(water.shape, spacing=[float(length) for length in file.PixelSpacing])
    except ImportError:
        phantom, grid = shepp_logan().scaled(42.0), Grid((128, 128), 84 / 128)
        water = phantom.image(grid)

    angles = np.arange(views) * (2 * np.pi / views)
    columns, pitch, rays = 256, 1.0, 4
    scanner = {"source_to_axis": 500.0, "source_to_detector": 1000.0}
    fan = FanBeam(angles, Detector(columns, pitch), **scanner)
    fine = FanBeam(angles, Detector(columns * rays, pitch / rays), **scanner)

    if phantom is None:
        exact = Projector(fine, grid) @ (WATER * water)
    else:
        exact = WATER * phantom.line_integrals(fine)
    arriving = photons * np.exp(-exact).reshape(views, columns, rays).mean(axis=-1)
    counts = np.random.default_rng(seed).poisson(arriving)
    # A cell that saw nothing is taken for half a photon: its logarithm stays finite.
    sinogram = -np.log(np.maximum(counts, 0.5) / photons).astype("float32")
    weights = np.maximum(counts, 0.5).astype("float32")
    title = f"{views} views of {columns} cells, {photons:g} photons a cell"
    return Task(title, Projector(fan, grid), sinogram, weights, WATER, True, water)


def measured(options: argparse.Namespace) -> Task:
    """The user's own scan, corrected, with the geometry that the flags give."""
    from geometries.scans.center import center_to_offset, find_center
    from geometries.scans.files import load_scan
    from geometries.scans.preprocess import line_integrals

    scan = load_scan(options.scan, rows=options.row)
    flats = scan.flats if options.flat is None else number_or_file(options.flat)
    darks = scan.darks if options.dark is None else number_or_file(options.dark)
    sinogram = scan.projections
    if flats is not None and not options.logged:
        sinogram = line_integrals(sinogram, flats, 0.0 if darks is None else darks).data
    sinogram = np.asarray(sinogram, "float32") * np.float32(options.gain)
    if not np.isfinite(sinogram).all():
        sys.exit(f"{options.scan}: the sinogram holds values that are not finite")
    views, columns = sinogram.shape

    if options.angles is not None:
        angles = np.deg2rad(number_or_file(options.angles))
    elif scan.angles is not None:
        angles = scan.angles
    else:
        turn = options.turn or (360.0 if options.geometry == "fan" else 180.0)
        angles = np.deg2rad(np.arange(views) * (turn / views))
    angles = np.deg2rad(options.first) + (-angles if options.reverse else angles)

    offset = options.offset
    if options.center is not None:
        center = options.center
        if center == "auto":
            if options.geometry == "fan":
                sys.exit("--center auto serves parallel scans; give --offset to a fan scan")
            center = find_center(sinogram, angles)
            print(f"rotation axis found at column {center:.2f}")
        offset = center_to_offset(float(center), columns, options.pitch)
    detector = Detector(columns, options.pitch, offset)
    magnification = 1.0
    if options.geometry == "fan":
        a, d = options.source_to_axis, options.source_to_detector
        if a is None or d is None:
            sys.exit("--geometry fan needs --source-to-axis and --source-to-detector")
        geometry: Any = FanBeam(angles, detector, a, d)
        magnification = d / a
    else:
        geometry = ParallelBeam(angles, detector)
    size = options.size or columns
    pixel = options.pixel or columns * options.pitch / magnification / size
    A = Projector(geometry, Grid((size, size), spacing=pixel))
    scale = float(np.percentile(fbp(A, sinogram), 99)) or 1.0
    weights = np.exp(-np.clip(sinogram, 0, 12)).astype("float32")
    title = f"{Path(options.scan).name}, {views} views of {columns} cells"
    return Task(title, A, sinogram, weights, scale, False)


def home(path: str) -> Path:
    """A path in which `~` is the home folder."""
    return Path(path).expanduser()


def number_or_file(word: str) -> Any:
    """A number, or the numbers in a `.npy` or text file."""
    try:
        return float(word)
    except ValueError:
        file = home(word)
        return np.load(file) if file.suffix == ".npy" else np.loadtxt(file)


# --- the five methods ------------------------------------------------------------------------


def methods(task: Task) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Name, settings and call of each method; every call returns an image about 1."""
    B = task.scale * task.projector  # from images about 1 to line integrals
    y = task.sinogram
    noise, weights = noise_of(task)
    white = lo.Diagonal(np.sqrt(weights)) @ B  # residuals of variance 1
    white_y = np.sqrt(weights) * y
    level = float(np.sqrt(y.size))  # what is left of the data when only noise is left

    yield "FBP", "ramp filter", lambda: fbp(task.projector, y) / np.float32(task.scale)
    yield "CGLS", "stops at the noise", lambda: cgls(white, white_y, iterations=60, atol=level)
    yield "SIRT", "stops at the noise", lambda: sirt(B, y, iterations=150, atol=noise)
    # From here on the prior competes with a misfit of about 1 a measurement, whatever the units.
    yield (
        "TV",
        "Adam, from FBP",
        lambda: tv(
            B,
            y,
            x0=start(task),
            data_weights=weights,
            weight=2.5,
            learning_rate=0.01,
            iterations=50,
        ),
    )
    prior = QGGMRF(B.domain, sigma_x=0.01)
    yield (
        "VCD",
        "QGGMRF prior, from FBP",
        lambda: vcd(B, y, prior, x0=start(task), weights=weights, bounds=(0, None), iterations=5),
    )


def start(task: Task) -> np.ndarray:
    """The FBP without its negative values, about 1."""
    return np.maximum(fbp(task.projector, task.sinogram) / np.float32(task.scale), 0)


def noise_of(task: Task) -> tuple[float, np.ndarray]:
    """Expected norm of the noise, and inverse variances.

    Where only their proportions are known, the level is read from second differences along the
    detector, which an object changes little and noise changes much. It is taken for at least a
    hundredth of the data: real scanners are no better described than that by line integrals.
    """
    if task.absolute_noise:
        return float(np.sqrt((1 / task.weights).sum())), task.weights
    curl = np.diff(task.sinogram * np.sqrt(task.weights), n=2, axis=1)
    sigma = 1.4826 * float(np.median(abs(curl))) / np.sqrt(6)
    sigma = max(sigma, 0.01 * float(np.percentile(task.sinogram, 99)), SMALL)
    weights = task.weights / np.float32(sigma**2)
    return float(np.sqrt((1 / weights).sum())), weights


def compile_kernels(task: Task) -> None:
    """What first calls of kernels cost, before the clock starts; later runs find it kept."""
    print("compiling kernels (the first run only) ...", file=sys.stderr, flush=True)
    few = task.projector.columns(np.arange(4))
    for A in (task.projector, few):
        A.H @ (A @ A.domain.zeros())
    fbp(task.projector, task.sinogram)


def reconstruct(task: Task) -> list[Outcome]:
    """All methods on one scan."""
    compile_kernels(task)
    outcomes = []
    for name, settings, call in methods(task):
        begin = time.perf_counter()
        answer = call()
        seconds = time.perf_counter() - begin
        image = np.asarray(getattr(answer, "solution", answer))
        if hasattr(answer, "iterations"):
            settings = f"{settings}, {answer.iterations} iterations"
        outcomes.append(Outcome(name, settings, image, seconds))
    return outcomes


# --- what a person sees ----------------------------------------------------------------------


def similarity(image: np.ndarray, truth: np.ndarray, window: int = 7) -> float:
    """Structural similarity (Wang et al. 2004), uniform window, range of the truth, mean."""

    def mean(values: np.ndarray) -> np.ndarray:
        patches = np.lib.stride_tricks.sliding_window_view(values, (window, window))
        return patches.mean(axis=(-2, -1))

    a, b = image.astype("float64"), truth.astype("float64")
    span = b.max() - b.min()
    bias = window**2 / (window**2 - 1)  # sample variances, as usual
    mean_a, mean_b = mean(a), mean(b)
    var_a = bias * (mean(a * a) - mean_a**2)
    var_b = bias * (mean(b * b) - mean_b**2)
    cov = bias * (mean(a * b) - mean_a * mean_b)
    c1, c2 = (0.01 * span) ** 2, (0.03 * span) ** 2
    ratio = (2 * mean_a * mean_b + c1) * (2 * cov + c2)
    return float((ratio / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))).mean())


def error_hu(image: np.ndarray, truth: np.ndarray) -> float:
    """Root mean square error in Hounsfield units, of images in units of water."""
    return 1000 * float(np.sqrt(np.mean((image.astype("float64") - truth) ** 2)))


def misfit(task: Task, image: np.ndarray) -> float:
    """`|A x - y| / |y|`."""
    rest = task.projector @ (np.float32(task.scale) * image.astype("float32")) - task.sinogram
    return float(np.linalg.norm(rest) / max(np.linalg.norm(task.sinogram), SMALL))


def report(task: Task, outcomes: list[Outcome]) -> str:
    """The table: errors where the truth is known, else what is left of the data."""
    heads = ("RMSE HU", "SSIM") if task.truth is not None else ("misfit", "")
    lines = [task.title, "", f"{'method':<8}{'seconds':>9}{heads[0]:>10}{heads[1]:>8}   settings"]
    for done in outcomes:
        if task.truth is not None:
            figures = f"{error_hu(done.image, task.truth):>10.1f}"
            figures += f"{similarity(done.image, task.truth):>8.3f}"
        else:
            figures = f"{misfit(task, done.image):>10.4f}{'':>8}"
        lines.append(f"{done.method:<8}{done.seconds:>9.2f}{figures}   {done.settings}")
    return "\n".join(lines)


def draw(task: Task, outcomes: list[Outcome], path: Path) -> None:
    """Slice, sinogram, five reconstructions and one map of errors in one picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ink, paper, muted = "#e8e6e3", "#111417", "#9aa0a6"
    last = outcomes[-1]
    height, width = task.projector.grid.extent
    frame = (-width / 2, width / 2, height / 2, -height / 2)
    if task.truth is not None:
        grey: dict[str, Any] = {"vmin": -400, "vmax": 600}
        to_shown: Callable[[np.ndarray], np.ndarray] = lambda image: 1000 * (image - 1)  # noqa: E731
        best = min(outcomes, key=lambda done: error_hu(done.image, task.truth))
    else:
        low, high = np.percentile(last.image, [1, 99.7])
        grey = {"vmin": low, "vmax": high}
        to_shown = np.asarray
        best = last
    figure, axes = pyplot.subplots(
        2, 5, figsize=(15.6, 8.2), layout="constrained", facecolor=paper,
        width_ratios=[1, 1, 1, 1, 0.035],
    )  # fmt: skip
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.08)
    figure.suptitle(task.title, color=ink, fontsize=15, x=0.012, ha="left")

    def panel(axis: Any, title: str, note: str = "", strong: bool = False) -> None:
        axis.set_box_aspect(1)
        axis.set_xticks([])
        axis.set_yticks([])
        for spine in axis.spines.values():
            spine.set_visible(False)
        weight = "bold" if strong else "normal"
        axis.set_title(title, color=ink, fontsize=13, loc="left", weight=weight)
        axis.set_title(note, color=muted, fontsize=10.5, loc="right")

    def picture(axis: Any, image: np.ndarray, **colours: Any) -> Any:
        return axis.imshow(image, extent=frame, interpolation="nearest", **colours)

    flat = list(axes[:, :4].flat)
    if task.truth is not None:
        shown = picture(flat[0], to_shown(task.truth), cmap="gray", **grey)
        panel(flat[0], "slice", f"{width:.0f} x {height:.0f} mm")
    else:
        shown = picture(flat[0], to_shown(outcomes[-2].image - outcomes[0].image), cmap="gray")
        panel(flat[0], f"{outcomes[-2].method} - {outcomes[0].method}", "their difference")
    flat[1].imshow(task.sinogram, aspect="auto", cmap="magma", interpolation="nearest")
    panel(flat[1], "sinogram", "views down, cells across")
    for axis, done in zip(flat[2:7], outcomes, strict=True):
        shown = picture(axis, to_shown(done.image), cmap="gray", **grey)
        note = f"{done.seconds:.2f} s"
        if task.truth is not None:
            note = f"{error_hu(done.image, task.truth):.0f} HU rms, {note}"
        panel(axis, done.method, note, strong=done is best)
    if task.truth is not None:
        wrong = 1000 * (best.image - task.truth)
        label = f"{best.method} - slice"
    else:
        wrong = task.projector @ (np.float32(task.scale) * last.image) - task.sinogram
        label = f"A {last.method} - data"
    limit = float(np.percentile(abs(wrong), 99.5)) or SMALL
    kept = {"extent": frame} if task.truth is not None else {"aspect": "auto"}
    errors = flat[7].imshow(
        wrong, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest", **kept
    )
    panel(flat[7], "error", label)
    for mappable, axis, unit in ((shown, axes[0, 4], "HU"), (errors, axes[1, 4], "HU")):
        bar = figure.colorbar(mappable, cax=axis)
        bar.outline.set_visible(False)
        axis.tick_params(colors=muted, labelsize=9)
        axis.set_title(unit if task.truth is not None else "", color=muted, fontsize=9)
    figure.savefig(path, dpi=110, facecolor=paper)
    pyplot.close(figure)


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(
        description="Reconstruct one slice by five methods; without --scan, a simulated scan.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--output", default="reconstruction.png", type=home, help="the picture")
    made = parser.add_argument_group("the simulated scan")
    made.add_argument("--photons", type=float, default=20000, help="a cell, in the open beam")
    made.add_argument("--views", type=int, default=240)
    made.add_argument("--seed", type=int, default=1, help="of the noise")
    own = parser.add_argument_group("your own scan")
    own.add_argument("--scan", help=".npz, .npy, .h5 (Data Exchange) or .tif: (view, [row,] col)")
    own.add_argument("--row", type=int, default=0, help="detector row of a stack of radiographs")
    own.add_argument("--flat", help="open beam, a number or a file, where the scan has no flats")
    own.add_argument("--dark", help="no beam, likewise")
    own.add_argument("--logged", action="store_true", help="no correction although it has flats")
    own.add_argument("--gain", type=float, default=1.0, help="factor on the line integrals")
    own.add_argument("--angles", help="file of degrees, one a view, where the scan has none")
    own.add_argument("--turn", type=float, help="degrees of all views, where there are no angles")
    own.add_argument("--first", type=float, default=0.0, help="degrees added to all angles")
    own.add_argument("--reverse", action="store_true", help="angles count against our sense")
    own.add_argument("--geometry", choices=("parallel", "fan"), default="parallel")
    own.add_argument("--pitch", type=float, default=1.0, help="of detector cells")
    own.add_argument("--offset", type=float, default=0.0, help="u0, of the detector's middle")
    own.add_argument("--center", help="column of the axis in place of --offset, or 'auto'")
    own.add_argument("--source-to-axis", type=float)
    own.add_argument("--source-to-detector", type=float)
    own.add_argument("--size", type=int, help="pixels along a side of the image; default: columns")
    own.add_argument("--pixel", type=float, help="size of a pixel; default: the view's width")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    options = arguments(words)
    if options.scan:
        task = measured(options)
    else:
        task = simulated(options.photons, options.views, options.seed)
    outcomes = reconstruct(task)
    print(report(task, outcomes))
    draw(task, outcomes, options.output)
    print(f"\nwritten: {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
