"""Loads and stores that promise LLVM not to alias each other, so that gather loops vectorise.

`load` reads arrays that no `add` or `store` of the same loop writes. Without the promise LLVM must
assume that each store changes what is gathered next, and keeps the loop scalar. The promise binds
one function: where LLVM inlines another, the copy gets scopes of its own, so a table that one
function stores and the next loads is safe.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["add", "load", "own", "store"]


@intrinsic
def load(typingctx: Any, array: Any, index: Any) -> Any:
    """`array[index]` of a contiguous 1-D array that no `add` or `store` of this loop changes."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        read, written = _scopes(builder)
        value = builder.load(_address(context, builder, signature, args))
        value.set_metadata("alias.scope", read)
        value.set_metadata("noalias", written)
        return value

    return array.dtype(array, index), codegen


@intrinsic
def own(typingctx: Any, array: Any, index: Any) -> Any:
    """`array[index]` of a contiguous 1-D array that this loop stores to, at this index alone."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        read, written = _scopes(builder)
        value = builder.load(_address(context, builder, signature, args))
        value.set_metadata("alias.scope", written)
        value.set_metadata("noalias", read)
        return value

    return array.dtype(array, index), codegen


@intrinsic
def add(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
    """`array[index] += value`, contiguous 1-D, value of the array's dtype."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        read, written = _scopes(builder)
        address = _address(context, builder, signature, args)
        old = builder.load(address)
        store = builder.store(builder.fadd(old, args[2]), address)
        for instruction in (old, store):
            instruction.set_metadata("alias.scope", written)
            instruction.set_metadata("noalias", read)
        return context.get_dummy_value()

    return types.void(array, index, array.dtype), codegen


@intrinsic
def store(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
    """`array[index] = value`, contiguous 1-D, value of the array's dtype; not read in this loop."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        read, written = _scopes(builder)
        instruction = builder.store(args[2], _address(context, builder, signature, args))
        instruction.set_metadata("alias.scope", written)
        instruction.set_metadata("noalias", read)
        return context.get_dummy_value()

    return types.void(array, index, array.dtype), codegen


def _address(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    data = cgutils.create_struct_proxy(signature.args[0])(context, builder, args[0]).data
    index = args[1]
    if index.type.width < 64:
        extend = builder.sext if signature.args[1].signed else builder.zext
        index = extend(index, ir.IntType(64))
    return builder.gep(data, [index], inbounds=True)


def _scopes(builder: Any) -> Any:
    module = builder.module
    domain = module.add_metadata([ir.MetaDataString(module, "linops.noalias")])
    read = module.add_metadata([ir.MetaDataString(module, "read"), domain])
    written = module.add_metadata([ir.MetaDataString(module, "written"), domain])
    return module.add_metadata([read]), module.add_metadata([written])
