"""A lowered operator on this rank's plain tensors, for `torch.func`."""

from __future__ import annotations

import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

from linops import arrays
from linops.errors import PlacementError, ShapeError
from linops.space import ProductSpace
from linops.transforms.torch_function import recording
from sharding import agreement
from sharding.executors.torch_machine import local_space
from sharding.program import Program

if TYPE_CHECKING:
    from sharding.executors.torch_ranks import RankEngine

__all__ = ["LocalOperator"]


class LocalOperator:
    """A lowered operator on this rank's plain tensors; every rank calls it together.

    `local(x)`, and for linear ones `local @ x` and `local.H @ y`, under autograd and `torch.func`
    (jvp, vjp, grad, vmap and their compositions). Parts are those of the placements: shares where
    an axis is cut, copies elsewhere. Derivatives treat the copies of an output as outputs of their
    own, so a loss formed on every rank from local parts counts a placement's `replicas` times:
    divide by them. The gradient of an input that all ranks hold comes summed over the ranks.

    Attributes
    ----------
    domain, codomain
        The spaces of this rank's parts.
    """

    def __init__(
        self, engine: RankEngine, program: Program, adjoint: Program | None, name: str
    ) -> None:
        self._engine, self._program, self._adjoint = engine, program, adjoint
        self.name = name
        self.domain = local_space(program, program.inputs, engine.ranks.at)
        self.codomain = local_space(program, program.outputs, engine.ranks.at)

    @property
    def H(self) -> LocalOperator:
        """The adjoint on this rank's parts."""
        if self._adjoint is None:
            raise PlacementError(f"{self.name} is not linear: it has no adjoint")
        return LocalOperator(self._engine, self._adjoint, self._program, f"{self.name}.H")

    def __call__(self, x: Any) -> Any:
        parts = tuple(x) if isinstance(x, (tuple, list)) else (x,)
        try:
            if any(map(recording, parts)):
                _refuse_dense(self.name)
            self.domain.check_shape(x, f"{self.name}.local")
            if not all(map(arrays.is_torch, parts)) or any(map(arrays.is_distributed, parts)):
                raise ShapeError(f"{self.name}.local takes this rank's plain tensors")
        except (TypeError, ValueError) as error:
            agreement.refuse(error)
            raise
        made = self._engine.run_local(self._program, parts)
        return tuple(made) if isinstance(self.codomain, ProductSpace) else made[0]

    def __matmul__(self, x: Any) -> Any:
        return self(x)

    def __repr__(self) -> str:
        return f"<{self.name}.local: {self.domain} -> {self.codomain}>"


def _refuse_dense(name: str) -> None:
    """Raise where torch asks for a whole Jacobian: each rank would push basis vectors of its own.

    The functions of torch that do are told by their frames; nothing else sets them apart from a
    `vmap` over a `vjp`.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_qualname.split(".")[0] in _DENSE and frame.f_globals["__name__"] in _WHERE:
            raise PlacementError(
                f"{code.co_qualname.split('.')[0]} of {name}, which lives on several ranks: a "
                "dense Jacobian is made in one process, from the operator before it was planned "
                "(A.to_dense())"
            )
        frame = frame.f_back


_DENSE = ("jacrev", "jacfwd", "hessian", "jacobian")
_WHERE = ("torch._functorch.eager_transforms", "torch.autograd.functional")
