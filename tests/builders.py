"""Valid plans without a planner, by hand; `tests/random_plans.py` makes random ones of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import networkx as nx

from spindle_sim.cluster import Cluster, Gpu
from spindle_sim.plan import (
    FORMAT_VERSION,
    Backward,
    DeviceMemory,
    Flow,
    InputHashes,
    MetaOp,
    ParameterGroup,
    ParameterRange,
    Plan,
    Slice,
)
from spindle_sim.plan.document import input_hash
from spindle_sim.plan.schedule import schedule
from spindle_sim.workload import (
    Block,
    Custom,
    DataFlow,
    Gemm,
    Module,
    ModuleUse,
    Task,
    Workload,
)

GPU = Gpu(
    name="test-gpu",
    memory_bytes=80e9,
    memory_bandwidth_bytes_per_s=2e12,
    peak_flops=3e14,
    link="test link",
    link_bandwidth_bytes_per_s=200e9,
    collective_bandwidth_bytes_per_s=160e9,
    source="made up for tests",
)


def make_cluster(
    num_nodes: int = 2,
    devices_per_node: int = 4,
    *,
    island_size: int | None = None,
    nics_per_node: int = 1,
    nic_bandwidth_bytes_per_s: float = 50e9,
    nic_efficiency: float = 1.0,
    oversubscription: float = 1.0,
    latency_s: float = 0.0,
) -> Cluster:
    """Give a cluster of round figures, without latencies unless they are given."""
    return Cluster(
        name="test",
        gpu=GPU,
        num_nodes=num_nodes,
        devices_per_node=devices_per_node,
        island_size=island_size or devices_per_node,
        nics_per_node=nics_per_node,
        nic_bandwidth_bytes_per_s=nic_bandwidth_bytes_per_s,
        nic_efficiency=nic_efficiency,
        oversubscription=oversubscription,
        link_latency_s=latency_s,
        network_latency_s=2 * latency_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One slice of a hand-made plan."""

    metaop: str
    devices: tuple[int, ...]
    first_op: int = 0
    num_ops: int = 1
    tp: int = 1
    stage: int = 0
    round: int = 0
    forward_s: float = 1.0
    backward_s: float = 2.0
    recompute: bool = False


def make_workload(
    chains: dict[str, tuple[str, ...]],
    *,
    batch: int = 8,
    repeat: int = 1,
    parameters: int = 1_000_000,
    output_bytes: float = 1e6,
    frozen: tuple[str, ...] = (),
) -> Workload:
    """Give tasks that are chains of modules: {"task": ("a", "b")}; a module is one block "x"."""
    names = sorted({name for chain in chains.values() for name in chain})
    return Workload(
        name="hand-made",
        modules=tuple(
            Module(
                name=name,
                blocks=(
                    Block(
                        name="x",
                        operator=make_operator(name, parameters, output_bytes),
                        repeat=repeat,
                    ),
                ),
                frozen=name in frozen,
            )
            for name in names
        ),
        tasks=tuple(
            Task(
                name=task,
                batch_size=batch,
                uses=tuple(ModuleUse(name=name, module=name, tokens=1) for name in chain),
                flows=tuple(DataFlow(source=a, target=b) for a, b in pairwise(chain)),
            )
            for task, chain in chains.items()
        ),
    )


def make_plan(
    workload: Workload, cluster: Cluster, parts: Sequence[Part], *, zero1: bool = False
) -> Plan:
    """Give the plan of these slices ("s0", "s1", ...), with flows, groups, memory and starts."""
    metaops = make_metaops(workload)
    by_id = {metaop.id: metaop for metaop in metaops}
    slices = tuple(
        Slice(
            id=f"s{index}",
            metaop=part.metaop,
            first_op=part.first_op,
            num_ops=part.num_ops,
            stage=part.stage,
            devices=part.devices,
            dp=len(part.devices) // part.tp,
            tp=part.tp,
            forward_s=part.forward_s,
            backward_s=0.0 if by_id[part.metaop].backward is Backward.NONE else part.backward_s,
            start_s=0.0,
            round=part.round,
            recompute=part.recompute,
        )
        for index, part in enumerate(parts)
    )
    groups = make_groups(metaops, slices)
    plan = Plan(
        format_version=FORMAT_VERSION,
        strategy="hand-made",
        inputs=InputHashes(
            workload=input_hash(workload), cluster=input_hash(cluster), profile="0" * 64
        ),
        workload=workload,
        cluster=cluster,
        metaops=metaops,
        slices=slices,
        flows=make_flows(metaops, slices),
        parameter_groups=groups,
        memory=make_memory(metaops, slices, groups, zero1=zero1),
        optimum_s=0.0,
        zero1=zero1,
        profile="hand-made",
    )
    scheduled = schedule(plan)
    times = scheduled.by_id()
    return replace(
        plan,
        optimum_s=scheduled.makespan_s,
        slices=tuple(replace(item, start_s=times[item.id].forward_start_s) for item in slices),
    )


def make_metaops(workload: Workload) -> tuple[MetaOp, ...]:
    """Give a MetaOp for each block of each use, in topological order."""
    metaops: list[MetaOp] = []
    for task in workload.tasks:
        graph: nx.DiGraph[str] = nx.DiGraph()
        graph.add_nodes_from(use.name for use in task.uses)
        graph.add_edges_from((flow.source, flow.target) for flow in task.flows)
        uses = {use.name: use for use in task.uses}
        ends: dict[str, MetaOp] = {}
        for name in nx.topological_sort(graph):
            module = workload.module(uses[name].module)
            before = [ends[source] for source in graph.predecessors(name)]
            for block in module.blocks:
                cost = block.operator.cost(tokens=1)
                metaop = MetaOp(
                    id=f"{task.name}/{name}/{block.name}",
                    task=task.name,
                    module=module.name,
                    kind=block.operator.kind,
                    num_ops=block.repeat,
                    batch=task.batch_size,
                    level=max((item.level + 1 for item in before), default=0),
                    predecessors=tuple(item.id for item in before),
                    parameter_set=f"{module.name}/{block.name}",
                    parameters=block.operator.parameters,
                    sharded_parameters=block.operator.sharded_parameters,
                    frozen=module.frozen,
                    backward=_backward(
                        before,
                        # A tied projection trains the table of another module.
                        trains=not module.frozen
                        and (
                            block.operator.parameters > 0 or getattr(block.operator, "tied", False)
                        ),
                        frozen=module.frozen,
                        num_ops=block.repeat,
                    ),
                    flops=cost.flops * task.batch_size,
                    input_bytes=sum(item.output_bytes for item in before),
                    output_bytes=cost.output_bytes,
                    saved_bytes=cost.saved_bytes,
                    saved_replicated_bytes=cost.saved_replicated_bytes,
                )
                metaops.append(metaop)
                before = [metaop]
            ends[name] = before[0]
    return tuple(metaops)


def make_flows(metaops: Sequence[MetaOp], slices: Sequence[Slice]) -> tuple[Flow, ...]:
    """Give the flows within MetaOps (from run to run) and between them (from last to first)."""
    by_id = {metaop.id: metaop for metaop in metaops}
    runs: dict[str, list[Slice]] = {metaop.id: [] for metaop in metaops}
    for item in sorted(slices, key=lambda item: item.first_op):
        runs[item.metaop].append(item)
    flows: list[Flow] = []
    for metaop in metaops:
        own = runs[metaop.id]
        pairs = list(pairwise(own))
        pairs += [(runs[source][-1], own[0]) for source in metaop.predecessors]
        for source, target in pairs:
            giver = by_id[source.metaop]
            flows.append(
                Flow(
                    source_slice=source.id,
                    target_slice=target.id,
                    bytes=_flowing(giver, by_id[target.metaop]) * giver.batch,
                    gradient=giver.backward is not Backward.NONE,
                )
            )
    return tuple(flows)


def make_groups(metaops: Sequence[MetaOp], slices: Sequence[Slice]) -> tuple[ParameterGroup, ...]:
    """Give the device group pool: operators whose shards lie on the same devices together."""
    by_id = {metaop.id: metaop for metaop in metaops}
    places: dict[tuple[str, int, int], set[int]] = {}
    owner: dict[str, tuple[MetaOp, int]] = {}
    for item in slices:
        metaop = by_id[item.metaop]
        if metaop.frozen:
            continue
        owner[metaop.parameter_set] = metaop, item.tp
        for op in range(item.first_op, item.first_op + item.num_ops):
            for position, device in enumerate(item.devices):
                key = metaop.parameter_set, op, position % item.tp
                places.setdefault(key, set()).add(device)
    pool: dict[tuple[tuple[int, ...], int, int], list[tuple[str, int]]] = {}
    for (name, op, shard), devices in sorted(places.items()):
        pool.setdefault((tuple(sorted(devices)), shard, owner[name][1]), []).append((name, op))
    return tuple(
        ParameterGroup(
            devices=devices,
            parameter_sets=tuple(
                ParameterRange(parameter_set=name, first_op=op, num_ops=1) for name, op in members
            ),
            bytes=sum(2.0 * _held(*owner[name]) for name, _ in members),
            shard=shard,
            num_shards=tp,
        )
        for (devices, shard, tp), members in sorted(pool.items())
    )


def make_memory(
    metaops: Sequence[MetaOp],
    slices: Sequence[Slice],
    groups: Sequence[ParameterGroup],
    *,
    zero1: bool = False,
) -> tuple[DeviceMemory, ...]:
    """Give the peaks by the static formula: a round keeps the activations of all of its slices.

    Where a slice recomputes, one operator's activations come back during its backward.
    """
    by_id = {metaop.id: metaop for metaop in metaops}
    memory = []
    for device in sorted({device for item in slices for device in item.devices}):
        own = [item for item in slices if device in item.devices]
        held = {
            (by_id[item.metaop].parameter_set, op): (by_id[item.metaop], item.tp)
            for item in own
            for op in range(item.first_op, item.first_op + item.num_ops)
        }
        trained = sum(_held(m, tp) for m, tp in held.values() if not m.frozen)
        shares = [
            group.bytes / 2 / (len(group.devices) if zero1 else 1)
            for group in groups
            if device in group.devices
        ]
        rounds: dict[int, float] = {}
        peak = 0.0
        for item in sorted(own, key=lambda item: (item.round, item.stage)):
            metaop = by_id[item.metaop]
            rounds[item.round] = rounds.get(item.round, 0.0) + _kept(item, metaop)
            peak = max(peak, rounds[item.round] + _recomputed(item, metaop))
        memory.append(
            DeviceMemory(
                device=device,
                parameter_bytes=2.0 * sum(_held(m, tp) for m, tp in held.values()),
                gradient_bytes=2.0 * trained,
                optimizer_bytes=12.0 * sum(shares),
                activation_bytes=peak,
            )
        )
    return tuple(memory)


def make_operator(name: str, parameters: int, output_bytes: float) -> Custom:
    """Give an operator half of whose parameters tensor parallelism divides."""
    return Custom(
        name=name,
        parameters=parameters,
        sharded_parameters=parameters // 2,
        gemms=(Gemm(rows=16, inner=256, columns=256),),
        output_bytes=output_bytes,
        saved_bytes=3 * output_bytes,
    )


def _backward(before: Sequence[MetaOp], *, trains: bool, frozen: bool, num_ops: int) -> Backward:
    if any(item.backward is not Backward.NONE for item in before):
        return Backward.INPUT_ONLY if frozen else Backward.FULL
    if not trains:
        return Backward.NONE
    # Operators after the first need the gradient of their input.
    return Backward.WEIGHT_ONLY if num_ops == 1 else Backward.FULL


def _flowing(giver: MetaOp, taker: MetaOp) -> float:
    """Give the bytes of a sample: a context flows on within its task's use."""
    uses = {metaop.id.rsplit("/", 1)[0] for metaop in (giver, taker)}
    return giver.output_bytes + (taker.context_bytes if len(uses) == 1 else 0.0)


def _held(metaop: MetaOp, tp: int) -> float:
    return metaop.parameters - metaop.sharded_parameters + metaop.sharded_parameters / tp


def _kept(item: Slice, metaop: MetaOp) -> float:
    if metaop.backward is Backward.NONE:
        return 0.0
    samples = metaop.batch / item.dp
    if item.recompute:
        rest = (item.num_ops - 1) * metaop.output_bytes
        if item.first_op:
            return samples * (metaop.output_bytes + metaop.context_bytes + rest)
        return samples * (metaop.input_bytes + rest)
    return samples * (item.num_ops * _saved(metaop, item.tp) + metaop.context_bytes)


def _recomputed(item: Slice, metaop: MetaOp) -> float:
    if not item.recompute or metaop.backward is Backward.NONE:
        return 0.0
    return metaop.batch / item.dp * _saved(metaop, item.tp)


def _saved(metaop: MetaOp, tp: int) -> float:
    return metaop.saved_bytes / tp + metaop.saved_replicated_bytes
