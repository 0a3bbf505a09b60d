"""Arguments held to the kinds that a signature states, before anything is computed.

`checked` wraps a public function, method or constructor: every argument whose annotation is made
of kinds known here (`Space`, `LinearOperator | None`, `Sequence[str | int]`, `int`, ...) is
compared with it. What is certain is converted (an integer of NumPy to an `int`, a sparse matrix to
an operator); anything else raises and names the argument, what came and what to do. Rooms above
add the kinds that they define with `declare`. Ranges and shapes are the functions' own to check.
"""

from __future__ import annotations

import functools
import inspect
import numbers
import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np

from linops import arrays
from linops.errors import DTypeError

__all__ = ["REFUSED", "Kind", "checked", "checking", "declare", "describe", "hold", "wrong"]

_F = TypeVar("_F", bound=Callable[..., Any])

REFUSED: Any = object()
"""What `Kind.admit` returns for a value that it does not take."""


@dataclass(frozen=True)
class Kind:
    """One kind of argument, by the name that annotations give it.

    Parameters
    ----------
    wanted
        What a message says is wanted: "a Space".
    types
        Their instances pass as they are.
    admit
        Another value converted, or `REFUSED`.
    advice
        What to do with a value of another kind; "" where nothing can be said.
    error
        The class of the error for a value of another kind.
    """

    wanted: str
    types: tuple[type, ...]
    admit: Callable[[Any], Any] | None = None
    advice: Callable[[Any], str] | None = None
    error: Callable[[Any], type[Exception]] = lambda value: DTypeError


def declare(name: str, kind: Kind) -> None:
    """Let annotations that say `name` mean `kind`."""
    _KINDS[name] = kind


def checked(function: _F) -> _F:
    """`function`, its arguments held to their annotations at each call.

    Raises
    ------
    DTypeError
        For an argument of another kind; it is a `TypeError`.
    """
    return _hold_to(function, ())


def checking(*names: str) -> Callable[[_F], _F]:
    """As `checked`, of these arguments alone: where the function has checks of its own."""
    return functools.partial(_hold_to, names=names)


def _hold_to(function: _F, names: tuple[str, ...]) -> _F:
    parameters: tuple[_Parameter, ...] | None = None

    @functools.wraps(function)
    def wrapper(*args: Any, **options: Any) -> Any:
        nonlocal parameters
        if parameters is None:
            every = _parameters(function)
            parameters = tuple(one for one in every if not names or one.name in names)
        given: list[Any] | None = None
        for parameter in parameters:
            name, place = parameter.name, parameter.place
            if place < len(args):
                value = args[place]
                if isinstance(value, parameter.types) and type(value) is not bool:
                    continue
                admitted = _admit(parameter, value)
                if admitted is REFUSED:
                    raise _refusal(function, parameters, parameter, args, options)
                if admitted is not value:
                    given = list(args) if given is None else given
                    given[place] = admitted
            elif name in options:
                value = options[name]
                if isinstance(value, parameter.types) and type(value) is not bool:
                    continue
                admitted = _admit(parameter, value)
                if admitted is REFUSED:
                    raise _refusal(function, parameters, parameter, args, options)
                options[name] = admitted
        return function(*(args if given is None else given), **options)

    return cast(_F, wrapper)


def hold(annotation: str, value: Any, owner: str, name: str) -> Any:
    """`value`, held to an annotation as an argument of `checked` is, converted where certain."""
    parameter = _parameter(name, -1, annotation)
    if parameter is None:
        raise KeyError(f"no kind of argument is known by the annotation {annotation!r}")
    admitted = _admit(parameter, value)
    if admitted is REFUSED:
        raise _error(owner, parameter, value, "")
    return admitted


def wrong(owner: str, name: str, value: Any, wanted: str, fix: str = "") -> DTypeError:
    """The error for an argument of the wrong kind: what came, what was wanted, the fix."""
    return DTypeError(
        f"{owner} takes {wanted} as {name}, got {describe(value)}{f'; {fix}' if fix else ''}"
    )


def describe(value: Any) -> str:
    """A value in a few words, for messages: its kind, and what tells it from others of it."""
    if value is None or isinstance(value, bool | numbers.Number):
        return f"{value!r}"
    if isinstance(value, str):
        return f"the string {value[:40]!r}"
    if arrays.is_array(value) or type(value).__module__.startswith("scipy.sparse"):
        shape = tuple(value.shape)
        return f"a {_name(value)} of shape {shape} and dtype {value.dtype}"
    if isinstance(value, list | tuple | Set | Mapping):
        text = repr(value)
        return f"the {type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if hasattr(type(value), "__array_ufunc__") and hasattr(value, "domain"):
        linear = "linear" if getattr(value, "linear", False) else "nonlinear"
        kind = "functional" if hasattr(value, "surrogate") else f"{linear} operator"
        return f"the {kind} {getattr(value, 'name', type(value).__name__)}"
    if hasattr(value, "describe_shape"):
        return f"the space {value}"
    return f"{_name(value)}"


# --- annotations ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Parameter:
    """One argument: where it stands (-1: by name alone) and the kinds that it takes."""

    name: str
    place: int
    types: tuple[type, ...]
    kinds: tuple[Kind, ...]
    members: tuple[_Parameter, ...]  # what the entries of a sequence may be
    sequence: bool
    ordered: bool


def _parameters(function: Callable[..., Any]) -> Iterator[_Parameter]:
    keyword = inspect.Parameter.KEYWORD_ONLY
    for place, (name, one) in enumerate(inspect.signature(function).parameters.items()):
        if one.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            return
        if isinstance(one.annotation, str):
            parameter = _parameter(name, 1 << 30 if one.kind is keyword else place, one.annotation)
            if parameter is not None:
                yield parameter


def _parameter(name: str, place: int, annotation: str) -> _Parameter | None:
    """None where the annotation holds a word that is no known kind."""
    kinds: list[Kind] = []
    members: list[_Parameter] = []
    sequence, ordered = False, True
    for word in _alternatives(annotation):
        head, _, inner = word.partition("[")
        if head in _SEQUENCES:
            sequence, ordered = True, head != "Iterable"
            if not inner:
                return None
            inner = inner.removesuffix("]").removesuffix(", ...")
            for part in _alternatives(inner, ","):
                member = _parameter(name, -1, part)
                if member is None:
                    return None
                members.append(member)
        elif word in _KINDS or head == "Callable":
            kinds.append(_KINDS[word if word in _KINDS else head])
        else:
            return None
    types = tuple(kind for one in kinds for kind in one.types)
    return _Parameter(name, place, types, tuple(kinds), tuple(members), sequence, ordered)


def _alternatives(annotation: str, mark: str = "|") -> Iterator[str]:
    """The words between the marks that stand in no brackets."""
    depth, word = 0, ""
    for sign in annotation + mark:
        depth += (sign == "[") - (sign == "]")
        if sign == mark and depth == 0:
            yield word.strip()
            word = ""
        else:
            word += sign


def _admit(parameter: _Parameter, value: Any) -> Any:
    """`value`, converted where that is certain; `REFUSED` where it is of another kind."""
    if type(value) is bool or isinstance(value, np.bool_):
        return value if bool in parameter.types else REFUSED
    if isinstance(value, parameter.types):
        return value
    for kind in parameter.kinds:
        if kind.admit is not None:
            admitted = kind.admit(value)
            if admitted is not REFUSED:
                return admitted
    return _admit_members(parameter, value) if parameter.sequence else REFUSED


def _admit_members(parameter: _Parameter, value: Any) -> Any:
    if arrays.is_array(value) and len(value.shape) == 1 and arrays.is_readable(value):
        if arrays.is_masked(value):
            return REFUSED
        value = arrays.to_numpy(value).tolist()
    elif arrays.is_array(value) or isinstance(value, str | bytes | Mapping):
        return REFUSED
    if parameter.ordered and isinstance(value, Set):
        return REFUSED
    if not isinstance(value, list | tuple):
        if not hasattr(type(value), "__iter__") or hasattr(value, "domain"):
            return REFUSED
        value = value if isinstance(value, Set) else tuple(value)
    made = []
    for one in value:
        for member in parameter.members:
            admitted = _admit(member, one)
            if admitted is not REFUSED:
                made.append(admitted)
                break
        else:
            return REFUSED
    same = all(a is b for a, b in zip(made, value, strict=True))
    return value if same else type(value)(made) if type(value) in (list, tuple) else tuple(made)


# --- refusals ---------------------------------------------------------------------------------


def _refusal(
    function: Callable[..., Any],
    parameters: Sequence[_Parameter],
    parameter: _Parameter,
    args: Sequence[Any],
    options: Mapping[str, Any],
) -> Exception:
    owner = function.__name__
    if owner == "__init__":
        owner = type(args[0]).__name__
    elif "self" in inspect.signature(function).parameters:
        owner = f"{getattr(args[0], 'name', type(args[0]).__name__)}.{owner}"

    names = list(inspect.signature(function).parameters)
    given = dict(zip(names, args, strict=False)) | dict(options)
    value, declared = given[parameter.name], {one.name: one for one in parameters}
    swapped = ""
    for name, there in given.items():
        # What an argument without a kind may be is not known: there the other's own type tells.
        own = _fits(declared[name], value) if name in declared else True
        fits = _fits(parameter, there) if name in declared else isinstance(there, parameter.types)
        if name != parameter.name and own and fits:
            order = [n for n in names if n != "self"]
            swapped = (
                f"{parameter.name} and {name} look swapped: "
                f"{owner}({', '.join(order[:2])}{', ...' if len(order) > 2 else ''})"
            )
            break
    return _error(owner, parameter, value, swapped)


def _fits(parameter: _Parameter, value: Any) -> bool:
    return value is not None and _admit(parameter, value) is not REFUSED


def _error(owner: str, parameter: _Parameter, value: Any, fix: str) -> Exception:
    wanted, member = _describe_kinds(parameter), value
    if arrays.is_masked(value):
        return arrays.masked_error(owner, parameter.name)
    if parameter.sequence and isinstance(value, list | tuple):
        for number, one in enumerate(value):
            if not any(_admit(p, one) is not REFUSED for p in parameter.members):
                member = one
                found = f"{describe(one)} as entry {number}"
                break
        else:
            found = describe(value)
    else:
        found = describe(value)
    kinds = [*parameter.kinds, *(kind for one in parameter.members for kind in one.kinds)]
    if not fix and parameter.sequence and any(_fits(one, value) for one in parameter.members):
        fix = f"put it into a list: {owner}([{parameter.name}])"
    if not fix:
        advice = (kind.advice(member) for kind in kinds if kind.advice is not None)
        fix = next((line for line in advice if line), "")
    error = next(
        (kind.error(member) for kind in kinds if kind.error(member) is not DTypeError), DTypeError
    )
    return error(f"{owner} takes {wanted} as {parameter.name}, got {found}{fix and '; ' + fix}")


def _describe_kinds(parameter: _Parameter) -> str:
    words = list(dict.fromkeys(kind.wanted for kind in parameter.kinds if kind is not _NONE))
    if parameter.sequence:
        inner = dict.fromkeys(kind.wanted for one in parameter.members for kind in one.kinds)
        words.append(f"a list (each entry {' or '.join(inner)})")
    if _NONE in parameter.kinds:
        words.append("None")
    return " or ".join(words)


def _name(value: Any) -> str:
    module = type(value).__module__
    return type(value).__name__ if module == "builtins" else f"{module}.{type(value).__name__}"


# --- kinds that need no room of the library -----------------------------------------------------


def _whole(value: Any) -> Any:
    if arrays.is_array(value) and arrays.is_traced(value):
        return value
    try:
        return int(value.__index__()) if not isinstance(value, type) else REFUSED
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return REFUSED


def _real(value: Any) -> Any:
    if arrays.is_array(value):
        if arrays.is_masked(value) or len(value.shape) or arrays.dtype_of(value).kind not in "iuf":
            return REFUSED
        return value.item() if arrays.is_numpy(value) else value
    return REFUSED


def _values(value: Any) -> Any:
    if type(value) is np.ndarray:
        return value
    if arrays.is_masked(value):
        return REFUSED
    served = arrays.is_array(value) or isinstance(value, list | tuple | range | numbers.Number)
    return value if served or hasattr(type(value), "__array__") else REFUSED


def _function(value: Any) -> Any:
    return value if callable(value) else REFUSED


def _path_advice(value: Any) -> str:
    return "give the path of a folder or a file" if isinstance(value, int) else ""


_NONE = Kind("None", (type(None),))
_SEQUENCES = frozenset({"Sequence", "tuple", "list", "Iterable"})
_KINDS: dict[str, Kind] = {
    "None": _NONE,
    "bool": Kind("a bool", (bool,), lambda value: value),
    "int": Kind("a whole number", (int,), _whole),
    "float": Kind("a real number", (float, int, np.floating, numbers.Real), _real),
    "str": Kind("a string", (str,)),
    "Array": Kind("an array", (), _values),
    "Callable": Kind("a function", (), _function),
    "Path": Kind("a path", (str, os.PathLike), advice=_path_advice),
    "PathLike": Kind("a path", (str, os.PathLike), advice=_path_advice),
    "np.random.Generator": Kind("a numpy.random.Generator", (np.random.Generator,)),
}
