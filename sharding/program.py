"""A program: a short list of steps between numbered values.

It is written by `sharding/writer.py`, which also turns it round into its adjoint. Which steps a
composition needs is decided in `sharding/drafts.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from linops.linear_operator import LinearOperator
from sharding.states import States
from sharding.steps import Compute, Movement, Ranges, Step, Value

__all__ = ["Program"]


@dataclass(frozen=True)
class Program:
    """Steps in order, the values that they name by number, and which come in and go out."""

    mesh: tuple[int, ...]
    values: tuple[Value, ...]
    steps: tuple[Step, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def computes(self) -> Iterator[Compute]:
        """The steps that apply a leaf."""
        return (step for step in self.steps if isinstance(step, Compute))

    def volume(self, step: Step) -> int:
        """Bytes that all devices together move in a step."""
        if not isinstance(step, Movement):
            return 0
        return step.volume(self.values[step.inputs[0]], self.values[step.outputs[0]], self.mesh)

    @cached_property
    def places(self) -> tuple[tuple[Ranges, ...], ...]:
        """For each value and device the planes of each array axis that lie there."""
        coordinates = list(product(*(range(n) for n in self.mesh)))
        return tuple(
            tuple(value.real(self.mesh, at) for at in coordinates) for value in self.values
        )

    @cached_property
    def readers(self) -> tuple[int, ...]:
        """For each value how often it is read, by steps and as an output."""
        counts = [0] * len(self.values)
        for step in self.steps:
            for k in step.inputs:
                counts[k] += 1
        for k in self.outputs:
            counts[k] += 1
        return tuple(counts)

    @property
    def linear(self) -> bool:
        """Whether every step is linear."""
        return all(isinstance(step.operator, LinearOperator) for step in self.computes())

    def adjoint(self, closing: Sequence[States] | None = None) -> Program:
        """The reversed program.

        Parameters
        ----------
        closing
            The states in which the cotangents of the inputs are wanted, and those of the outputs
            come: by default those of the forward program, so that a replicated input ends as a
            partial sum that one `AllReduce` closes.
        """
        from sharding.writer import reverse

        return reverse(self, closing)
