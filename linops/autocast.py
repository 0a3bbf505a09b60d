"""torch's mixed precision stops where an operator begins: its dtype is the one it declares.

Under `torch.autocast` products of matrices and convolutions run in half precision. An operator, its
adjoint and a functional keep their own arithmetic, as a layer under `custom_fwd(cast_inputs=...)`
does; what comes in halved is cast up, and gradients go back in the dtype of what came in. Nothing
here imports torch.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

__all__ = ["device", "off", "own_precision"]

_F = TypeVar("_F", bound=Callable[..., Any])


def device(x: Any) -> str | None:
    """The kind of device of a tensor, or of the first of several, whose autocast is on."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if isinstance(x, (tuple, list)):
        x = x[0] if x else None
    if not isinstance(x, torch.Tensor):
        return None
    kind: str = x.device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return None
    return kind


def off(kind: str) -> Any:
    """A context without autocast on that kind of device."""
    return sys.modules["torch"].autocast(kind, enabled=False)


def own_precision(method: _F) -> _F:
    """A method of something that declares its dtype, of an array, run without autocast."""

    @functools.wraps(method)
    def wrapped(self: Any, x: Any, *arguments: Any, **options: Any) -> Any:
        kind = device(x)
        if kind is None:
            return method(self, x, *arguments, **options)
        with off(kind):
            return method(self, x, *arguments, **options)

    return cast(_F, wrapped)
