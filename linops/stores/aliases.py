"""Whether two stores are one: memory that overlaps, one file under two names, links.

A target that is read while it is written gives numbers that depend on the order of blocks. Parts
of one array that do not meet, such as `a[::2]` and `a[1::2]`, are two.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from linops import arrays
from linops.errors import ShapeError
from linops.stores.protocol import Extent

__all__ = ["file_key", "require_apart", "require_injective"]

_WORK = 1_000_000
_COUNTED = 1 << 20


def file_key(path: Any) -> tuple[Any, ...]:
    """What a file or folder is, whatever it is called: links, hard and symbolic, have one key."""
    try:
        found = os.stat(path)
    except OSError:
        return ("path", str(Path(path).resolve()))
    return ("file", found.st_dev, found.st_ino)


def require_apart(target: Any, source: Any, names: tuple[str, str]) -> None:
    """Raise a `ShapeError` where what is written into one store may be read from the other."""
    reason = _describe_overlap(target, source)
    if reason:
        raise ShapeError(
            f"{names[0]}, {target!r}, and {names[1]}, {source!r}, {reason}: blocks would be read "
            "after they were overwritten; write to a store of its own"
        )


def require_injective(store: Any, name: str) -> None:
    """Raise a `ShapeError` where entries of an array share memory with each other."""
    held = _memory(store)
    if held is not None and _meets_itself(held):
        raise ShapeError(
            f"{name}, {store!r}, overlaps itself (strides {held.strides}): entries share memory; "
            "write to an array of its own, e.g. a copy"
        )


def _describe_overlap(a: Any, b: Any) -> str:
    if a is b:
        return "are the same object"
    inner = [getattr(store, "array", None) for store in (a, b)]
    if inner[0] is not None and inner[0] is inner[1]:
        return "wrap the same array"
    left, right = _memory(a), _memory(b)
    if left is not None and right is not None:
        try:
            if np.shares_memory(left, right, max_work=_WORK):  # type: ignore[arg-type]
                return "share memory"
        except np.exceptions.TooHardError:
            return "may share memory"
    elif arrays.is_torch(inner[0]) and arrays.is_torch(inner[1]):
        if arrays.may_share_memory(*inner):
            return "share memory"
    for x in _extents(a):
        for y in _extents(b):
            if x.key == y.key and x.start < y.stop and y.start < x.stop:
                return "are the same file"
    return ""


def _extents(store: Any) -> Any:
    """Of a user's own store too, where it says by `path` what file it is."""
    if callable(getattr(store, "extents", None)):
        return store.extents()
    path = getattr(store, "path", None)
    return [Extent(file_key(path))] if isinstance(path, (str, os.PathLike)) else ()


def _memory(store: Any) -> np.ndarray | None:
    """The NumPy array that shows a store's memory, None where there is none."""
    held = getattr(store, "array", None)
    if callable(getattr(store, "memory", None)):
        held = store.memory()
    if held is not None and arrays.is_torch(held):
        try:
            return np.asarray(held.detach().numpy())
        except (RuntimeError, TypeError):  # on another device, or a dtype that NumPy lacks
            return None
    return np.asarray(held) if arrays.is_numpy(held) else None


def _meets_itself(x: np.ndarray) -> bool:
    axes = sorted((abs(s), n) for s, n in zip(x.strides, x.shape, strict=True) if n > 1)
    if x.size == 0:
        return False
    reach = x.itemsize
    for stride, n in axes:
        if stride < reach:
            break
        reach += stride * (n - 1)
    else:
        return False
    if axes[0][0] == 0 or x.size > _COUNTED:
        return True
    # Strides that interlock: entries are told apart one by one.
    starts = np.zeros(1, np.int64)
    for stride, n in axes:
        starts = (starts[:, None] + stride * np.arange(n)).ravel()
    starts.sort()
    return bool((np.diff(starts) < x.itemsize).any())
