"""Tensors of torch that their owner changes in place, and operators that were made from them.

An optimiser writes into its parameters. An operator that holds a parameter follows it; one whose
arrays were computed from a parameter (flipped, multiplied, cut and padded) would keep old numbers.
So what the library derives from an operator holds the parameter itself (`derived` tells what does
not), and where numbers were computed all the same, the operator remembers in which state its
sources were and refuses to run in another (`watch`, `watched`).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from linops import arrays
from linops.errors import StaleError
from linops.maps import Operator

__all__ = [
    "check",
    "check_tree",
    "derived",
    "owned_by",
    "require_same",
    "sources",
    "watch",
    "watched",
]

_KEY = "_cache_sources"
_FARTHEST = 4096  # nodes of a graph that are followed back to the parameters


def derived(made: Any, parents: Iterable[Any]) -> list[Operator]:
    """The leaves of `made` with tensors that are not those of its parents, nor views of them.

    Nothing where no parent, an operator or a tensor, holds a tensor that may change.
    """
    if "torch" not in sys.modules or not isinstance(made, Operator):
        return []
    given = [tensor for parent in parents for _, tensor in _tensors(parent)]
    if not any(map(arrays.trainable, given)):
        return []
    known = set(map(id, given))
    found: dict[int, Operator] = {}
    for operator, tensor in _tensors(made):
        assert operator is not None
        if id(tensor) not in known and id(_base(tensor)) not in known:
            found[id(operator)] = operator
    return list(found.values())


def watch(made: Any, parents: Iterable[Any]) -> Any:
    """`made`, whose leaves with numbers computed from the parents run for as long as the
    parents are what they are now."""
    parents = tuple(parents)
    changing = derived(made, parents)
    if changing:
        states = [
            state
            for parent in parents
            for operator, tensor in _tensors(parent)
            if arrays.trainable(tensor)
            for state in (
                *sources(tensor),
                *(() if operator is None else operator.__dict__.get(_KEY, ())),
            )
        ]
        for operator in changing:
            operator.__dict__[_KEY] = [*operator.__dict__.get(_KEY, ()), *states]
    return made


def owned_by(operator: Operator) -> list[Any]:
    """The sources of the tensors among an operator's own attributes, with their states."""
    found = list(operator.__dict__.get(_KEY, ()))
    for value in operator.__dict__.values():
        for part in value if type(value) is tuple else (value,):
            if arrays.is_torch(part) and part.requires_grad:
                found += [] if part.is_leaf else sources(part)
    return found


def sources(tensor: Any) -> list[tuple[Any, Any]]:
    """The tensors from which the values of one were computed, each with its state now.

    A parameter is its own source. None of a view of one, which follows it, nor under a transform
    of `torch.func`.
    """
    torch = sys.modules["torch"]
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return []
    if tensor.is_leaf:
        return [(tensor, _state(tensor))]
    base = _base(tensor)
    if base is not None and base.is_leaf:
        return []
    found: list[tuple[Any, Any]] = []
    waiting, seen = [tensor.grad_fn], set[Any]()
    while waiting and len(seen) < _FARTHEST:
        node = waiting.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            found.append((leaf, _state(leaf)))
        waiting += [after for after, _ in node.next_functions]
    return found


def watched(operator: Operator, hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`hook` of an operator, refused where the sources of its numbers have changed."""
    known = operator.__dict__.get(_KEY)
    if not known:
        return hook

    @functools.wraps(hook)
    def run(x: Any) -> Any:
        check(operator)
        return hook(x)

    return run


def check(operator: Operator) -> None:
    """Raise where the sources of an operator's own numbers have changed.

    Raises
    ------
    StaleError
        Naming the operator and the fix.
    """
    require_same(operator.__dict__.get(_KEY, ()), operator.name, type(operator)._renewal)


def check_tree(operator: Operator) -> None:
    """`check` of the operator and of all that it is made of."""
    if "torch" in sys.modules:
        from linops.algebra.structure import children

        check(operator)
        for child in children(operator):
            check_tree(child)


def require_same(states: Iterable[tuple[Any, Any]], owner: str, renewal: str) -> None:
    """Raise where tensors are no longer in the states in which `sources` saw them.

    Raises
    ------
    StaleError
        Naming the owner of what was computed from them, and the fix.
    """
    for tensor, state in states:
        if _state(tensor) != state:
            raise StaleError(
                f"{owner} was computed from a tensor of shape {tuple(tensor.shape)} that has been "
                f"changed in place since, by an optimiser's step for instance: {renewal}"
            )


def _tensors(value: Any) -> Iterator[tuple[Operator | None, Any]]:
    """The tensors of torch in a tree, each with the operator that holds it."""
    if arrays.is_torch(value):
        yield None, value
    if not isinstance(value, Operator):
        return
    from linops.algebra.structure import flatten

    for field in flatten(value)[0].values():
        for part in field if isinstance(field, tuple) else (field,):
            if isinstance(part, Operator):
                yield from _tensors(part)
            elif arrays.is_torch(part):
                yield value, part


def _base(tensor: Any) -> Any:
    return tensor._base if tensor._is_view() else None


def _state(tensor: Any) -> Any:
    try:
        return tensor._version, tensor.data_ptr()
    except RuntimeError:  # without storage of its own
        return tensor._version
