"""What each device holds of the parameters: which operators' weights, and who else has them.

Read off the slices, not off the plan's parameter groups, so that a plan of another tool needs to
state nothing twice.
"""

from dataclasses import dataclass

from spindle_sim.estimate.memory import (
    GRADIENT_BYTES,
    OPTIMIZER_BYTES,
    PARAMETER_BYTES,
    shard_parameters,
)
from spindle_sim.plan import MetaOp, Plan

__all__ = ["Holding", "holdings"]

_PARAMETERS_SHARDED = 3  # the ZeRO stages that shard parameters, and gradients
_GRADIENTS_SHARDED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Parameters on one device, in numbers of parameters.

    `stepped` is what its optimizer updates: with ZeRO a device steps its part of each group only.
    `trained` parameters and their `gradients` are parts as well from the stage on that says so;
    `gathered` are those of the two largest operators that it holds in part, whole: while it
    computes, the one that runs and the next.
    """

    trained: float = 0.0
    frozen: float = 0.0
    gradients: float = 0.0
    stepped: float = 0.0
    gathered: float = 0.0

    @property
    def state_bytes(self) -> float:
        """Weights and gradients in bf16; float32 master weights and two Adam moments."""
        return (
            PARAMETER_BYTES * (self.trained + self.frozen)
            + GRADIENT_BYTES * self.gradients
            + OPTIMIZER_BYTES * self.stepped
        )

    @property
    def gathered_bytes(self) -> float:
        """Weights that are there only while the device computes."""
        return PARAMETER_BYTES * self.gathered


def holdings(plan: Plan) -> dict[int, Holding]:
    """Give what each device with a slice holds; operators of a shared module count once."""
    metaops = plan.metaop_by_id()
    sizes: dict[int, dict[tuple[str, int], tuple[MetaOp, int]]] = {}
    for item in plan.slices:
        metaop = metaops[item.metaop]
        for device in item.devices:
            held = sizes.setdefault(device, {})
            for index in range(item.first_op, item.first_op + item.num_ops):
                held.setdefault((metaop.parameter_set, index), (metaop, item.tp))
    members = _members(plan) if plan.zero1 else {}
    found: dict[int, Holding] = {}
    for device, held in sorted(sizes.items()):
        parts: list[tuple[float, int]] = []
        frozen = 0.0
        for (name, index), (metaop, tp) in held.items():
            size = shard_parameters(metaop, tp)
            if metaop.frozen:
                frozen += size
            else:
                parts.append((size, members.get((device, name, index), 1)))
        found[device] = _holding(parts, frozen, plan.zero_stage)
    return found


def _holding(parts: list[tuple[float, int]], frozen: float, stage: int) -> Holding:
    """Add up the sizes of operators, each with how many devices share it."""
    whole = sum(size for size, _ in parts)
    shared = sum(size / count for size, count in parts)
    in_part = sorted(size for size, count in parts if count > 1)
    return Holding(
        trained=shared if stage >= _PARAMETERS_SHARDED else whole,
        frozen=frozen,
        gradients=shared if stage >= _GRADIENTS_SHARDED else whole,
        stepped=shared,
        gathered=sum(in_part[-2:]) if stage >= _PARAMETERS_SHARDED else 0.0,
    )


def _members(plan: Plan) -> dict[tuple[int, str, int], int]:
    """Give the size of the parameter group of each device and operator."""
    return {
        (device, part.parameter_set, index): len(group.devices)
        for group in plan.parameter_groups
        for part in group.parameter_sets
        for index in range(part.first_op, part.first_op + part.num_ops)
        for device in group.devices
    }
