"""Devices that do the same things at the same times, simulated as one of them.

Where slices repeat for many micro-batches, it is the ranks of a pipeline stage that would cost
most; where every slice runs once, nothing would be won.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from spindle_sim.plan import Plan
from spindle_sim.plan.lanes import leaders

__all__ = ["Crews", "crews", "repeats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crews:
    """Who stands for each device, and for the devices of each slice of the plan."""

    leader: dict[int, int]
    slices: tuple[tuple[int, ...], ...]

    def of(self, devices: Iterable[int]) -> tuple[int, ...]:
        """Give those who stand for some devices."""
        return tuple(dict.fromkeys(self.leader.get(device, device) for device in devices))


def repeats(plan: Plan) -> bool:
    """Tell whether operations or collectives of a plan repeat, so that it pays to join devices."""
    return bool(plan.rounds) or plan.shard_gradients


def crews(plan: Plan) -> Crews:
    """Join the devices that are in the same slices and parameter groups."""
    if not repeats(plan):
        return Crews(leader={}, slices=tuple(item.devices for item in plan.slices))
    groups = [item.devices for item in plan.slices]
    leader = leaders([*groups, *(group.devices for group in plan.parameter_groups)])
    joined = Crews(leader=leader, slices=())
    return Crews(leader=leader, slices=tuple(joined.of(devices) for devices in groups))
