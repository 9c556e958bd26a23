"""How full each device is of activations at its peak, derived from the slices alone.

The same sums as the simulator's: the forward of a slice keeps its activations until its backward,
and a backward that recomputes holds those of one operator besides. A device goes backward in
reverse order, so what it holds during a backward is what it kept up to that slice.
"""

from collections.abc import Iterable

from spindle_sim.plan.model import Backward, Slice
from spindle_sim.plan.rules.expected import ExpectedMetaOp
from spindle_sim.plan.rules.subject import Subject

__all__ = ["peak_activation_bytes"]


def peak_activation_bytes(subject: Subject) -> dict[int, float]:
    """Give the peak of every device with slices; 0 where none of them keeps anything."""
    sizes = {
        item.id: _sizes(item, subject.metaops[item.metaop]) for item in subject.slices.values()
    }
    return {device: _peak(slices, sizes) for device, slices in subject.on_device.items()}


def _peak(slices: Iterable[Slice], sizes: dict[str, tuple[float, float]]) -> float:
    peak, level, number = 0.0, 0.0, 0
    for item in slices:  # as they execute
        if item.round != number:
            level, number = 0.0, item.round
        kept_bytes, recomputed_bytes = sizes[item.id]
        level += kept_bytes
        peak = max(peak, level + recomputed_bytes)
    return peak


def _sizes(item: Slice, metaop: ExpectedMetaOp) -> tuple[float, float]:
    """Give what each device of a slice keeps for its backward, and holds besides during it."""
    if metaop.backward is Backward.NONE or not _is_divided(item):
        return 0.0, 0.0
    node = metaop.operator
    samples = node.items * node.batch_size / item.dp
    cost = node.cost
    whole_bytes = samples * (cost.saved_bytes / item.tp + cost.saved_replicated_bytes)
    num_ops = min(item.num_ops, metaop.num_ops)  # the rule of coverage tells of others
    if not item.recompute:
        return num_ops * whole_bytes, 0.0
    first_bytes = metaop.output_bytes if item.first_op else metaop.input_bytes
    return (first_bytes + (num_ops - 1) * metaop.output_bytes) / item.dp, whole_bytes


def _is_divided(item: Slice) -> bool:
    """Tell whether the slice's degrees make sense; the rule of allocations tells of others."""
    return item.dp >= 1 and item.tp >= 1 and item.dp * item.tp == len(item.devices)
