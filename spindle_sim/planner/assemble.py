"""From placed drafts to the plan: slices with times, flows, parameter groups, memory."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from spindle_sim.plan import (
    FORMAT_VERSION,
    Backward,
    Flow,
    InputHashes,
    Order,
    Plan,
    Round,
    Slice,
    input_hash,
    schedule,
)
from spindle_sim.planner.context import Context
from spindle_sim.planner.metagraph import DraftSlice, MetaGraph
from spindle_sim.planner.pool import device_memory, parameter_groups, shard_masks

__all__ = ["assemble", "complete", "merged"]

Placed = tuple[DraftSlice, tuple[int, ...]]


def assemble(
    context: Context,
    drafts: Sequence[DraftSlice],
    placements: Sequence[tuple[int, ...]],
    *,
    strategy: str,
    optimum_s: float,
) -> Plan:
    """Give the plan of these drafts on these devices, with `start_s` as transfers were free.

    Where the context is one micro-batch, the plan accumulates gradients over all of them.
    """
    slices = [
        _slice(context, f"s{index}", draft, devices)
        for index, (draft, devices) in enumerate(merged(drafts, placements))
    ]
    rounds: tuple[Round, ...] = ()
    whole = context
    if context.accumulated is not None:
        workload, graph = context.accumulated.workload, context.accumulated.graph
        whole = replace(context, workload=workload, graph=graph, accumulated=None)
        rounds = tuple(
            Round(round=number, micro_batches=context.micro_batches, order=Order.ACCUMULATE)
            for number in sorted({item.round for item in slices})
        )
    return complete(
        whole,
        slices,
        strategy=strategy,
        zero_stage=int(context.settings.zero1),
        optimum_s=optimum_s,
        rounds=rounds,
    )


def complete(
    context: Context,
    slices: Sequence[Slice],
    *,
    strategy: str,
    zero_stage: int,
    optimum_s: float,
    rounds: tuple[Round, ...] = (),
    overlap_sync: bool = False,
) -> Plan:
    """Give the plan of these slices: their flows, parameter groups, memory, and times.

    The slices' own `start_s` only says in which order those of one stage run.
    """
    graph, workload, cluster = context.graph, context.workload, context.cluster
    metaops = tuple(node.metaop for node in graph.nodes.values())
    masks = shard_masks(metaops, slices)
    plan = Plan(
        format_version=FORMAT_VERSION,
        strategy=strategy,
        inputs=InputHashes(
            workload=input_hash(workload),
            cluster=input_hash(cluster),
            profile=context.estimator.profile_hash,
        ),
        workload=workload,
        cluster=cluster,
        metaops=metaops,
        slices=tuple(slices),
        flows=tuple(_flows(graph, slices)),
        parameter_groups=parameter_groups(metaops, masks),
        memory=(),
        optimum_s=optimum_s,
        zero1=zero_stage >= 1,
        profile=context.estimator.profile_name,
        seed=context.seed,
        rounds=rounds,
        shard_gradients=zero_stage >= 2,  # noqa: PLR2004
        shard_parameters=zero_stage >= 3,  # noqa: PLR2004
        overlap_sync=overlap_sync,
    )
    times = schedule(plan).slices
    started = tuple(
        replace(item, start_s=time.forward_start_s)
        for item, time in zip(slices, times, strict=True)
    )
    return replace(plan, slices=started, memory=device_memory(plan, masks))


def merged(drafts: Sequence[DraftSlice], placements: Sequence[tuple[int, ...]]) -> list[Placed]:
    """Give the drafts by round and stage, those that only go on joined to what they go on from.

    A draft goes on where the draft before it on each of its devices is of the same MetaOp, on the
    same devices in the same order.
    """
    order = sorted(
        zip(drafts, placements, strict=True), key=lambda placed: (placed[0].round, placed[0].stage)
    )
    joined: list[Placed] = []
    last: dict[int, int] = {}  # device -> index in `joined` of what it runs last
    for draft, devices in order:
        before = {last.get(device, -1) for device in devices}
        index = before.pop() if len(before) == 1 else -1
        if index >= 0 and _goes_on(joined[index], draft, devices):
            source = joined[index][0]
            joined[index] = replace(source, num_ops=source.num_ops + draft.num_ops), devices
            continue
        joined.append((draft, devices))
        last.update(dict.fromkeys(devices, len(joined) - 1))
    return joined


def _goes_on(placed: Placed, draft: DraftSlice, devices: tuple[int, ...]) -> bool:
    source, source_devices = placed
    return (
        source_devices == devices
        and source.metaop == draft.metaop
        and source.round == draft.round
        and source.tp == draft.tp
        and source.recompute == draft.recompute
        and source.first_op + source.num_ops == draft.first_op
    )


def _slice(context: Context, name: str, draft: DraftSlice, devices: tuple[int, ...]) -> Slice:
    curve = context.curve(draft.metaop, recompute=draft.recompute)
    n = len(devices)
    return Slice(
        id=name,
        metaop=draft.metaop,
        first_op=draft.first_op,
        num_ops=draft.num_ops,
        stage=draft.stage,
        devices=devices,
        dp=n // draft.tp,
        tp=draft.tp,
        forward_s=draft.num_ops * curve.forward_s(n),
        backward_s=draft.num_ops * curve.backward_s(n),
        start_s=0.0,
        round=draft.round,
        recompute=draft.recompute,
    )


def _flows(graph: MetaGraph, slices: Sequence[Slice]) -> Iterator[Flow]:
    runs: dict[str, list[Slice]] = {}
    for item in slices:
        runs.setdefault(item.metaop, []).append(item)
    for name, run in runs.items():
        metaop = graph.nodes[name].metaop
        for source, target in pairwise(run):
            yield Flow(
                source_slice=source.id,
                target_slice=target.id,
                bytes=metaop.hands(metaop) * metaop.batch,
                gradient=metaop.backward is not Backward.NONE,
            )
    for edge in graph.edges:
        yield Flow(
            source_slice=runs[edge.source][-1].id,
            target_slice=runs[edge.target][0].id,
            bytes=edge.bytes,
            gradient=edge.gradient,
        )
