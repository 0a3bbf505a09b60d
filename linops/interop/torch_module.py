"""Operators of ours as layers of a torch network."""

from __future__ import annotations

import functools
from typing import Any

from linops.algebra.structure import leaves
from linops.arguments import checked
from linops.operator import LinearOperator, Operator

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
        moved and saved with it; nothing else is in its state dict. It pickles where `A` does.

    Raises
    ------
    ImportError
        Where torch is not installed.
    """
    return _layer()(A)


@functools.cache
def _layer() -> Any:
    import torch

    class OperatorLayer(torch.nn.Module):  # type: ignore[misc]
        """An operator of linops; `operator` is the operator itself."""

        def __init__(self, A: Operator) -> None:
            super().__init__()
            self.operator = A
            seen: list[Any] = []
            for array in leaves(A):
                known = any(array is other for other in seen)
                if isinstance(array, torch.nn.Parameter) and not known:
                    self.register_parameter(f"array{len(seen)}", array)
                    seen.append(array)

        def forward(self, x: Any) -> Any:
            return self.operator(x)

        def adjoint(self, y: Any) -> Any:
            if not isinstance(self.operator, LinearOperator):
                raise TypeError(
                    f"{self.operator.name} is not linear and has no adjoint; its derivative at x "
                    "does: operator.jacobian(x).H"
                )
            return self.operator.H(y)

        def extra_repr(self) -> str:
            return repr(self.operator)

        def __reduce__(self) -> Any:
            return to_torch_module, (self.operator,)

    return OperatorLayer
