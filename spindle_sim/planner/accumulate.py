"""Gradient accumulation: a workload whose batches are cut, to plan what one micro-batch needs.

A plan of the cut workload, run several times before it synchronizes, is one of the whole
(`Order.ACCUMULATE`). It keeps the activations of one micro-batch at a time. What needs its whole
batch at once, as a contrastive loss does, can't be cut.
"""

from collections.abc import Iterator
from dataclasses import replace

from spindle_sim.plan import Order, Plan
from spindle_sim.planner.assemble import complete
from spindle_sim.planner.context import Accumulated, Context, Settings
from spindle_sim.planner.contract import contract
from spindle_sim.planner.settings import choose

__all__ = [
    "accumulation",
    "can_shrink",
    "cut",
    "cuts",
    "heaviest_last",
    "is_coupled",
    "is_memory_bound",
]


def cuts(context: Context) -> Iterator[Context]:
    """Give the context, then with all batches cut in 2, 4, 8, ... while that divides them all."""
    yield context
    if is_coupled(context):
        return
    count = 2
    while all(task.batch_size % count == 0 for task in context.workload.tasks):
        yield cut(context, count)
        count *= 2


def cut(context: Context, count: int) -> Context:
    """Give the context of one of `count` micro-batches.

    The heaviest task comes last: the gradients of what all tasks share can only synchronize beside
    the last micro-batch of the last round.
    """
    order = sorted(context.workload.tasks, key=lambda task: _flops(context, task.name))
    tasks = tuple(replace(task, batch_size=task.batch_size // count) for task in order)
    workload = replace(context.workload, tasks=tasks)
    return replace(
        context,
        workload=workload,
        graph=contract(workload),
        accumulated=Accumulated(
            micro_batches=count, workload=context.workload, graph=context.graph
        ),
    )


def heaviest_last(context: Context, plan: Plan) -> Plan:
    """Give the plan with its rounds ordered by the backward of their last micro-batch.

    Rounds are independent but for the gradients, which are complete in the last one. The plan
    itself is given where they are in that order.
    """
    work_s: dict[int, float] = {}
    for item in plan.slices:
        device_s = len(item.devices) * item.backward_s
        work_s[item.round] = work_s.get(item.round, 0.0) + device_s
    place = {number: at for at, number in enumerate(sorted(work_s, key=lambda n: (work_s[n], n)))}
    if all(number == at for number, at in place.items()):
        return plan
    slices = sorted(
        (replace(item, round=place[item.round]) for item in plan.slices),
        key=lambda item: item.round,
    )
    rounds = sorted(
        (replace(one, round=place[one.round]) for one in plan.rounds), key=lambda one: one.round
    )
    return complete(
        context,
        [replace(item, id=f"s{at}") for at, item in enumerate(slices)],
        strategy=plan.strategy,
        zero_stage=plan.zero_stage,
        optimum_s=plan.optimum_s,
        rounds=tuple(rounds),
    )


def accumulation(plan: Plan) -> int:
    """Give over how many micro-batches a plan accumulates gradients; 1 where it doesn't."""
    counts = [item.micro_batches for item in plan.rounds if item.order is Order.ACCUMULATE]
    return max(counts, default=1)


def is_coupled(context: Context) -> bool:
    """Tell whether something needs its whole batch at once."""
    return any(node.metaop.batch_coupled for node in context.graph.nodes.values())


def can_shrink(context: Context) -> bool:
    """Tell whether smaller micro-batches may leave a device fewer samples than now."""
    most = max(task.batch_size for task in context.workload.tasks)
    return most > context.cluster.num_devices


def is_memory_bound(context: Context, plan: Plan, *, chooses_rounds: bool) -> bool:
    """Tell whether more memory for activations would make it another plan.

    It recomputes, or has several rounds since the activations of a single one don't fit.
    """
    if any(item.recompute for item in plan.slices):
        return True
    if not chooses_rounds or len({item.round for item in plan.slices}) == 1:
        return False
    modules = {name: node.metaop.module for name, node in context.graph.nodes.items()}
    degrees = {modules[item.metaop]: item.tp for item in plan.slices}
    settings = Settings(tp=tuple(degrees.items()), zero1=plan.zero1)
    everything = tuple(task.name for task in context.workload.tasks)
    (single,) = choose(replace(context, settings=settings), [(everything,)])
    return bool(single.settings.recompute) or single.misfit


def _flops(context: Context, task: str) -> float:
    metaops = (context.graph.nodes[name].metaop for name in context.metaops_of(task))
    return sum(metaop.num_ops * metaop.flops for metaop in metaops)
