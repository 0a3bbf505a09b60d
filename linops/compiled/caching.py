"""Functions compiled by Numba, kept on disk, or in memory where no folder can be written.

Numba keeps what it compiled beside the source file, or under the user's home. An installation that
cannot be written, used without a home (containers, jobs on a grid), has neither: functions are then
compiled anew in each process, which one warning tells. So are those whose folder is full, or was
taken away.

Processes that share a folder do not disturb each other. Numba numbers its files in the order in
which they come, and names one in the index before it is written: of two processes that compile one
function for two types at one time, one can write its code under the other's name, and after an
edit of the source the code of before it can be loaded. Here a file is named by what it holds, and
is written first.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from typing import Any

from numba import njit
from numba.core.caching import IndexDataCacheFile

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
        cache = getattr(compiled, "_cache", None)
        if cache is None:  # NUMBA_DISABLE_JIT: `njit` hands the function itself back
            return compiled
        cache._cache_file = _Files.beside(cache._cache_file)
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


class _Files(IndexDataCacheFile):  # type: ignore[misc]
    """An index and the files of code that it names, by digests of types, machine and source."""

    @classmethod
    def beside(cls, other: IndexDataCacheFile) -> _Files:
        """The same files of Numba's, under this rule."""
        found = cls.__new__(cls)
        found.__dict__.update(other.__dict__)
        return found

    def save(self, key: Any, data: Any) -> None:
        named = repr((key, self._source_stamp, self._version)).encode()
        name = self._data_name(int(hashlib.sha256(named).hexdigest()[:15], 16))
        self._save_data(name, data)
        # What another process adds meanwhile is left out, and compiled again by whoever needs it.
        overloads = self._load_index()
        if overloads.get(key) != name:
            self._save_index({**overloads, key: name})


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
