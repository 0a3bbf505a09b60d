"""What every 3-D kernel must hold, as functions of (kernel, scan) that the test files call."""

from __future__ import annotations

import numpy as np
from volume_reference import (
    ANGLES,
    PRECISIONS,
    cell_matrix,
    cone,
    dense,
    mismatch,
    parallel,
    run_adjoint,
    run_forward,
)

from linops.compiled import pool

TOLERANCE = {"fast": 4e-5, "float32": 4e-5, "float64": 2e-11}
EPS = {np.float32: float(np.finfo(np.float32).eps), np.float64: float(np.finfo(np.float64).eps)}


def arrays(scan, dtype, batch=2, seed=0):
    rng = np.random.default_rng(seed)
    nz, ny, nx = scan.grid_shape
    volume = rng.standard_normal((batch, ny, nx, nz)).astype(dtype)
    projections = rng.standard_normal((batch, scan.views, scan.shape[1], scan.shape[0]))
    return volume, projections.astype(dtype)


def check_matrix(kernel, scan):
    """Forward and adjoint matrices of all precisions are the chord lengths, exact zeros too."""
    nz, ny, nx = scan.grid_shape
    right = cell_matrix(scan).reshape(-1, ny * nx * nz)
    assert np.count_nonzero(right) > 0
    for precision, dtype in PRECISIONS:
        forward, adjoint = dense(kernel, scan, dtype, precision)
        bound = TOLERANCE[precision]
        np.testing.assert_allclose(forward, right, rtol=bound, atol=bound, err_msg=precision)
        np.testing.assert_allclose(adjoint, right, rtol=bound, atol=bound, err_msg=precision)
        if precision != "fast":
            # a weight is one number, and rounds differently only where a row's length multiplies
            eps = EPS[dtype]
            np.testing.assert_allclose(adjoint, forward, rtol=2 * eps, atol=2 * eps)
        assert not forward[~right.any(axis=1)].any()


def check_dot(kernel, scan):
    """The residual of the dot test: Gaussians, y = A x, and every kind of basis vector."""
    rng = np.random.default_rng(5)
    for precision, dtype in PRECISIONS:
        eps = EPS[dtype]

        def residual(x, y, precision=precision, eps=eps):
            return mismatch(
                x,
                y,
                run_forward(kernel, scan, x, precision=precision),
                run_adjoint(kernel, scan, y, precision=precision),
                eps,
            )

        x, y = arrays(scan, dtype, 1)
        assert residual(x, y) <= 16, precision
        assert residual(x, run_forward(kernel, scan, x, precision=precision)) <= 16, precision
        sharp = 64 if precision == "fast" else 16
        for _ in range(20):
            unit = np.zeros_like(x)
            unit.flat[rng.integers(unit.size)] = 1
            image = run_forward(kernel, scan, unit, precision=precision)
            assert residual(unit, image) <= sharp, precision
            ray = np.zeros_like(y)
            ray.flat[rng.integers(ray.size)] = 1
            image = run_adjoint(kernel, scan, ray, precision=precision)
            assert residual(image, ray) <= sharp, precision


def check_blocks(kernel, scan):
    """Any part of views, rows, columns (forward) or cells (adjoint) has the bits of the whole."""
    nz, ny, nx = scan.grid_shape
    rows, cols = scan.shape
    for precision, dtype in PRECISIONS:
        x, y = arrays(scan, dtype)
        whole = run_forward(kernel, scan, x, precision=precision)
        chosen = np.array([scan.views - 1, 0, -1])
        part = np.full((2, 3, cols + 1, rows + 2), np.nan, dtype)
        kernel.forward(
            scan, x, part, first_row=-1, first_column=1, views=chosen, precision=precision
        )
        wanted = np.zeros_like(part)
        wanted[:, :2, : cols - 1, 1 : rows + 1] = whole[:, chosen[:2], 1:, :]
        np.testing.assert_array_equal(part, wanted, err_msg=precision)

        back = run_adjoint(kernel, scan, y, precision=precision)
        part = np.full((2, ny + 1, nx - 1, nz + 2), np.nan, dtype)
        kernel.adjoint(scan, y, part, first_cell=(-1, -1, 1), precision=precision)
        wanted = np.zeros_like(part)
        wanted[:, 1:, :, 1 : nz + 1] = back[:, :, 1:]
        np.testing.assert_array_equal(part, wanted, err_msg=precision)


def check_parts_add_up(kernel, scan):
    """Contracted parts (cells forward, rays in the adjoint) add up to the whole."""
    rows, cols = scan.shape
    nz, ny, nx = scan.grid_shape
    x, y = arrays(scan, np.float64)
    whole = run_forward(kernel, scan, x, precision="float64")
    total = np.zeros_like(whole)
    for z, y0, x0 in np.ndindex(2, 2, 2):
        cut = (slice(None), *(
            slice(n // 2, None) if half else slice(n // 2)
            for n, half in ((ny, y0), (nx, x0), (nz, z))
        ))  # fmt: skip
        first = (z * (nz // 2), y0 * (ny // 2), x0 * (nx // 2))
        local = np.ascontiguousarray(x[cut])
        total += run_forward(kernel, scan, local, first_cell=first, precision="float64")
    np.testing.assert_allclose(total, whole, rtol=1e-12, atol=1e-12)

    back = run_adjoint(kernel, scan, y, precision="float64")
    total = np.zeros_like(back)
    for r0, r1 in ((0, rows // 2), (rows // 2, rows)):
        for c0, c1 in ((0, cols // 2), (cols // 2, cols)):
            local = np.ascontiguousarray(y[:, :, c0:c1, r0:r1])
            total += run_adjoint(
                kernel, scan, local, first_row=r0, first_column=c0, precision="float64"
            )
    np.testing.assert_allclose(total, back, rtol=1e-12, atol=1e-12)


def check_inert(kernel, scan):
    """Planes beyond the grid and detector are never read: they may hold NaN."""
    for precision, dtype in PRECISIONS:
        x, y = arrays(scan, dtype)
        wide = np.pad(x, ((0, 0), (1, 2), (2, 1), (1, 1)), constant_values=np.nan)
        got = run_forward(kernel, scan, wide, first_cell=(-1, -1, -2), precision=precision)
        want = run_forward(kernel, scan, x, precision=precision)
        np.testing.assert_array_equal(got, want, err_msg=precision)
        wide = np.pad(y, ((0, 0), (0, 1), (1, 2), (2, 1)), constant_values=np.nan)
        got = run_adjoint(
            kernel,
            scan,
            wide,
            first_row=-2,
            first_column=-1,
            views=np.r_[np.arange(scan.views), -1],
            precision=precision,
        )
        want = run_adjoint(kernel, scan, y, precision=precision)
        np.testing.assert_array_equal(got, want, err_msg=precision)


def check_nan(kernel, scan):
    """A NaN reaches the rays through its cell, or the cells on its ray, and no others."""
    nz, ny, nx = scan.grid_shape
    right = cell_matrix(scan).reshape(-1, ny * nx * nz)
    rng = np.random.default_rng(3)
    for precision, dtype in PRECISIONS:
        x, y = arrays(scan, dtype, 1)
        rays = np.flatnonzero(right.any(axis=1))
        for cell, ray in zip(
            rng.integers(right.shape[1], size=4), rng.choice(rays, 4), strict=True
        ):
            spoilt = x.copy()
            spoilt.flat[cell] = np.nan
            lost = np.isnan(run_forward(kernel, scan, spoilt, precision=precision)).ravel()
            assert not lost[right[:, cell] == 0].any(), precision
            assert lost[right[:, cell] > 1e-3].all(), precision
            spoilt = y.copy()
            spoilt.flat[ray] = np.nan
            lost = np.isnan(run_adjoint(kernel, scan, spoilt, precision=precision)).ravel()
            assert not lost[right[ray] == 0].any(), precision
            assert lost[right[ray] > 1e-3].all(), precision


def check_threads(kernel, scan):
    """One, two and three threads give the same bits; a batch is the loop over its members."""
    for precision, dtype in PRECISIONS:
        x, y = arrays(scan, dtype)
        results = []
        for threads in (1, 2, 3):
            with pool.limit(threads, exceed=True):
                results.append(
                    (
                        run_forward(kernel, scan, x, precision=precision),
                        run_adjoint(kernel, scan, y, precision=precision),
                    )
                )
        for other in results[1:]:
            np.testing.assert_array_equal(other[0], results[0][0])
            np.testing.assert_array_equal(other[1], results[0][1])
        for b in range(2):
            one = run_forward(kernel, scan, x[b : b + 1].copy(), precision=precision)
            np.testing.assert_array_equal(one[0], results[0][0][b])
            one = run_adjoint(kernel, scan, y[b : b + 1].copy(), precision=precision)
            np.testing.assert_array_equal(one[0], results[0][1][b])
        empty = run_forward(kernel, scan, x[:0].copy(), precision=precision)
        assert empty.shape == (0, *results[0][0].shape[1:])
        assert run_adjoint(kernel, scan, y[:0].copy(), precision=precision).shape[0] == 0


def check_subsets(kernel, scan):
    """Columns of the volume alone: the same as a volume that is zero elsewhere, and its rows."""
    nz, ny, nx = scan.grid_shape
    index = np.array([nx + 2, -1, 0, ny * nx - 1, 2 * nx])
    real = index >= 0
    for precision, dtype in PRECISIONS:
        bound = TOLERANCE[precision]
        x, y = arrays(scan, dtype)
        values = np.full((2, index.size, nz), np.nan, dtype)
        volume = np.zeros_like(x).reshape(2, ny * nx, nz)
        values[:, real] = x.reshape(2, ny * nx, nz)[:, index[real]]
        volume[:, index[real]] = values[:, real]
        out = np.full_like(y, np.nan)
        kernel.forward_columns(scan, values, index, out, precision=precision)
        want = run_forward(kernel, scan, volume.reshape(x.shape), precision=precision)
        np.testing.assert_allclose(out, want, rtol=bound, atol=bound, err_msg=precision)

        back = np.full_like(values, np.nan)
        kernel.adjoint_columns(scan, y, index, back, precision=precision)
        want = run_adjoint(kernel, scan, y, precision=precision).reshape(2, ny * nx, nz)
        np.testing.assert_allclose(
            back[:, real], want[:, index[real]], rtol=bound, atol=bound, err_msg=precision
        )
        assert not back[:, ~real].any()

        # a range of slices, one beyond the grid on either side, and of the detector
        rows, cols = scan.shape
        wide = np.pad(values, ((0, 0), (0, 0), (1, 1)), constant_values=np.nan)
        part = np.full((2, scan.views, cols - 1, rows + 1), np.nan, dtype)
        kernel.forward_columns(
            scan, wide, index, part, first_slice=-1, first_row=-1, first_column=1,
            precision=precision,
        )  # fmt: skip
        np.testing.assert_array_equal(part[..., 1:], out[:, :, 1:], err_msg=precision)
        assert not part[..., 0].any()


def check_gram(kernel, scan):
    """Sums over rays of w a^2."""
    nz, ny, nx = scan.grid_shape
    right = cell_matrix(scan).reshape(-1, ny * nx * nz) ** 2
    for precision, dtype in PRECISIONS[1:]:
        weights = np.abs(arrays(scan, dtype)[1])
        out = np.full((2, ny, nx, nz), np.nan, dtype)
        kernel.gram_diagonal(scan, weights, out)
        want = weights.reshape(2, -1) @ right
        bound = TOLERANCE[precision]
        np.testing.assert_allclose(out.reshape(2, -1), want, rtol=bound, atol=bound)
        kernel.gram_diagonal(scan, np.ones_like(weights), out)
        np.testing.assert_allclose(
            out.reshape(2, -1), np.broadcast_to(right.sum(0), want.shape), rtol=bound, atol=bound
        )


def check_worked_values(kernel, scan, count, total, frobenius, norms):
    """A row of the requirements' table of right values."""
    matrix = dense(kernel, scan, np.float64, "float64")[0]
    assert np.count_nonzero(matrix > 1e-12) == count
    assert abs(matrix.sum() - total) < 2e-11 * total
    assert abs(np.linalg.norm(matrix) - frobenius) < 2e-11 * frobenius

    def data(size, phase):
        k = np.arange(size)
        return np.sin(0.713 * k + phase) + 0.2 * np.cos(0.317 * k)

    nz, ny, nx = scan.grid_shape
    rows, cols = scan.shape
    x = data(nz * ny * nx, 0).reshape(nz, ny, nx).transpose(1, 2, 0)
    y = data(scan.views * rows * cols, 0.31).reshape(scan.views, rows, cols).transpose(0, 2, 1)
    ax = run_forward(kernel, scan, np.ascontiguousarray(x)[None], precision="float64")
    aty = run_adjoint(kernel, scan, np.ascontiguousarray(y)[None], precision="float64")
    got = np.linalg.norm(ax), np.sum(ax * y), np.linalg.norm(aty)
    np.testing.assert_allclose(got, norms, rtol=2e-11)


# the worked values of three scans of a volume
WORKED = [
    (
        "cone",
        cone(ANGLES, (2, 3), (0.67, 0.91), (0.11, -0.17)),
        84,
        48.216806120684,
        5.782344791866,
        (4.644809803905, 4.376734756940, 2.692899735548),
    ),
    (
        "helix",
        cone((-4.1, 0.7, 3.9), (2, 3), (0.67, 0.91), (0.11, -0.17), advance=1.7),
        85,
        45.933775786372,
        5.465412426010,
        (3.611021343724, 0.811904433001, 3.872045613651),
    ),
    (
        "parallel",
        parallel(ANGLES, (2, 4), (1.3, 0.71), (0.0, 0.13)),
        96,
        55.061138914883,
        6.124338855482,
        (4.673866872659, -3.002730204010, 6.542078775918),
    ),
]
