"""Phantoms that have a name, within the unit circle or ball unless they say otherwise.

Sources: L. A. Shepp, B. F. Logan, IEEE Transactions on Nuclear Science 21 (1974) 21, with the
contrast of P. Toft, thesis (1996); A. C. Kak, M. Slaney, Principles of Computerized Tomographic
Imaging (1988), table 3.1, with the contrast of H. Yu, Y. Ye, G. Wang, SPIE 5535 (2004) 550;
Z. Yu et al., Physics in Medicine and Biology 57 (2012) N237.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from geometries.simulation.phantom import Ellipsoid, Phantom
from linops import numeric

__all__ = ["forbild_head", "random_ellipses", "resolution_chart", "shepp_logan"]

# Semi-axes, center, degrees; value of low contrast, value of high contrast.
_PLANE = (
    ((0.69, 0.92), (0, 0), 0, 2.0, 1.0),
    ((0.6624, 0.874), (0, -0.0184), 0, -0.98, -0.8),
    ((0.11, 0.31), (0.22, 0), -18, -0.02, -0.2),
    ((0.16, 0.41), (-0.22, 0), 18, -0.02, -0.2),
    ((0.21, 0.25), (0, 0.35), 0, 0.01, 0.1),
    ((0.046, 0.046), (0, 0.1), 0, 0.01, 0.1),
    ((0.046, 0.046), (0, -0.1), 0, 0.01, 0.1),
    ((0.046, 0.023), (-0.08, -0.605), 0, 0.01, 0.1),
    ((0.023, 0.023), (0, -0.606), 0, 0.01, 0.1),
    ((0.023, 0.046), (0.06, -0.605), 0, 0.01, 0.1),
)
_VOLUME = (
    ((0.69, 0.92, 0.9), (0, 0, 0), 0, 2.0, 1.0),
    ((0.6624, 0.874, 0.88), (0, 0, 0), 0, -0.98, -0.8),
    ((0.41, 0.16, 0.21), (-0.22, 0, -0.25), 108, -0.02, -0.2),
    ((0.31, 0.11, 0.22), (0.22, 0, -0.25), 72, -0.02, -0.2),
    ((0.21, 0.25, 0.5), (0, 0.35, -0.25), 0, 0.02, 0.2),
    ((0.046, 0.046, 0.046), (0, 0.1, -0.25), 0, 0.02, 0.2),
    ((0.046, 0.023, 0.02), (-0.08, -0.65, -0.25), 0, 0.01, 0.1),
    ((0.046, 0.023, 0.02), (0.06, -0.65, -0.25), 90, 0.01, 0.1),
    ((0.056, 0.04, 0.1), (0.06, -0.105, 0.625), 90, 0.02, 0.2),
    ((0.056, 0.056, 0.1), (0, 0.1, 0.625), 0, -0.02, -0.2),
)
_TIP, _TIP_WIDTH, _TIP_HEIGHT = -14.294530834372887, 0.443194085308632, 3.892760834372886
# Center, semi-axes, degrees, value; cuts as (distance, degrees). Lengths in centimetres.
_FORBILD = (
    ((-4.7, 4.3), (1.79989, 1.79989), 0, 0.010, ()),
    ((4.7, 4.3), (1.79989, 1.79989), 0, 0.010, ()),
    ((-1.08, -9), (0.4, 0.4), 0, 0.0025, ()),
    ((1.08, -9), (0.4, 0.4), 0, -0.0025, ()),
    ((0, 0), (9.6, 12), 0, 1.8, ()),
    ((0, 8.4), (1.8, 3.0), 0, -1.05, ()),
    ((1.9, 5.4), (0.41633, 1.17425), -31.07698, 0.75, ()),
    ((-1.9, 5.4), (0.41633, 1.17425), 31.07698, 0.75, ()),
    ((-4.3, 6.8), (1.8, 0.24), -30, 0.75, ()),
    ((4.3, 6.8), (1.8, 0.24), 30, 0.75, ()),
    ((0, -3.6), (1.8, 3.6), 0, -0.005, ()),
    ((6.39395, -6.39395), (1.2, 0.42), 58.1, 0.005, ()),
    ((0, 3.6), (2, 2), 0, 0.75, ((1.2, 0), (1.2, 180), (0.27884, 90), (0.27884, 270))),
    ((0, 9.6), (1.8, 3.0), 0, 1.8, ((0.60687, 90), (0.60687, 270), (0.2, 0), (0.2, 180))),
    ((0, 0), (9.0, 11.4), 0, 0.75, ((-2.605, 15), (-2.605, 165), (-10.71177, 90))),
    ((0, _TIP), (_TIP_WIDTH, _TIP_HEIGHT), 0, 0.75, ((_TIP + 10.71177, 270),)),
    ((0, 0), (9.0, 11.4), 0, -0.75, ()),
)


def shepp_logan(dims: int = 2, *, modified: bool = True) -> Phantom:
    """The head phantom of Shepp and Logan; in three dimensions that of Kak and Slaney.

    Parameters
    ----------
    dims
        2 or 3.
    modified
        Whether contrasts are raised, as most pictures of it have them; else the skull is 2 and
        inner contrasts are 0.01 and 0.02.
    """
    if dims not in (2, 3):
        raise ValueError(f"dims is {dims!r}; it is 2 or 3")
    return Phantom(
        Ellipsoid(high if modified else low, semi_axes, center, float(np.deg2rad(degrees)))
        for semi_axes, center, degrees, low, high in (_PLANE if dims == 2 else _VOLUME)
    )


def forbild_head() -> Phantom:
    """The FORBILD head phantom in its middle plane, without ears; lengths in centimetres.

    Values are densities relative to water; the skull reaches 9.6 along x and 12 along y.
    """
    return Phantom(
        Ellipsoid(
            value,
            semi_axes,
            center,
            float(np.deg2rad(degrees)),
            tuple((distance, float(np.deg2rad(turn))) for distance, turn in cuts),
        )
        for center, semi_axes, degrees, value, cuts in _FORBILD
    )


def random_ellipses(count: int, seed: int, *, dims: int = 2) -> Phantom:
    """A disc or ball of value 1 and radius 0.9 with `count` random ellipses or ellipsoids in it.

    Semi-axes are 0.05 to 0.3 and values -0.5 to 0.5; the first ones of a seed are the same for
    any count. For training sets.
    """
    count = numeric.whole("count", count, 0)
    if dims not in (2, 3):
        raise ValueError(f"dims is {dims!r}; it is 2 or 3")
    generator = np.random.default_rng(seed)
    shapes = [Ellipsoid(1.0, (0.9,) * dims, (0.0,) * dims)]
    for _ in range(count):
        semi_axes = generator.uniform(0.05, 0.3, dims)
        away = generator.standard_normal(dims)
        radius = generator.uniform() ** (1 / dims) * (0.88 - semi_axes.max())
        center = away / np.sqrt((away**2).sum()) * radius
        value, angle = generator.uniform(-0.5, 0.5), generator.uniform(0, np.pi)
        shapes.append(
            Ellipsoid(
                float(value), tuple(map(float, semi_axes)), tuple(map(float, center)), float(angle)
            )
        )
    return Phantom(shapes)


def resolution_chart(
    diameters: Sequence[float] = (0.02, 0.03, 0.04, 0.06, 0.08, 0.12),
) -> Phantom:
    """Rods in a disc, a sector for each diameter, as far apart as they are wide (Derenzo).

    Parameters
    ----------
    diameters
        Of the rods of each sector, counterclockwise from x; the disc has radius 1, value 1, and
        rods have value 2.
    """
    shapes = [Ellipsoid(1.0, (1.0, 1.0), (0.0, 0.0))]
    width = 2 * np.pi / len(diameters)
    for sector, diameter in enumerate(diameters):
        middle, step = (sector + 0.5) * width, 2.0 * diameter
        rows = int(np.ceil(1 / step)) + 1
        for row in range(rows):
            for k in range(-rows, rows + 1):
                out, aside = 0.1 + row * step * np.sqrt(0.75), (k + 0.5 * (row % 2)) * step
                edge = out * np.tan(width / 2) - diameter if width < np.pi else np.inf
                if abs(aside) <= edge and np.hypot(out, aside) + diameter / 2 <= 0.95:
                    c, s = np.cos(middle), np.sin(middle)
                    center = (float(c * out - s * aside), float(s * out + c * aside))
                    shapes.append(Ellipsoid(1.0, (diameter / 2,) * 2, center))
    return Phantom(shapes)
