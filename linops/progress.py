"""A bar that shows how far a long computation is; tqdm draws it, and is imported on first use."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["bar"]


def bar(progress: Any, name: str, total: int, start: int = 0) -> Any:
    """A tqdm bar, or None where `progress` is False."""
    if progress is not True and progress is not False:
        raise ValueError(f"progress is {progress!r}; it is True or False")
    if not progress:
        return None
    try:
        tqdm = importlib.import_module("tqdm.auto").tqdm
    except ImportError as error:
        raise ImportError(
            "progress=True draws its bar with tqdm, which is not installed: "
            "pip install tqdm, or leave progress=False"
        ) from error
    return tqdm(total=total, initial=start, desc=name)
