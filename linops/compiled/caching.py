"""Functions compiled by Numba, kept on disk, or in memory where no folder can be written.

Numba keeps what it compiled beside the source file, or under the user's home. An installation that
cannot be written, used without a home (containers, jobs on a grid), has neither: functions are then
compiled anew in each process, which one warning tells. So are those whose folder is full, or was
taken away.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from numba import njit

__all__ = ["kept_njit"]

_told: list[str] = []


def kept_njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit(cache=True, ...)` as a decorator, for which a cache is no condition.

    Warns
    -----
    RuntimeWarning
        Once in a process, where compiled code cannot be kept.
    """

    def decorated(function: Callable[..., Any]) -> Any:
        try:
            compiled = njit(function, cache=True, **options)
        except (RuntimeError, OSError) as error:  # "no locator available", or its folder vanished
            _tell(error)
            return njit(function, **options)
        cache = compiled._cache
        save, load = cache.save_overload, cache.load_overload

        def save_overload(*of: Any) -> None:
            try:
                save(*of)
            except OSError as error:
                _tell(error)

        def load_overload(*of: Any) -> Any:
            try:
                return load(*of)
            except OSError as error:
                _tell(error)
                return None

        cache.save_overload, cache.load_overload = save_overload, load_overload
        return compiled

    return decorated


def _tell(error: BaseException) -> None:
    if _told:
        return
    _told.append(str(error))
    warnings.warn(
        f"compiled code is not kept on disk and will be compiled again in every process ({error}): "
        "set the environment variable NUMBA_CACHE_DIR to a folder that can be written",
        RuntimeWarning,
        stacklevel=2,
    )
