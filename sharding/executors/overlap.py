"""A stencil's inner planes apart from those at its faces, so that an exchange may run beside them.

The inner part reads planes that its device owns, and no plane of a neighbor; compilers and engines
that run what is independent at one time compute it while the faces are on their way. Every plane of
the result is computed as before: the same bits.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import ClassVar

from linops.algebra.blocks import extent
from linops.algebra.composition import flat_product
from linops.algebra.concatenation import Concatenation
from linops.arrays import Array
from linops.cost import bytes_of
from linops.elementary.crop_pad import Crop
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.relations import positions
from linops.rule import Relation
from linops.space import Space
from sharding.executors.share import Share
from sharding.machine import Machine, leaf_seconds
from sharding.steps import Compute, Loop

__all__ = ["apart", "worthwhile"]


def worthwhile(step: Compute, block: Operator, machine: Machine) -> bool:
    """Whether what an exchange takes beside the inner planes is worth two calls more."""
    name = _cut(step)
    if name is None or machine.shared or machine.cores is not None:
        return False
    planes = 2 * block.rule.halo(name) / extent(block, name)
    exchange = bytes_of(block.codomain) * planes / machine.link
    return min(exchange, leaf_seconds(block, machine) / 2) > 2 * machine.latency


def apart(step: Compute, shares: Sequence[Share]) -> list[LinearOperator] | None:
    """The padded blocks of all devices in three parts; None where a block has no inner planes."""
    name = _cut(step)
    if name is None:
        return None
    found = [block for block in (_in_parts(share, name) for share in shares) if block is not None]
    return found if len(found) == len(shares) else None


def _cut(step: Compute) -> str | None:
    """The axis along which a step reads neighbors' planes, if that is all it does."""
    names = [name for name in step.cuts if name is not None]
    if isinstance(step, Loop) or len(step.cuts) != 1 or not names:
        return None
    rule = step.operator.rule
    aligned = rule.relation(names[0]) is Relation.ALIGNED and not rule.periodic(names[0])
    return names[0] if aligned and rule.halo(names[0]) else None


def _in_parts(share: Share, name: str) -> LinearOperator | None:
    block = share.whole
    rule, halo, n = block.rule, block.rule.halo(name), extent(block, name)
    if not (isinstance(block.domain, Space) and isinstance(block.codomain, Space)):
        return None
    cuts, made = positions(rule.domain, name), positions(rule.codomain, name)
    if n <= 2 * halo or block.domain.shape[cuts[0][1]] != n + 2 * halo:
        return None
    terms = []
    for first, last in ((0, halo), (halo, n - halo), (n - halo, n)):
        part = share.part(name, first, last)
        if share.reads(name, first, last) != (first, last + 2 * halo):
            return None
        if not (isinstance(part, LinearOperator) and isinstance(part.codomain, Space)):
            return None
        crop = Crop.along(block.domain, cuts, first, last + 2 * halo, rule.domain)
        inner = [_Settled(part.codomain)] if 0 < first < last < n else []
        terms.append(flat_product([*inner, part, crop]))
    return Concatenation(terms, made[0][1])


class _Settled(LinearOperator):
    """The identity, which no compiler fuses with what is computed beside it."""

    batched = True
    _exact: ClassVar[bool] = True

    def __init__(self, space: Space) -> None:
        super().__init__(space, space)

    def _apply(self, x: Array) -> Array:
        return sys.modules["jax"].lax.optimization_barrier(x)

    def _apply_adjoint(self, y: Array) -> Array:
        return self._apply(y)
