"""What a step costs: work over rate, bytes over bandwidth, and how much memory it holds.

One model for every step of every plan. Rates are those of a kind of machine; they decide between
plans and are no promise of seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from linops.operator import LinearOperator, Operator

__all__ = ["Machine", "leaf_seconds"]


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
