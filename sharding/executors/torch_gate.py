"""Where ranks agree in the middle of what torch records: at the ends of every backward pass.

A derivative runs later than the call that recorded it, and exchanges as that call did. So what a
rank's block raises there is kept, the rank goes on with zeros, and at the next gate all raise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from linops.space import AnySpace
from linops.transforms.torch_function import apply_pair, recording
from sharding import agreement
from sharding.executors.torch_zeros import zeros

__all__ = ["Gate"]

Map = Callable[[Any], Any]


class Gate:
    """The gates of one recorded call, and what this rank has to tell there.

    Parameters
    ----------
    text
        What was called, to be equal on all ranks.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.error: Exception | None = None

    def agree_or_raise(self, what: str = "") -> None:
        """Go on where no rank has an error; else all raise."""
        error, self.error = self.error, None
        agreement.agree_or_raise(what + self.text, error)

    def through(self, x: Any) -> Any:
        """`x`; whatever derivative passes by it later agrees first."""
        if not recording(x):
            return x
        entered = False

        def passing(v: Any) -> Any:
            nonlocal entered
            if entered:
                self.agree_or_raise("derivative of ")
            entered = True
            return v.view_as(v)

        return apply_pair(x, passing, passing)

    def kept(self, hook: Map, source: AnySpace, target: AnySpace, where: str) -> Map:
        """`hook`, from one space to another, with zeros for its result where it raises."""

        def run(v: Any) -> Any:
            try:
                return hook(v)
            except Exception as error:
                self.keep(error, where)
                return zeros(v, source, target)

        return run

    def keep(self, error: Exception, where: str) -> None:
        """The others go on to the next exchange: this rank takes part, and tells at a gate."""
        error.add_note(where)
        self.error = self.error or error
