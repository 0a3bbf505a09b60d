"""The engines that run a program: one small file each, all held to `serial`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from linops.errors import PlacementError
from sharding.devices import family

if TYPE_CHECKING:
    from sharding.plans import Plan
    from sharding.program import Program

__all__ = ["Engine", "engine_of", "prepared"]


class Engine(Protocol):
    """What runs the programs of one plan."""

    plan: Plan

    def run(self, program: Program, inputs: Sequence[Any]) -> list[Any]:
        """The outputs of a program for placed inputs, placed."""

    def linearised(self, program: Program, inputs: Sequence[Any]) -> Engine:
        """The engine with every nonlinear leaf replaced by its Jacobian at these inputs."""

    def local(self, operator: Any) -> Any:
        """The operator on one rank's parts."""


_ENGINES = {
    ("serial", "threads"): ("serial", "SerialEngine"),
    ("threads", "threads"): ("threads", "ThreadEngine"),
    ("threads", "jax"): ("device_threads", "DeviceThreadEngine"),
    ("shard_map", "jax"): ("shard_map", "ShardMapEngine"),
    ("torch", "torch"): ("torch_ranks", "RankEngine"),
}


def engine_of(plan: Plan) -> Engine:
    """The engine of a plan's executor and devices, made once a plan."""
    found = plan.__dict__.get("_engine")
    if found is None:
        found = plan.__dict__["_engine"] = _made(plan)
    return found


def prepared(plan: Plan) -> Any:
    """The engine, made without asking whether its devices work; `engine_of` takes it over."""
    found = plan.__dict__.get("_prepared")
    if found is None:
        kind = family(plan.devices[0])
        # By batch devices exchange nothing: one program is as good as a worker each.
        executor = "shard_map" if plan.by_batch and kind == "jax" else plan.executor
        file, name = _ENGINES[executor, kind]
        engine = getattr(import_module(f"sharding.executors.{file}"), name)
        found = plan.__dict__["_prepared"] = engine(plan)
    return found


def _made(plan: Plan) -> Engine:
    kind = family(plan.devices[0])
    if (plan.executor, kind) not in _ENGINES:
        raise PlacementError(
            f"executor {plan.executor!r} cannot run on {plan.devices[0]}: these devices are "
            f"{kind}; plan for devices of its own kind"
        )
    if kind == "jax":
        from sharding import environment, probe

        environment.admit_jax(plan.devices)
        if plan.probe:
            probe.probe(plan.devices, plan.executor)
    engine: Engine = prepared(plan)
    return engine
