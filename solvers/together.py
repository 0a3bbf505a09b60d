"""What the processes of one solve tell one another, so that all of them go on or all of them raise.

Every rank runs the same solver; one that was asked for something else, or that its callback stops
alone, would leave the others waiting in their next exchange. So ranks meet once before a solve and
once a callback. One process alone meets nobody.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from linops import arrays
from linops.errors import PlacementError

__all__ = ["agree", "describe", "same_answer"]


def describe(value: Any) -> str:
    """What a rank says of an argument: a path, a number, or an array by its values; of a placed
    element, of which ranks hold parts, the shape."""
    if value is None:
        return "None"
    if isinstance(value, (tuple, list)) and any(map(arrays.is_array, value)):
        return ", ".join(describe(part) for part in value)
    if arrays.is_array(value):
        said = f"an array of shape {tuple(value.shape)} {arrays.dtype_of(value)}"
        if arrays.is_distributed(value) or arrays.is_traced(value):
            return said
        digest = hashlib.sha256(arrays.to_numpy(_detach(value)).tobytes()).hexdigest()
        return f"{said}, digest {digest[:12]}"
    if isinstance(value, (str, os.PathLike)):
        return os.path.abspath(os.path.expanduser(os.fspath(value)))
    return repr(value)


def agree(like: Any, wanted: Mapping[str, str], failure: Exception | None) -> None:
    """Go on where all ranks want the same and none has failed.

    Parameters
    ----------
    like
        An element that the ranks share; a plain one is one process's.
    wanted
        What this rank was asked for, by the name of the argument.
    failure
        Why this rank cannot go on.

    Raises
    ------
    Exception
        `failure` itself on the rank that has one; elsewhere a `PlacementError` that names the
        rank, or the argument in which ranks differ and what each of them has.
    """
    word = json.dumps([None if failure is None else _describe_error(failure), dict(wanted)])
    said = [json.loads(text) for text in arrays.said_by_all(like, word)]
    if failure is not None:
        raise failure
    for rank, (error, _) in enumerate(said):
        if error is not None:
            raise PlacementError(_stop(rank, len(said), error))
    for name in wanted:
        values = [asked.get(name) for _, asked in said]
        if len(set(values)) > 1:
            each = "; ".join(f"rank {rank}: {value}" for rank, value in enumerate(values))
            raise PlacementError(
                f"the ranks want different things of {name}: {each}; pass the same {name} on "
                "every rank"
            )


def same_answer(like: Any, ends: bool, failure: Exception | None) -> bool:
    """Whether any rank ends the solve; where one has failed all of them raise."""
    word = json.dumps([ends, None if failure is None else _describe_error(failure)])
    said = [json.loads(text) for text in arrays.said_by_all(like, word)]
    if failure is not None:
        raise failure
    for rank, (_, error) in enumerate(said):
        if error is not None:
            raise PlacementError(_stop(rank, len(said), error))
    return any(end for end, _ in said)


def _describe_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _stop(rank: int, count: int, error: str) -> str:
    return (
        f"rank {rank} of {count} raised {error}; so every rank stops here, and the group can be "
        "used again"
    )


def _detach(x: Any) -> Any:
    return x.detach() if hasattr(x, "detach") else x
