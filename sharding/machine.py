"""What a step costs: work over rate, bytes over bandwidth, and how much memory it holds.

One model for every step of every plan. Rates are those of a kind of machine; they decide between
plans and are no promise of seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from linops.linear_operator import LinearOperator
from linops.operator import Operator
from sharding.steps import AllReduce, Movement, ReduceScatter, Step, Value

__all__ = ["Machine", "leaf_seconds", "movement_seconds"]

_VIEW = 1e-3
"""Of the latency of a step, what a movement that only takes views is priced at."""


@dataclass(frozen=True)
class Machine:
    """What one device can do, and the links between devices.

    Attributes
    ----------
    flops, bandwidth
        Rates of one device, in operations and bytes a second.
    link
        Bytes a second from device to device.
    latency
        Seconds for each step that starts on all devices.
    shared
        Whether all devices see one memory: planes of others are then read in place.
    cores
        Devices that really work at one time.
    memory
        Bytes that a device may hold; None where nobody knows.
    """

    flops: float
    bandwidth: float
    link: float
    latency: float
    shared: bool = False
    cores: int | None = None
    memory: float | None = None

    def at_once(self, devices: int) -> int:
        """How many of the devices work at one time."""
        return devices if self.cores is None else max(1, min(devices, self.cores))


def leaf_seconds(operator: Operator, machine: Machine) -> float:
    """Seconds of one apply of a leaf on one device; for linear ones of apply and adjoint."""
    cost = operator.cost()
    once = max(cost.flops / machine.flops, (cost.read + cost.written) / machine.bandwidth)
    return 2 * once if isinstance(operator, LinearOperator) else once


def movement_seconds(
    step: Step, values: Sequence[Value], mesh: tuple[int, ...], machine: Machine
) -> float:
    """Seconds of one movement between values; 0 for other steps."""
    if not isinstance(step, Movement):
        return 0.0
    volume = step.volume(values[step.inputs[0]], values[step.outputs[0]], mesh)
    if machine.shared:
        summed = isinstance(step, (AllReduce, ReduceScatter))
        return _VIEW * machine.latency + (
            volume / machine.bandwidth + machine.latency if summed else 0.0
        )
    return volume / math.prod(mesh) / machine.link + machine.latency if volume else 0.0
