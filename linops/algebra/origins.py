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
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from linops import arrays
from linops.errors import StaleError
from linops.operator import Operator, _cached_names

__all__ = [
    "check",
    "check_tree",
    "derived",
    "owned_by",
    "require_same",
    "sources",
    "tensors",
    "watch",
    "watched",
]

_KEY = "_cache_sources"
_TENSORS = "_cache_tensors"
_FARTHEST = 4096  # nodes of a graph that are followed back to the parameters


def derived(made: Any, parents: Iterable[Any]) -> list[Operator]:
    """The leaves of `made` with tensors that are not those of its parents, nor views of them.

    Nothing where no parent, an operator or a tensor, holds a tensor that may change.
    """
    if "torch" not in sys.modules or not isinstance(made, Operator):
        return []
    given = [tensor for parent in parents for _, tensor in tensors(parent)]
    if not given:
        # So the next one that is made of it need not look through its parts.
        made.__dict__.setdefault(_TENSORS, ())
        return []
    if not any(map(arrays.trainable, given)):
        return []
    known = set(map(id, given))
    found: dict[int, Operator] = {}
    for operator, tensor in tensors(made):
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
            for operator, tensor in tensors(parent)
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
    known = operator.__dict__.get(_KEY, ())
    return [*known, *(
        source
        for holder, part in tensors(operator)
        if holder is operator and part.requires_grad and not part.is_leaf
        for source in sources(part)
    )]  # fmt: skip


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
        from linops.structure import children

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


def tensors(value: Any) -> Sequence[tuple[Operator | None, Any]]:
    """The tensors of torch in a tree, each with the operator that holds it."""
    if Operator not in type(value).__mro__:
        return ((None, value),) if arrays.is_torch(value) else ()
    known: Sequence[tuple[Operator | None, Any]] | None = value.__dict__.get(_TENSORS)
    if known is not None:
        return known
    # Each operator that is made passes here once: plain look-ups, as few calls as can be.
    kind: Any = type(value)
    tensor, cached = sys.modules["torch"].Tensor, _cached_names(kind)
    found: list[tuple[Operator | None, Any]] = []
    for name, field in value.__dict__.items():
        if name in cached or name.startswith("_cache"):
            continue
        for part in field if type(field) is tuple else (field,):
            if isinstance(part, tensor):
                found.append((value, part))
            elif Operator in type(part).__mro__:
                inner = part.__dict__.get(_TENSORS)
                found += tensors(part) if inner is None else inner
    value.__dict__[_TENSORS] = found
    return found


def _base(tensor: Any) -> Any:
    return tensor._base if tensor._is_view() else None


def _state(tensor: Any) -> Any:
    try:
        return tensor._version, tensor.data_ptr()
    except RuntimeError:  # without storage of its own
        return tensor._version
