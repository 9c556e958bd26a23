"""Section 5.5.2's other placement: the same slices at the same times on consecutive devices.

The planner's own sequential placement plans anew and takes the schedule that suits it best. The
paper's ablation changes the placement alone, so here the schedule stays: slices take, in the order
in which they start, the first devices that are free then.
"""

from collections.abc import Sequence
from dataclasses import replace

from spindle_sim.plan import Plan, Slice, schedule
from spindle_sim.planner.pool import parameter_groups, shard_masks

__all__ = ["placed_in_order"]


def placed_in_order(plan: Plan) -> Plan:
    """Give the plan with every slice on the first free devices; its memory isn't worked out."""
    times = schedule(plan).by_id()
    order = sorted(
        range(len(plan.slices)),
        key=lambda index: (plan.slices[index].round, times[plan.slices[index].id].forward_start_s),
    )
    free_at = [0.0] * plan.cluster.num_devices
    placed: dict[int, Slice] = {}
    for index in order:
        item = plan.slices[index]
        span = times[item.id]
        devices = _first_free(free_at, item, span.forward_start_s)
        for device in devices:
            free_at[device] = span.forward_end_s
        placed[index] = replace(item, devices=devices)
    slices = tuple(placed[index] for index in range(len(plan.slices)))
    groups = parameter_groups(plan.metaops, shard_masks(plan.metaops, slices))
    return replace(plan, slices=slices, parameter_groups=groups, memory=())


def _first_free(free_at: Sequence[float], item: Slice, start_s: float) -> tuple[int, ...]:
    """Give the first aligned tensor-parallel groups that are free by then, as many as it needs.

    Where rounding leaves too few, those that get free first.
    """
    firsts = range(0, len(free_at), item.tp)

    def key(first: int) -> tuple[float, int]:
        free_s = max(free_at[first : first + item.tp])
        late_s = free_s - start_s
        return (late_s if late_s > _ROUNDING * max(free_s, 1e-9) else 0.0, first)

    chosen = sorted(sorted(firsts, key=key)[: item.dp])
    return tuple(first + rank for first in chosen for rank in range(item.tp))


_ROUNDING = 1e-6
