"""How full each device is of activations at its peak, derived from the slices alone.

The same sums as the simulator's: the forward of a slice keeps its activations until its backward,
for each micro-batch in flight, and a backward that recomputes holds those of one operator besides.
A device that flushes goes backward in reverse order, so what it holds during a backward is what it
kept up to that slice; one that accumulates does so for each micro-batch by itself. A pipeline frees
what it kept first.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from spindle_sim.plan.model import Backward, Order, Round, Slice
from spindle_sim.plan.pipeline import Pipeline, pipeline_mistakes, pipeline_of, rank_order
from spindle_sim.plan.rules.expected import ExpectedMetaOp
from spindle_sim.plan.rules.subject import Subject

__all__ = ["peak_activation_bytes"]

_Sizes = Mapping[str, tuple[float, float]]  # of each slice: kept, and held besides in the backward


def peak_activation_bytes(subject: Subject) -> dict[int, float]:
    """Give the peak of every device with slices; 0 where none of them keeps anything."""
    rounds = {item.round: item for item in subject.plan.rounds if item.micro_batches >= 1}
    sizes = {
        item.id: _sizes(
            item, subject.metaops[item.metaop], rounds.get(item.round, Round(round=item.round))
        )
        for item in subject.slices.values()
    }
    shapes = {number: _shape(subject, one) for number, one in rounds.items()}
    peaks: dict[int, float] = {}
    known: dict[tuple[str, ...], float] = {}  # many devices run the same slices
    for device, slices in subject.on_device.items():
        ids = tuple(item.id for item in slices)
        if ids not in known:
            known[ids] = max(
                _peak(list(members), sizes, rounds.get(number), shapes.get(number))
                for number, members in groupby(slices, key=lambda item: item.round)
            )
        peaks[device] = known[ids]
    return peaks


def _shape(subject: Subject, one: Round) -> Pipeline | None:
    """Give the shape of a pipelined round; of one that can't be, the rule of rounds tells."""
    members = [item for item in subject.slices.values() if item.round == one.round]
    pipelined = one.order is Order.ONE_FORWARD_ONE_BACKWARD
    if not pipelined or not members or pipeline_mistakes(members, one.micro_batches):
        return None
    return pipeline_of(members, one.micro_batches)


def _peak(
    slices: Sequence[Slice], sizes: _Sizes, one: Round | None, shape: Pipeline | None
) -> float:
    """Give the peak of one device in one round, whose slices come as they execute."""
    if shape is not None:
        return _pipelined_peak(slices, sizes, shape)
    if one is None or one.order is Order.ACCUMULATE:  # of several, one is in flight
        return _flushed_peak(slices, sizes)
    before = (one.micro_batches - 1) * sum(sizes[item.id][0] for item in slices)
    return before + _flushed_peak(slices, sizes)


def _flushed_peak(slices: Iterable[Slice], sizes: _Sizes) -> float:
    """Give the peak of the last micro-batch alone."""
    peak, level = 0.0, 0.0
    for item in slices:
        kept_bytes, recomputed_bytes = sizes[item.id]
        level += kept_bytes
        peak = max(peak, level + recomputed_bytes)
    return peak


def _pipelined_peak(slices: Sequence[Slice], sizes: _Sizes, shape: Pipeline) -> float:
    by_stage: dict[int, list[Slice]] = {}
    for item in slices:
        by_stage.setdefault(item.stage, []).append(item)
    peak, level = 0.0, 0.0
    for block in rank_order(shape, slices[0].stage):
        own = by_stage[block.stage]
        for item in reversed(own) if block.backward else own:
            kept_bytes, recomputed_bytes = sizes[item.id]
            if block.backward:
                peak = max(peak, level + recomputed_bytes)
                level -= kept_bytes
            else:
                level += kept_bytes
                peak = max(peak, level)
    return peak


def _sizes(item: Slice, metaop: ExpectedMetaOp, one: Round) -> tuple[float, float]:
    """Give what each device keeps of a micro-batch for its backward, and holds besides in it."""
    if metaop.backward is Backward.NONE or not _is_divided(item):
        return 0.0, 0.0
    node = metaop.operator
    samples = node.items * node.batch_size / (item.dp * one.micro_batches)
    cost = node.cost
    # Sequence parallelism divides the tokens of what tensor parallelism leaves whole.
    ranks = item.tp if item.sequence_parallel else 1
    whole_bytes = samples * (cost.saved_bytes / item.tp + cost.saved_replicated_bytes / ranks)
    num_ops = min(item.num_ops, metaop.num_ops)  # the rule of coverage tells of others
    if not item.recompute:
        dropped_bytes = metaop.saved_attention_bytes / node.items if item.selective else 0.0
        context_bytes = metaop.context_bytes / (item.dp * one.micro_batches * ranks)
        return num_ops * (whole_bytes - samples * dropped_bytes / item.tp) + context_bytes, 0.0
    first_bytes = metaop.hands(metaop) if item.first_op else metaop.input_bytes
    kept_bytes = first_bytes + (num_ops - 1) * metaop.output_bytes
    return kept_bytes / (item.dp * one.micro_batches * ranks), whole_bytes


def _is_divided(item: Slice) -> bool:
    """Tell whether the slice's degrees make sense; the rule of allocations tells of others."""
    return item.dp >= 1 and item.tp >= 1 and item.dp * item.tp == len(item.devices)
