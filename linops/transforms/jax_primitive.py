"""One JAX primitive for every operator: whatever JAX derives of `A @ x` uses the declared adjoint.

    linops_apply(*x, *arrays; program, adjoint)

The operands are the members of x and those arrays of the operator that belong to JAX; `program` is
the rest, compared by structure. It is linear in x, with the operator's own transpose, and batched
by leading axes. In the arrays it is differentiated as the array code that it is; compiled code,
which cannot be, says so.

How compiled kernels run inside is in `linops/compiled/xla.py`.
"""

from __future__ import annotations

import functools
import sys
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any

from linops import arrays, guard
from linops.arrays import Array
from linops.space import AnySpace, ProductSpace
from linops.structure import Skeleton, children, skeleton

__all__ = ["PrimitiveProgram", "apply_operator", "bind"]


class PrimitiveProgram(ABC):
    """The static part of the primitive; equal programs serve each other's operands."""

    def __init__(self, key: Hashable, domain: AnySpace, codomain: AnySpace) -> None:
        self.key = key
        self.domain, self.codomain = domain, codomain
        self._hash = hash(key)

    @abstractmethod
    def execute(self, x: Any, leaves: Sequence[Array], adjoint: bool) -> Any:
        """The operator with `leaves`, or its adjoint, on an element of the space it starts from."""

    def differentiates(self) -> None:
        """Raise where `execute` has no derivative in the leaves."""
        return

    def placed(self, parts: Sequence[Array], adjoint: bool, inward: bool) -> Sequence[Array]:
        """Operands before they enter the primitive, or results behind it, held to devices.

        A program for several devices overrides this: JAX sees no mesh inside a primitive.
        """
        return parts

    def spaces(self, adjoint: bool) -> tuple[AnySpace, AnySpace]:
        """Where the operator, or its adjoint, starts and ends."""
        return (self.codomain, self.domain) if adjoint else (self.domain, self.codomain)

    def run(self, operands: Sequence[Array], adjoint: bool) -> tuple[Array, ...]:
        """`execute` on flat operands, with a flat result."""
        source, target = self.spaces(adjoint)
        n = len(source.members)
        x = tuple(operands[:n]) if isinstance(source, ProductSpace) else operands[0]
        y = self.execute(x, operands[n:], adjoint)
        return tuple(y) if isinstance(target, ProductSpace) else (y,)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.key == self.key

    def __hash__(self) -> int:
        return self._hash


class _Whole(PrimitiveProgram):
    """A leaf or a composition, as the array code that it is."""

    def __init__(self, structure: Skeleton, domain: AnySpace, codomain: AnySpace) -> None:
        super().__init__(structure, domain, codomain)
        self.structure = structure

    def execute(self, x: Any, leaves: Sequence[Array], adjoint: bool) -> Any:
        operator = self.structure.build(iter(leaves))
        if operator._exact:
            return operator._backward(x) if adjoint else operator._forward(x)
        hook = operator._apply
        if adjoint:
            hook = guard.adjoint_hook(operator, operator._apply_adjoint)
        name = f"{operator.name}.H" if adjoint else operator.name
        source, target = self.spaces(adjoint)
        return guard.guard(hook, source, target, operator.batched, name)(x)

    def __repr__(self) -> str:
        return self.structure.name


def apply_operator(operator: Any, x: Any, adjoint: bool) -> Any:
    """`operator @ x`, or its adjoint, as one primitive; `x` is validated and cast.

    None where a part of the operator binds a primitive for itself.
    """
    if _binds_itself(operator):
        return None
    program, leaves = _program(operator)
    return bind(program, x, leaves, adjoint)


def bind(program: PrimitiveProgram, x: Any, leaves: Sequence[Array], adjoint: bool) -> Any:
    """The primitive on an element of a space."""
    parts = x if isinstance(x, tuple) else (x,)
    out = _bind([*parts, *leaves], program, adjoint)
    return tuple(out) if isinstance(program.spaces(adjoint)[1], ProductSpace) else out[0]


def _binds_itself(operator: Any) -> bool:
    found = operator.__dict__.get("_cache_binds")
    if found is None:
        found = operator._binds_itself or any(map(_binds_itself, children(operator)))
        operator.__dict__["_cache_binds"] = found
    return bool(found)


def _program(operator: Any) -> tuple[PrimitiveProgram, tuple[Array, ...]]:
    found = operator.__dict__.get("_cache_program")
    if found is None:
        structure, leaves = skeleton(operator, arrays.is_jax)
        found = _Whole(structure, operator.domain, operator.codomain), leaves
        if not any(map(arrays.is_traced, leaves)):
            operator.__dict__["_cache_program"] = found
    return found  # type: ignore[no-any-return]


def _bind(operands: Sequence[Array], program: PrimitiveProgram, adjoint: bool) -> Any:
    inward = program.placed(_varying_alike(operands), adjoint, True)
    out = _primitive().bind(*inward, program=program, adjoint=adjoint)
    return program.placed(out, adjoint, False)


def _varying_alike(operands: Sequence[Array]) -> list[Any]:
    """Operands that vary over the same axes of a `shard_map`.

    A replicated operand beside a sharded one is cast; the transpose of the cast is a sum over
    the devices, without which gradients would be silently wrong.
    """
    jax = sys.modules["jax"]
    operands = [jax.numpy.asarray(operand) for operand in operands]
    axes = [frozenset(jax.typeof(operand).mat.varying) for operand in operands]
    every = frozenset().union(*axes)
    if not every:
        return operands
    return [
        jax.lax.pcast(operand, tuple(sorted(every - own)), to="varying") if every - own else operand
        for operand, own in zip(operands, axes, strict=True)
    ]


@functools.cache
def _primitive() -> Any:
    import jax
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir

    jnp = jax.numpy
    primitive = Primitive("linops_apply")
    primitive.multiple_results = True

    def run(*operands: Any, program: PrimitiveProgram, adjoint: bool) -> list[Any]:
        return list(program.run(operands, adjoint))

    def shapes(*operands: Any, program: PrimitiveProgram, adjoint: bool) -> list[Any]:
        source, target = program.spaces(adjoint)
        first = operands[0]
        batch = tuple(first.shape)[: first.ndim - source.members[0].ndim]
        # An update of an operand's type keeps the axes over which it varies in a shard_map.
        return [
            first.update(
                shape=(*batch, *space.shape),
                dtype=space.dtype,
                weak_type=False,
                sharding=first.sharding.update(
                    spec=(*first.sharding.spec[: len(batch)], *(None,) * space.ndim)
                ),
            )
            for space in target.members
        ]

    def jvp(primals: Any, tangents: Any, *, program: PrimitiveProgram, adjoint: bool) -> Any:
        n = len(program.spaces(adjoint)[0].members)
        out = _bind(primals, program, adjoint)
        terms = []
        if any(type(d) is not ad.Zero for d in tangents[:n]):
            dx = [ad.instantiate_zeros(d) for d in tangents[:n]]
            terms.append(_bind([*dx, *primals[n:]], program, adjoint))
        if any(type(d) is not ad.Zero for d in tangents[n:]):
            program.differentiates()
            x, leaves = primals[:n], tuple(primals[n:])
            dleaves = tuple(ad.instantiate_zeros(d) for d in tangents[n:])

            def of_leaves(*changed: Any) -> Any:
                return program.run((*x, *changed), adjoint)

            terms.append(jax.jvp(of_leaves, leaves, dleaves)[1])
        if not terms:
            return out, [ad.Zero.from_primal_value(y) for y in out]
        return out, [sum(parts[1:], parts[0]) for parts in zip(*terms, strict=True)]

    def transpose(cotangents: Any, *operands: Any, program: PrimitiveProgram, adjoint: bool) -> Any:
        n = len(program.spaces(adjoint)[0].members)
        if all(type(ct) is ad.Zero for ct in cotangents):
            return [None] * len(operands)
        cotangents = [ad.instantiate_zeros(ct) for ct in cotangents]
        leaves = operands[n:]
        if any(map(ad.is_undefined_primal, leaves)):
            return _transposed_in_leaves(cotangents, operands, n, program, adjoint)
        back = _bind([*map(jnp.conj, cotangents), *leaves], program, not adjoint)
        found = [
            jnp.conj(part) if ad.is_undefined_primal(x) else None
            for x, part in zip(operands[:n], back, strict=True)
        ]
        return [*found, *(None for _ in leaves)]

    def _transposed_in_leaves(
        cotangents: Any, operands: Any, n: int, program: PrimitiveProgram, adjoint: bool
    ) -> Any:
        if any(map(ad.is_undefined_primal, operands[:n])):
            raise NotImplementedError(
                f"{program!r} @ x is linear in x or in its own arrays, not in both: transpose "
                "with respect to one of them"
            )
        program.differentiates()
        wanted = [i for i, leaf in enumerate(operands) if ad.is_undefined_primal(leaf)]

        def of_leaves(*changed: Any) -> Any:
            full = list(operands)
            for i, leaf in zip(wanted, changed, strict=True):
                full[i] = leaf
            return program.run(full, adjoint)

        types = [
            jax.ShapeDtypeStruct(operands[i].aval.shape, operands[i].aval.dtype) for i in wanted
        ]
        back = jax.linear_transpose(of_leaves, *types)(tuple(cotangents))
        result: list[Any] = [None] * len(operands)
        for i, part in zip(wanted, back, strict=True):
            result[i] = part
        return result

    def batch(operands: Any, dims: Any, *, program: PrimitiveProgram, adjoint: bool) -> Any:
        n = len(program.spaces(adjoint)[0].members)
        none = batching.not_mapped
        if any(d is not none for d in dims[n:]):
            axes = tuple(None if d is none else d for d in dims)
            out = jax.vmap(lambda *a: program.run(a, adjoint), axes)(*operands)
            return out, [0] * len(out)
        size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not none)
        moved = [
            jnp.broadcast_to(x, (size, *x.shape)) if d is none else jnp.moveaxis(x, d, 0)
            for x, d in zip(operands[:n], dims[:n], strict=True)
        ]
        out = _bind([*moved, *operands[n:]], program, adjoint)
        return out, [0] * len(out)

    primitive.def_impl(run)
    primitive.def_abstract_eval(shapes)
    mlir.register_lowering(primitive, mlir.lower_fun(run, multiple_results=True))
    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose
    batching.primitive_batchers[primitive] = batch
    return primitive
