"""A denoiser as a prior: for plug-and-play methods its proximal map, for RED its residual."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from linops import arrays
from linops.arrays import Array
from linops.errors import ShapeError
from linops.functionals.entries import name_axes
from linops.functionals.functional import Functional, plain
from linops.rule import Rule
from linops.space import Space

__all__ = ["Denoiser"]


class Denoiser(Functional):
    """A prior known by its denoiser D: `prox(x, t) = D(x)` and `gradient(x) = x - D(x)`.

    Parameters
    ----------
    function
        D: takes an element, gives one of its shape; a function, or a torch network, which gets
        tensors on its own device whatever the library of x.
    space
        The domain.
    batched
        Whether D takes leading batch axes; else it sees one element at a time.

    Notes
    -----
    The proximal map is one by declaration (plug-and-play: `fista`, `admm`), whatever the step: how
    much noise goes is D's business. The value `<x, x - D(x)> / 2` and the gradient are those of
    regularization by denoising (Romano, Elad, Milanfar, 2017); the one is the derivative of the
    other where D is locally homogeneous with a symmetric Jacobian, and only there.

    Raises
    ------
    ShapeError
        When it is applied, where D gives another shape.
    """

    def __init__(
        self, function: Callable[[Any], Any], space: Space, *, batched: bool = False
    ) -> None:
        space = plain(space, "Denoiser")
        super().__init__(space, Rule((name_axes(space, range(space.ndim)),), ((),)))
        self.function = function
        self.batched = batched

    def _value(self, x: Array) -> Any:
        return 0.5 * self._sum(arrays.real(arrays.conj(x) * self._gradient(x)))

    def _gradient(self, x: Array) -> Array:
        return x - self._denoise(x)

    def _prox(self, x: Array, step: Any) -> Array:
        if not self.batched and x.ndim > self.domain.members[0].ndim:
            xp = arrays.namespace(x)
            if not x.shape[0]:
                return xp.zeros_like(x)
            return xp.stack([self._prox(x[i], step) for i in range(x.shape[0])])
        return self._denoise(x)

    def _denoise(self, x: Array) -> Array:
        function, given = self.function, x
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(function, torch.nn.Module):
            held = next(function.parameters(), None)
            given = arrays.convert(x, torch.empty(0) if held is None else held)
        found = function(given)
        if not arrays.is_array(found) or tuple(found.shape) != tuple(x.shape):
            what = tuple(found.shape) if arrays.is_array(found) else type(found).__name__
            raise ShapeError(
                f"Denoiser: its function gives {what} of an element of shape {tuple(x.shape)}; "
                "it gives an array of the same shape"
            )
        if arrays.is_torch(found) and not arrays.is_torch(x):
            found = found.detach()
        found = arrays.cast(arrays.convert(found, x), self.domain.dtype)
        # What is given may not share memory with what came.
        return found + 0 if found is x else found
