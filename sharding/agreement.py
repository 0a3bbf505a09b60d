"""What ranks agree on before they exchange anything: all of them go on, or all of them raise.

One small gather of fixed size carries a flag and a digest from every rank. A rank that must raise
says so and raises; the others raise with its message; ranks that want different things all raise.
Either way the process group can be used again. Ranks run one program: their n-th agreements meet.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

from linops.errors import PlacementError
from sharding.devices import device_of, world

__all__ = ["WORDS", "agree_or_raise", "gather_rows", "made_together", "posted", "refuse", "waiting"]

T = TypeVar("T")
Words = tuple[int, ...]

WORDS = 16
"""How many integers travel with an agreement."""

_MESSAGE = 480
_PATIENCE = 2.0  # seconds, for those who waited to say so


def agree_or_raise(text: str, error: Exception | None = None, words: Words = ()) -> list[Words]:
    """Go on where all ranks say the same `text` and none has an error.

    Parameters
    ----------
    text
        What is about to be done: operation, shapes, dtypes, options.
    error
        Why this rank cannot.
    words
        Integers to hand round, at most `WORDS`.

    Returns
    -------
    list of pairs
        The words of every rank.

    Raises
    ------
    Exception
        `error` itself on the rank that has one; elsewhere a `PlacementError` with its message.
        Where texts differ a `PlacementError` that lists them.
    """
    digest = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
    # Of one size whatever is handed round: ranks that want different things meet here too.
    row = [*words, *(0,) * (WORDS - len(words))]
    table = _gathered([0 if error is None else 1, digest, *row])
    failed = [rank for rank, row in enumerate(table) if row[0]]
    if not failed and len({row[1] for row in table}) == 1:
        return [tuple(row[2 : 2 + len(words)]) for row in table]
    said = text if error is None else f"{type(error).__name__}: {error}"
    messages = _messages(said)
    if error is not None:
        raise error
    if failed:
        raise PlacementError(
            f"rank {failed[0]} of {len(table)} raised {messages[failed[0]]}; so every rank stops "
            "here, and the group can be used again"
        )
    shown = "; ".join(f"rank {rank}: {message}" for rank, message in enumerate(messages))
    raise PlacementError(f"the ranks want different things: {shown}; call alike on every rank")


def refuse(error: Exception) -> None:
    """Tell the other ranks, which go on to their next agreement, that this one raises; once."""
    if getattr(error, "_told_ranks", False) or world() == 1:
        return
    error._told_ranks = True  # type: ignore[attr-defined]
    try:
        agree_or_raise("", error)
    except Exception as other:
        if other is not error:
            raise


def made_together(make: Callable[[], T], describe: Callable[[T], str]) -> T:
    """What `make()` gives, where it succeeds on all ranks and they describe it alike."""
    try:
        made = make()
    except Exception as error:
        refuse(error)
        raise
    agree_or_raise(describe(made))
    return made


def gather_rows(out: Any, rows: Any, group: Any = None, async_op: bool = False) -> Any:
    """Everybody's rows, one after the other, in `out`; by the name that this torch has for it."""
    import torch.distributed as dist

    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return gather(out, rows, group=group, async_op=async_op)


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Where an exchange fails within, the rank that did not come is named."""
    try:
        yield
    except RuntimeError as error:
        _late(error)


def posted(exchange: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """The handle of an exchange that goes on beside what follows."""
    with waiting():
        return exchange(*arguments, async_op=True, **options)


def _gathered(row: list[int]) -> list[list[int]]:
    """Everybody's row, in the order of ranks."""
    count = world()
    if count == 1:
        return [row]
    import torch

    with torch._C._DisableFuncTorch(), torch.no_grad():
        mine = torch.tensor(row, dtype=torch.int64, device=_device())
        out = torch.empty((count * len(row),), dtype=torch.int64, device=mine.device)
        with waiting():
            gather_rows(out, mine)
            return [list(map(int, part)) for part in out.reshape(count, -1).tolist()]


def _messages(text: str) -> list[str]:
    import torch

    data = text.encode()[:_MESSAGE]
    with torch._C._DisableFuncTorch(), torch.no_grad():
        mine = torch.zeros(_MESSAGE, dtype=torch.uint8)
        mine[: len(data)] = torch.frombuffer(bytearray(data or b" "), dtype=torch.uint8)[
            : len(data)
        ]
        mine = mine.to(_device())
        out = torch.empty((world() * _MESSAGE,), dtype=torch.uint8, device=mine.device)
        gather_rows(out, mine)
        rows = out.reshape(world(), -1).cpu().numpy()
    return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in rows]


def _late(error: Exception) -> NoReturn:
    """An exchange failed: those who waited find out, through the group's store, who is missing."""
    import torch.distributed as dist

    try:
        key = f"linops/waited/{dist.group.WORLD.group_name}"
        store = dist.distributed_c10d._get_default_store()
        store.set(f"{key}/{dist.get_rank()}", "1")
        missing = list(range(world()))
        until = time.monotonic() + _PATIENCE
        while len(missing) > 1 and time.monotonic() < until:
            time.sleep(0.05)
            missing = [r for r in missing if not store.check([f"{key}/{r}"])]
    except Exception:
        missing = []
    who = f"ranks {missing} did not come" if missing else "not all ranks came"
    raise PlacementError(
        f"{who} to where this rank waits ({error}); the limit is that of init_process_group("
        "timeout=...), and the group cannot be used further"
    ) from error


def _device() -> Any:
    """Where the words of an agreement lie: on the host where the group reaches it."""
    import torch.distributed as dist

    return device_of("cpu" if "gloo" in str(dist.get_backend()) else "cuda")
