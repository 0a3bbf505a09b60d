"""Exchanges under way while a rank computes: begun, carried on, and landed in one order everywhere.

A journey is a generator that starts an exchange, yields the handle, goes on once that has been
waited for, and returns the tensor. What ranks do between its exchanges changes neither their order
nor a bit of what they bring.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from linops.arrays import Array
from sharding import agreement

__all__ = ["Flight", "Journey", "ahead", "landed", "streamed"]

Journey = Generator[Any, None, Array]

_AHEAD = 2  # a sum over ranks is two exchanges


class Flight:
    """A journey under way."""

    def __init__(self, journey: Journey) -> None:
        self._journey = journey
        self._handle: Any = None
        self._found: list[Array] = []
        self.advance()

    def advance(self) -> None:
        """Wait for the exchange that is under way, and start the next one."""
        if self._found:
            return
        if self._handle is not None:
            with agreement.waiting():
                self._handle.wait()
        try:
            self._handle = next(self._journey)
        except StopIteration as end:
            self._found = [end.value]

    def land(self) -> Array:
        """What the journey brings."""
        while not self._found:
            self.advance()
        return self._found[0]


def landed(journey: Journey) -> Array:
    """What a journey brings, waited for."""
    return Flight(journey).land()


def streamed(journeys: Iterable[Journey], place: Callable[[int, Array], None]) -> None:
    """`place(i, what journey i brings)`; the next ones are made while the last are under way."""
    under_way: deque[tuple[int, Flight]] = deque()

    def carry_on(most: int) -> None:
        for _, flight in under_way:
            flight.advance()
        while len(under_way) > most:
            i, flight = under_way.popleft()
            place(i, flight.land())

    for i, journey in enumerate(journeys):
        carry_on(_AHEAD - 1)
        under_way.append((i, Flight(journey)))
    carry_on(0)


def ahead(journeys: Iterable[Journey]) -> Iterator[Array]:
    """What journeys bring, in order; the next ones are under way while one is made use of."""
    waiting = iter(journeys)
    under_way: deque[Flight] = deque()
    for journey in waiting:
        under_way.append(Flight(journey))
        if len(under_way) > _AHEAD:
            yield _first(under_way)
    while under_way:
        yield _first(under_way)


def _first(under_way: deque[Flight]) -> Array:
    flight = under_way.popleft()
    found = flight.land()
    if under_way:
        under_way[0].advance()  # those behind it go on
    return found
