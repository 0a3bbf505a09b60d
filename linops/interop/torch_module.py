"""Operators of ours as layers of a torch network."""

from __future__ import annotations

import functools
from operator import is_
from typing import Any

from linops.arguments import checked
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.structure import exchange, leaves

__all__ = ["to_torch_module"]


@checked
def to_torch_module(A: Operator) -> Any:
    """`A` as a `torch.nn.Module`: `module(x)` is `A(x)`, `module.adjoint(y)` is `A.H @ y`.

    Parameters
    ----------
    A
        Linear or not; `adjoint` is of linear ones. Batch and channel axes stand in front.

    Returns
    -------
    torch.nn.Module
        Gradients pass through the declared adjoint. Constants follow the input to its device.
        Arrays of `A` that are `torch.nn.Parameter` are parameters of the module, trained,
        moved, replaced and saved with it; nothing else is in its state dict. `module.operator` is
        the operator with the parameters of the moment. It pickles where `A` does.

    Raises
    ------
    ImportError
        Where torch is not installed.
    """
    return _layer()(A)


def __getattr__(name: str) -> Any:
    # The class by the name that pickles and copies of layers look for; it needs torch.
    if name == "OperatorLayer":
        return _layer()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@functools.cache
def _layer() -> Any:
    import torch

    class OperatorLayer(torch.nn.Module):  # type: ignore[misc]
        """An operator of linops whose trained arrays are parameters of the module.

        The operator is applied with what the parameters are at the time: whatever replaces them
        (`functional_call`, `load_state_dict(assign=True)`, a parametrization) takes their place.
        """

        def __init__(self, A: Operator) -> None:
            super().__init__()
            self._held: tuple[Any, ...] = ()
            seen: list[Any] = []
            for array in leaves(A):
                known = any(array is other for other in seen)
                if isinstance(array, torch.nn.Parameter) and not known:
                    self.register_parameter(f"array{len(seen)}", array)
                    seen.append(array)
            self._held, self._operator = tuple(seen), A

        @property
        def operator(self) -> Operator:
            """The operator with the parameters that the module has now."""
            current = tuple(getattr(self, f"array{k}") for k in range(len(self._held)))
            if all(map(is_, current, self._held)):
                return self._operator
            made = exchange(self._operator, self._held, current)
            if all(isinstance(array, torch.nn.Parameter) for array in current):
                self._held, self._operator = current, made
            return made

        def forward(self, x: Any) -> Any:
            return self.operator(x)

        def adjoint(self, y: Any) -> Any:
            operator = self.operator
            if not isinstance(operator, LinearOperator):
                raise TypeError(
                    f"{operator.name} is not linear and has no adjoint; its derivative at x "
                    "does: operator.jacobian(x).H"
                )
            return operator.H(y)

        def extra_repr(self) -> str:
            return repr(self._operator)

    OperatorLayer.__module__, OperatorLayer.__qualname__ = __name__, "OperatorLayer"
    return OperatorLayer
