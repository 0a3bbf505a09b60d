#!/usr/bin/env python3
"""A volume and projections on disk, projected slab by slab: neither has to fit into memory.

`A.block(axis, start, stop)` is the operator on a part of an axis, made without copying anything.
Slices are contracted by a cone beam, so the slabs' projections add up; views are produced, so each
band of them is written once. Peak memory is a slab and a band, whatever the sizes of the files.
"""

from __future__ import annotations

import argparse
import tempfile
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from geometries import ConeBeam, Detector, Grid, Projector


def main(arguments: Sequence[str] | None = None) -> tuple[int, int, float]:
    """Returns bytes on disk, the peak of memory, and the difference from a call in one piece."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--slab", type=int, default=8, help="slices in memory at a time")
    parser.add_argument("--band", type=int, default=6, help="views in memory at a time")
    options = parser.parse_args(arguments)
    n = options.size
    beam = ConeBeam(np.arange(n // 2) * (4 * np.pi / n), Detector((n, n), 1.5), 3.0 * n, 4.5 * n)
    A = Projector(beam, Grid((n, n, n)))
    with tempfile.TemporaryDirectory() as folder:
        volume = np.lib.format.open_memmap(
            Path(folder) / "volume.npy", "w+", np.float32, A.domain.shape
        )
        data = np.lib.format.open_memmap(
            Path(folder) / "projections.npy", "w+", np.float32, A.codomain.shape
        )
        rng = np.random.default_rng(0)
        for k in range(n):
            volume[k] = rng.random((n, n), np.float32)

        A.block("view", 0, 1).block("z", 0, 1) @ np.zeros((1, n, n), "float32")  # compiles
        tracemalloc.start()
        for i in range(0, len(data), options.band):
            views = slice(i, min(i + options.band, len(data)))
            band = A.block("view", views.start, views.stop)
            total = np.zeros(band.codomain.shape, np.float32)
            for k in range(0, n, options.slab):
                slices = slice(k, min(k + options.slab, n))
                total += band.block("z", slices.start, slices.stop) @ np.asarray(volume[slices])
            data[views] = total
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()

        held = volume.nbytes + data.nbytes
        print(f"{held / 2**20:.1f} MiB on disk, {peak / 2**20:.1f} MiB of arrays at most")
        whole = A @ np.asarray(volume)
        gap = float(np.abs(whole - data).max() / whole.max())
        print(f"largest difference from one piece: {gap:.1e} of the maximum")
        del volume, data
    return held, peak, gap


if __name__ == "__main__":
    main()
