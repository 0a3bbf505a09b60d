#!/usr/bin/env python3
"""Where the axis of rotation really is, found by the gradient of a scan's misfit in its geometry.

Without arguments: discs in closed form, seen by a fan beam whose detector has slipped sideways.
With `--scan FILE` (.npz with `sinogram_u16` or `projections`, and angles) your own fan-beam scan:

    calibration.py --scan walnut.npz --reverse --source-to-axis 110 --source-to-detector 300 \\
        --pitch 0.35 --field 42

Two mistakes look almost alike in a fan beam: a detector that stands beside its place (`--fit
shift`) and an axis that does (`--fit axis`); fit the one you suspect. Both are printed as the
detector column in which the axis is seen, the rotation center. Each step reconstructs with the
geometry so far, then moves the one number against its gradient: reverse mode gives the slope of
|A x - y|^2 / 2, forward mode the curvature that scales the step. Lengths are in one unit.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from geometries import Detector, FanBeam, Grid, Projector, Trajectory, load_scan
from solvers import cgls

OVERSHOOT = 1.7  # the image gives way to part of every step


@dataclass(frozen=True)
class Setting:
    """A fan beam before calibration."""

    beam: FanBeam
    grid: Grid
    sinogram: np.ndarray

    def moved(self, fit: str, amount: float) -> Trajectory:
        """The scan with its detector, or source and detector, moved sideways."""
        frames = self.beam.trajectory
        step = amount * frames.u
        source = frames.sources + step if fit == "axis" else frames.sources
        return Trajectory("fan", source, frames.centers + step, frames.u, None, frames.detector)

    def column(self, fit: str, amount: float) -> float:
        """The detector column in which the axis is seen."""
        detector, far = self.beam.detector, 1.0
        if fit == "axis":
            far = float(np.mean(self.beam.source_to_detector / self.beam.source_to_axis))
        middle = (detector.shape[0] - 1) / 2
        return middle - (detector.offset[0] + amount * far) / detector.pitch[0]


def calibrate(
    setting: Setting, fit: str, steps: int, iterations: int, verbose: bool = True
) -> float:
    """How far detector (`"shift"`) or axis (`"axis"`) stand beside their place."""
    amount = 0.0
    for step in range(steps):
        A = Projector(setting.moved(fit, amount), setting.grid)
        image = cgls(A, setting.sinogram, iterations=iterations).solution
        misfit = A @ image - setting.sinogram
        frames = A.geometry.trajectory
        jacobian = A.geometry_operator(image).jacobian((frames.sources, frames.centers, frames.u))
        to_source, to_center, _ = jacobian.H @ misfit
        slope = np.sum(to_center * frames.u)
        still = np.zeros_like(frames.u)
        if fit == "axis":
            slope += np.sum(to_source * frames.u)
        along = jacobian @ (frames.u if fit == "axis" else still, frames.u, still)
        amount -= OVERSHOOT * slope / float(np.sum(along.astype(np.float64) ** 2))
        if verbose:
            error = np.linalg.norm(misfit) / np.linalg.norm(setting.sinogram)
            print(
                f"step {step:2}: misfit {error:.5f}, {fit} {amount:+.4f}, rotation center at "
                f"column {setting.column(fit, amount):.3f}"
            )
    return amount


def synthetic(fit: str, amount: float) -> Setting:
    """Discs seen with the given mistake, in closed form; the setting knows nothing of it."""
    angles = np.linspace(0, 2 * np.pi, 90, endpoint=False)
    beam = FanBeam(angles, Detector(96, 1.2), 90.0, 180.0)
    setting = Setting(beam, Grid((64, 64), 0.75), np.zeros((90, 96), "float32"))
    true = setting.moved(fit, amount)
    cells = true.points()
    way = cells - true.sources[:, None]
    way = way / np.linalg.norm(way, axis=-1, keepdims=True)
    sinogram = np.zeros(cells.shape[:2])
    for x, y, radius, value in (
        (2, -3, 17, 1.0),
        (-5, 4, 5, 0.7),
        (9, -8, 3, -0.6),
        (4, 8, 2, 1.0),
    ):
        back = np.array([x, y]) - true.sources[:, None]
        distance = back[..., 0] * way[..., 1] - back[..., 1] * way[..., 0]
        sinogram += value * 2 * np.sqrt(np.clip(radius**2 - distance**2, 0, None))
    return Setting(beam, setting.grid, sinogram.astype("float32"))


def measured(options: argparse.Namespace) -> Setting:
    """The user's scan, cells averaged in pairs where it has more than 256."""
    scan = load_scan(options.scan)
    sinogram = np.asarray(scan.projections, np.float64)
    if sinogram.ndim != 2 or scan.angles is None:
        raise SystemExit(f"{options.scan} holds no sinogram (view, col) with angles")
    if np.asarray(scan.projections).dtype.kind == "u":
        sinogram = sinogram / np.iinfo(scan.projections.dtype).max
    pitch = options.pitch
    if sinogram.shape[1] > 256:
        sinogram = sinogram[:, : sinogram.shape[1] // 2 * 2]
        sinogram = sinogram.reshape(len(sinogram), -1, 2).mean(2)
        pitch = 2 * pitch
    angles = -scan.angles if options.reverse else scan.angles
    detector = Detector(sinogram.shape[1], pitch)
    beam = FanBeam(angles, detector, options.source_to_axis, options.source_to_detector)
    grid = Grid((options.size, options.size), options.field / options.size)
    return Setting(beam, grid, sinogram.astype("float32"))


def main(arguments: Sequence[str] | None = None) -> float:
    """Run with command-line arguments; the amount that was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fit", choices=("shift", "axis"), default="shift")
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--iterations", type=int, default=8, help="of CGLS, each step")
    parser.add_argument("--true", type=float, default=1.0, help="the mistake that is simulated")
    parser.add_argument("--scan", help="your fan-beam scan")
    parser.add_argument("--reverse", action="store_true", help="angles run the other way")
    parser.add_argument("--source-to-axis", type=float, default=110.0)
    parser.add_argument("--source-to-detector", type=float, default=300.0)
    parser.add_argument("--pitch", type=float, default=0.35)
    parser.add_argument("--field", type=float, default=42.0, help="width of the image")
    parser.add_argument("--size", type=int, default=96, help="pixels across the image")
    options = parser.parse_args(arguments)
    setting = measured(options) if options.scan else synthetic(options.fit, options.true)
    found = calibrate(setting, options.fit, options.steps, options.iterations)
    if not options.scan:
        print(f"simulated {options.true:+.4f}, found {found:+.4f}")
    return found


if __name__ == "__main__":
    main()
