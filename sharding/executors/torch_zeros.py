"""Zeros of a rank that has no share or no result, in the graph of this rank like of the others.

Every rank of a group runs the same backward pass, so the graph of a rank without a share has the
same movements, to any order of derivative.
"""

from __future__ import annotations

import functools
from typing import Any

from linops.space import AnySpace, ProductSpace

__all__ = ["nothing", "zeros"]


def nothing(like: Any, source: AnySpace, target: AnySpace) -> Any:
    """`zeros` that hang on `like` as the result of a nonlinear map does: so do their derivatives.

    A linear map's first derivative does not hang on the point; there `apply_pair` serves.
    """
    parts = like if isinstance(like, tuple) else (like,)
    batch = _batch(parts[0], source)
    ends = tuple(((*batch, *m.shape), _dtype(m)) for m in target.members)
    made = _function().apply(ends, *parts)
    return made if isinstance(target, ProductSpace) else made[0]


def zeros(like: Any, source: AnySpace, target: AnySpace) -> Any:
    """Zeros of `target`, with the batch axes of an element of `source`."""
    part = like[0] if isinstance(like, tuple) else like
    batch = _batch(part, source)
    made = [part.new_zeros((*batch, *m.shape), dtype=_dtype(m)) for m in target.members]
    return tuple(made) if isinstance(target, ProductSpace) else made[0]


def _batch(part: Any, source: AnySpace) -> tuple[int, ...]:
    return tuple(part.shape)[: part.ndim - source.members[0].ndim]


def _dtype(space: Any) -> Any:
    import torch

    return getattr(torch, space.dtype.name)


@functools.cache
def _function() -> Any:
    import torch

    class Nothing(torch.autograd.Function):  # type: ignore[misc]
        """Zeros of given shapes and dtypes, whose every derivative is of this kind again."""

        @staticmethod
        def forward(ends: Any, *parts: Any) -> Any:
            return tuple(parts[0].new_zeros(shape, dtype=dtype) for shape, dtype in ends)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.ends, *parts = inputs
            ctx.save_for_backward(*parts)
            ctx.save_for_forward(*parts)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            parts = ctx.saved_tensors
            ends = tuple((tuple(part.shape), part.dtype) for part in parts)
            return None, *Nothing.apply(ends, *parts, *gradients)

        @staticmethod
        def jvp(ctx: Any, _ends: Any, *tangents: Any) -> Any:
            return Nothing.apply(ctx.ends, *ctx.saved_tensors)

        @staticmethod
        def vmap(info: Any, in_dims: Any, ends: Any, *parts: Any) -> Any:
            moved = [
                part if dim is None else part.movedim(dim, 0)
                for part, dim in zip(parts, in_dims[1:], strict=True)
            ]
            wide = tuple(((info.batch_size, *shape), dtype) for shape, dtype in ends)
            return Nothing.apply(wide, *moved), (0,) * len(ends)

    return Nothing
