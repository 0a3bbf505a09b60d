"""C order of an array that JAX traces, as a primitive: an identity that fixes a layout.

JAX's own constraint becomes a call that `jax.export` refuses to serialise. It matters beside
compiled kernels alone, which choose an order that XLA's FFT cannot follow, and those cannot be
exported: in a program that is, the identity is nothing.
"""

from __future__ import annotations

import functools
from typing import Any

__all__ = ["in_c_order"]


def in_c_order(x: Any) -> Any:
    """`x`, a tracer, held to C order where the program is compiled in this process."""
    return _primitive().bind(x)


@functools.cache
def _primitive() -> Any:
    from jax.experimental.layout import Layout, with_layout_constraint
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir

    primitive = Primitive("linops_c_order")

    def constrained(x: Any) -> Any:
        return with_layout_constraint(x, Layout(major_to_minor=tuple(range(x.ndim))))

    local = mlir.lower_fun(constrained, multiple_results=False)

    def lower(context: Any, x: Any) -> Any:
        # Of a JAX that does not say so, programs keep the constraint and export as they did.
        parameters = getattr(context.module_context, "lowering_parameters", None)
        return [x] if getattr(parameters, "for_export", False) else local(context, x)

    primitive.def_impl(lambda x: x)
    primitive.def_abstract_eval(lambda x: x)
    mlir.register_lowering(primitive, lower)
    ad.deflinear2(primitive, lambda cotangent, _: (primitive.bind(cotangent),))

    def batch(operands: Any, dims: Any) -> Any:
        (x,), (d,) = operands, dims
        return primitive.bind(batching.moveaxis(x, d, 0)), 0

    batching.primitive_batchers[primitive] = batch
    return primitive
