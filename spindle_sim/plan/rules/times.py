"""Times that can be: nothing computes faster than its devices, and starts are those of the order.

What a device must compute at least is what any kernel has to: a causal attention half of the square
that model FLOP count in full, a backward without gradients of the input or the weights one product
for each of the forward's.
"""

from collections.abc import Iterator

from spindle_sim.errors import PlanError
from spindle_sim.plan.model import Backward, Slice
from spindle_sim.plan.rules.expected import ExpectedMetaOp
from spindle_sim.plan.rules.subject import Subject
from spindle_sim.plan.rules.violation import Violation
from spindle_sim.plan.schedule import schedule

__all__ = ["check_durations", "check_starts"]

_TOLERANCE = 1e-6
_PRODUCTS_OF_BACKWARD = {
    Backward.FULL: 2.0,
    Backward.INPUT_ONLY: 1.0,
    Backward.WEIGHT_ONLY: 1.0,
    Backward.NONE: 0.0,
}


def check_durations(subject: Subject) -> Iterator[Violation]:
    """Give the slices, and the optimum, that are faster than the peak of their devices."""
    peak_flops = subject.plan.cluster.gpu.peak_flops
    for item in subject.slices.values():
        count = max(1, subject.plan.micro_batches(item.round))
        metaop = subject.metaops[item.metaop]
        yield from _durations(item, metaop, peak_flops, micro_batches=count)
    total_flops = sum(
        _forward_flops(metaop) * metaop.num_ops * (1 + _PRODUCTS_OF_BACKWARD[metaop.backward])
        for metaop in subject.metaops.values()
    )
    least_s = total_flops / (peak_flops * subject.plan.cluster.num_devices)
    found_s = subject.plan.optimum_s
    works = any(item.forward_s > 0 or item.backward_s > 0 for item in subject.plan.slices)
    if found_s < least_s * (1 - _TOLERANCE):
        message = f"optimum_s is {found_s}, all devices at their peak FLOP/s need {least_s} s"
        yield _violation(("plan",), f"plan: {message}")
    elif works and not found_s > 0:
        yield _violation(("plan",), f"plan: optimum_s is {found_s}, but its slices take time")


def check_starts(subject: Subject) -> Iterator[Violation]:
    """Give the slices that don't start when their order and flows say.

    For a plan whose slices, flows and order break no rule: of others nobody could say.
    """
    try:
        times = schedule(subject.plan)
    except PlanError as error:
        ids = tuple(item.id for item in subject.plan.slices[:1])
        yield Violation(rule="precedence", ids=ids, message=f"{error}")
        return
    tolerance_s = _TOLERANCE * times.makespan_s
    for item, scheduled in zip(subject.plan.slices, times.slices, strict=True):
        late_s = item.start_s - scheduled.forward_start_s
        if abs(late_s) > tolerance_s:
            message = (
                f"slice {item.id}: start_s is {item.start_s}, {abs(late_s):g} s"
                f" {'after' if late_s > 0 else 'before'} its inputs and devices are there"
                f" ({scheduled.forward_start_s} s)"
            )
            yield _violation((item.id,), message)


def _durations(
    item: Slice, metaop: ExpectedMetaOp, peak_flops: float, *, micro_batches: int
) -> Iterator[Violation]:
    if metaop.backward is Backward.NONE and item.backward_s:
        message = f"backward_s is {item.backward_s}, but {metaop.id} has no backward"
        yield _violation((item.id, metaop.id), f"slice {item.id}: {message}")
    if not item.devices:
        return  # the rule of allocations tells of it
    num_ops = max(0, min(item.num_ops, metaop.num_ops))  # the rule of coverage tells of others
    share = num_ops / (peak_flops * len(item.devices) * micro_batches)
    once_s = _forward_flops(metaop) * share
    products = _PRODUCTS_OF_BACKWARD[metaop.backward]
    if products and item.recompute:
        products += 1
    again_s = _attention_flops(metaop) * share if products and item.selective else 0.0
    least = (("forward_s", once_s), ("backward_s", products * once_s + again_s))
    for name, least_s in least:
        found_s = getattr(item, name)
        if found_s < least_s * (1 - _TOLERANCE):
            message = (
                f"slice {item.id}: {name} is {found_s}, its devices at their peak FLOP/s need"
                f" {least_s} s"
            )
            yield _violation((item.id,), message)


def _forward_flops(metaop: ExpectedMetaOp) -> float:
    """Give the FLOP that one operator's forward can't do without, over the whole batch."""
    node = metaop.operator
    skipped = sum(0.5 * part.flops for part in node.cost.attentions if part.causal)
    return (node.cost.flops - skipped) * node.items * node.batch_size


def _attention_flops(metaop: ExpectedMetaOp) -> float:
    """Give those of the attention core in it."""
    node = metaop.operator
    flops = sum((0.5 if part.causal else 1.0) * part.flops for part in node.cost.attentions)
    return flops * node.items * node.batch_size


def _violation(ids: tuple[str, ...], message: str) -> Violation:
    return Violation(rule="time", ids=ids, message=message)
