"""What a plan does that nobody asked for, and why: rounds, recomputation, ZeRO, tensor ranks."""

from typing import TYPE_CHECKING

from spindle_sim.cli.parallelism import parallelism_note
from spindle_sim.units import counted, format_bytes

if TYPE_CHECKING:
    from spindle_sim.plan import Plan

__all__ = ["num_rounds", "num_stages", "plan_note", "recomputed_metaops", "tensor_parallel"]

_SHARDED = {
    1: "optimizer states sharded (ZeRO-1)",
    2: "optimizer states and gradients sharded (ZeRO-2)",
    3: "optimizer states, gradients and parameters sharded (ZeRO-3)",
}


def num_rounds(plan: "Plan") -> int:
    """Give how many times the plan goes forward and backward before it synchronizes."""
    return len({item.round for item in plan.slices})


def num_stages(plan: "Plan") -> int:
    """Give the number of stages of all rounds."""
    return len({(item.round, item.stage) for item in plan.slices})


def recomputed_metaops(plan: "Plan") -> int:
    """Give how many MetaOps have a slice that computes its forward twice to save memory."""
    return len({item.metaop for item in plan.slices if item.recompute})


def tensor_parallel(plan: "Plan") -> int:
    """Give the highest tensor-parallel degree of a slice."""
    return max((item.tp for item in plan.slices), default=1)


def plan_note(plan: "Plan") -> str:
    """Say in half a line what else the plan does, and why as far as it tells; "" for nothing."""
    parts: list[str] = []
    rounds, recomputed, tp = num_rounds(plan), recomputed_metaops(plan), tensor_parallel(plan)
    if rounds > 1:
        parts.append(f"{rounds} rounds{_why_rounds(plan)}")
    cut = max((item.micro_batches for item in plan.rounds), default=1)
    tuned = parallelism_note(plan)
    if cut > 1 and not tuned:
        parts.append(f"gradients accumulated over up to {cut} micro-batches")
    if recomputed:
        parts.append(f"{recomputed} of {counted(len(plan.metaops), 'MetaOp')} recomputed")
    if plan.zero_stage:
        parts.append(_SHARDED[plan.zero_stage])
    if tuned:
        parts.append(tuned)
    elif tp > 1:
        parts.append(f"tensor parallelism up to {tp}")
    return "; ".join(parts)


def _why_rounds(plan: "Plan") -> str:
    from spindle_sim.planner import STRATEGIES

    strategy = STRATEGIES.get(plan.strategy)
    if strategy is None:
        return ""
    if strategy.one_task_a_round:
        return ", one a task"
    needed, free = _activations_of_one_round(plan), _free_bytes(plan)
    if not strategy.chooses_rounds or needed <= free:
        return ""
    part = " of a micro-batch" if plan.rounds else ""
    return (
        f", since all tasks' activations{part} together ({format_bytes(needed)}) don't fit"
        f" beside the states ({format_bytes(free)} left)"
    )


def _activations_of_one_round(plan: "Plan") -> float:
    """Give what all devices would keep if every forward came before every backward.

    Of a plan in micro-batches: every forward of one.
    """
    from spindle_sim.estimate.memory import activation_bytes

    metaops = plan.metaop_by_id()
    return sum(
        len(item.devices)
        * activation_bytes(
            metaops[item.metaop],
            num_ops=item.num_ops,
            dp=item.dp,
            tp=item.tp,
            micro_batches=plan.micro_batches(item.round),
        )
        for item in plan.slices
    )


def _free_bytes(plan: "Plan") -> float:
    """Give what parameters, gradients and optimizer states leave of all devices' memory."""
    states = sum(item.total_bytes - item.activation_bytes for item in plan.memory)
    return plan.cluster.usable_memory_bytes * plan.cluster.num_devices - states
