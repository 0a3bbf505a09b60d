"""How far an image is from the truth, in the measures of scikit-image."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linops import arrays
from linops.errors import ShapeError

__all__ = ["ImageQuality", "image_quality"]


class ImageQuality(NamedTuple):
    """What `image_quality` returns.

    Attributes
    ----------
    psnr
        Peak signal to noise ratio, in decibels.
    ssim
        Mean structural similarity, 1 for equal images.
    nrmse
        `|image - truth| / |truth|`.
    rmse
        Root of the mean square of the differences.
    """

    psnr: float
    ssim: float
    nrmse: float
    rmse: float


def image_quality(image: Any, truth: Any, data_range: float | None = None) -> ImageQuality:
    """Compare an image or a volume with the truth.

    Parameters
    ----------
    image, truth
        Real arrays of one shape, of any library, at least 7 cells along each axis.
    data_range
        Largest difference that values have; by default that of the truth.

    Raises
    ------
    ImportError
        Where scikit-image is not installed: `pip install scikit-image`.
    ShapeError
        Where shapes differ.
    """
    try:
        from skimage import metrics
    except ImportError as error:
        raise ImportError(
            "image_quality takes its measures from scikit-image: pip install scikit-image"
        ) from error
    found, wanted = (np.asarray(arrays.to_numpy(x), "float64") for x in (image, truth))
    if found.shape != wanted.shape:
        raise ShapeError(f"image and truth have one shape, got {found.shape} and {wanted.shape}")
    span = float(np.ptp(wanted)) if data_range is None else float(data_range)
    same = bool((found == wanted).all())
    return ImageQuality(
        np.inf if same else float(metrics.peak_signal_noise_ratio(wanted, found, data_range=span)),
        float(metrics.structural_similarity(wanted, found, data_range=span)),
        float(metrics.normalized_root_mse(wanted, found)),
        float(np.sqrt(metrics.mean_squared_error(wanted, found))),
    )
