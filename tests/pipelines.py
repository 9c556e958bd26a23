"""Valid pipelined plans by hand: a chain of equal stages, each on its own devices."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from spindle_sim.cluster import Cluster
from spindle_sim.plan import Backward, DeviceMemory, MetaOp, Order, Plan, Round, Slice
from spindle_sim.plan.schedule import operation_order, schedule
from tests.builders import Part, make_cluster, make_plan, make_workload
from tests.stated_plans import stated


def pipelined_plan(
    *,
    ranks: int = 4,
    chunks: int = 1,
    micro_batches: int = 8,
    dp: int = 1,
    tp: int = 1,
    ops_per_stage: int = 1,
    order: Order = Order.ONE_FORWARD_ONE_BACKWARD,
    forward_s: Sequence[float] | float = 1.0,
    backward_s: Sequence[float] | float = 2.0,
    batch: int | None = None,
    parameters: int = 1_000_000,
    output_bytes: float = 1e6,
    cluster: Cluster | None = None,
    recompute: bool = False,
    zero_stage: int = 0,
) -> Plan:
    """Give one task whose stages are dealt to `ranks` groups of dp * tp devices, `chunks` each."""
    stages, width = ranks * chunks, dp * tp
    workload = make_workload(
        {"t": ("a",)},
        batch=batch or dp * micro_batches * 2,
        repeat=stages * ops_per_stage,
        parameters=parameters,
        output_bytes=output_bytes,
    )
    parts = [
        Part(
            metaop="t/a/x",
            devices=tuple(range(stage % ranks * width, (stage % ranks + 1) * width)),
            first_op=stage * ops_per_stage,
            num_ops=ops_per_stage,
            tp=tp,
            stage=stage,
            forward_s=_at(forward_s, stage),
            backward_s=_at(backward_s, stage),
            recompute=recompute,
        )
        for stage in range(stages)
    ]
    if cluster is None:
        cluster = make_cluster(ranks, width)
    rounds = (Round(round=0, micro_batches=micro_batches, order=order),)
    return with_rounds(stated(make_plan(workload, cluster, parts)), rounds, zero_stage=zero_stage)


@st.composite
def pipelines(draw: st.DrawFn) -> Plan:
    """Random valid plans: a round for each of one or two tasks, cut and pipelined on its own.

    Both tasks train the same eight operators, dealt to all devices in different ways.
    """
    tp, tasks = draw(st.sampled_from((1, 2))), draw(st.integers(1, 2))
    parts: list[Part] = []
    stages: list[int] = []
    rounds: list[Round] = []
    for number in range(tasks):
        ranks, chunks = draw(st.sampled_from((1, 2, 4))), draw(st.sampled_from((1, 2)))
        micro_batches = draw(st.sampled_from((4,) if chunks > 1 else (1, 2, 4)))
        order = draw(st.sampled_from(list(Order)))
        rounds.append(Round(round=number, micro_batches=micro_batches, order=order))
        width, num_ops = 4 // ranks * tp, 8 // (ranks * chunks)
        # A slice for each stage, or two that run behind one another.
        several = order is Order.ONE_FORWARD_ONE_BACKWARD and num_ops > 1 and draw(st.booleans())
        for first_op in range(0, 8, num_ops // 2 if several else num_ops):
            stage = first_op // num_ops
            stages.append(stage)
            parts.append(
                Part(
                    metaop=f"t{number}/a/x",
                    devices=tuple(range(stage % ranks * width, (stage % ranks + 1) * width)),
                    first_op=first_op,
                    num_ops=num_ops // 2 if several else num_ops,
                    tp=tp,
                    stage=len(parts),
                    round=number,
                    forward_s=draw(st.floats(1e-3, 3e-3)),
                    backward_s=draw(st.floats(1e-3, 3e-3)),
                    recompute=draw(st.booleans()),
                )
            )
    names: dict[str, tuple[str, ...]] = {f"t{number}": ("a",) for number in range(tasks)}
    workload = make_workload(names, batch=16, repeat=8)
    cluster = make_cluster(draw(st.sampled_from((1, 2))), 4 * tp, latency_s=1e-5)
    plan = stated(make_plan(workload, cluster, parts))
    # They have been scheduled one behind the other: their starts are in order.
    slices = [replace(item, stage=stage) for item, stage in zip(plan.slices, stages, strict=True)]
    plan = replace(plan, slices=tuple(slices))
    return with_rounds(plan, rounds, zero_stage=draw(st.integers(0, 3)))


def with_rounds(plan: Plan, rounds: Sequence[Round], *, zero_stage: int = 0) -> Plan:
    """Give a plan cut into micro-batches, with the starts and the memory that this makes."""
    plan = replace(
        plan,
        rounds=tuple(rounds),
        zero1=zero_stage > 0,
        shard_gradients=zero_stage > 1,
        shard_parameters=zero_stage > 2,
    )
    times = schedule(plan).by_id()
    slices = tuple(replace(item, start_s=times[item.id].forward_start_s) for item in plan.slices)
    plan = replace(plan, slices=slices)
    return replace(plan, memory=stated_memory(plan))


def stated_memory(plan: Plan) -> tuple[DeviceMemory, ...]:
    """Give each device's peak: its states, and what is in flight as it runs its operations."""
    by_id = plan.metaop_by_id()
    entries: list[DeviceMemory] = []
    for device in sorted({device for item in plan.slices for device in item.devices}):
        held = _held(plan, device)
        in_flight: list[tuple[int, int, float]] = []
        peak = 0.0
        for op in operation_order(plan):
            item = plan.slices[op.slice_index]
            if device not in item.devices or by_id[item.metaop].backward is Backward.NONE:
                continue
            kept, again = _sizes(item, by_id[item.metaop], plan.micro_batches(item.round))
            if not op.backward:
                in_flight.append((op.slice_index, op.micro_batch, kept))
            now = sum(size for _, _, size in in_flight)
            peak = max(peak, now + (again if op.backward else 0.0))
            if op.backward:
                in_flight.remove((op.slice_index, op.micro_batch, kept))
        entries.append(
            DeviceMemory(
                device=device,
                parameter_bytes=2 * _shared(held, divided=plan.shard_parameters)
                + (2 * sum(sorted(size for size, sharers, _ in held if sharers > 1)[-2:]))
                * plan.shard_parameters,
                gradient_bytes=2 * _shared(held, divided=plan.shard_gradients, frozen=False),
                optimizer_bytes=12 * _shared(held, divided=plan.zero1, frozen=False),
                activation_bytes=peak,
            )
        )
    return tuple(entries)


def _held(plan: Plan, device: int) -> list[tuple[float, int, bool]]:
    """Give (parameters on the device, devices to divide them over, frozen) of its operators."""
    by_id = plan.metaop_by_id()
    found: dict[tuple[str, int], tuple[float, int, bool]] = {}
    for item in plan.slices:
        if device not in item.devices:
            continue
        metaop = by_id[item.metaop]
        size = metaop.parameters - metaop.sharded_parameters * (1 - 1 / item.tp)
        for op in range(item.first_op, item.first_op + item.num_ops):
            sharers = [
                len(group.devices)
                for group in plan.parameter_groups
                if device in group.devices
                for part in group.parameter_sets
                if part.parameter_set == metaop.parameter_set
                and part.first_op <= op < part.first_op + part.num_ops
            ]
            found[metaop.parameter_set, op] = size, max(sharers, default=1), metaop.frozen
    return list(found.values())


def _shared(
    held: Sequence[tuple[float, int, bool]], *, divided: bool, frozen: bool = True
) -> float:
    return sum(
        size / (sharers if divided else 1)
        for size, sharers, is_frozen in held
        if frozen or not is_frozen
    )


def _sizes(item: Slice, metaop: MetaOp, micro_batches: int) -> tuple[float, float]:
    samples = metaop.batch / item.dp / micro_batches
    ranks = item.tp if item.sequence_parallel else 1
    dropped = metaop.saved_attention_bytes if item.selective else 0.0
    whole = samples * (metaop.saved_bytes / item.tp + metaop.saved_replicated_bytes / ranks)
    if item.recompute:
        later = metaop.output_bytes + metaop.context_bytes
        first = later if item.first_op else metaop.input_bytes
        return samples / ranks * (first + (item.num_ops - 1) * metaop.output_bytes), whole
    each = whole - samples * dropped / item.tp
    return item.num_ops * each + samples / ranks * metaop.context_bytes, 0.0


def _at(times_s: Sequence[float] | float, stage: int) -> float:
    return times_s if isinstance(times_s, (int, float)) else times_s[stage]
