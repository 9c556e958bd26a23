"""One parallel configuration, stated by hand: tasks one after another on the whole cluster.

What a training script of Megatron-LM or DeepSpeed says: tensor, pipeline and data parallelism,
micro-batches, interleaving, recomputation, ZeRO. `megatron` and `deepspeed` search over these.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from spindle_sim.cluster import Cluster
from spindle_sim.errors import UsageError
from spindle_sim.estimate import Estimator
from spindle_sim.plan import Order, Plan, Round, Slice
from spindle_sim.planner.assemble import complete
from spindle_sim.planner.context import Context, Settings
from spindle_sim.planner.contract import contract
from spindle_sim.planner.metagraph import MetaNode
from spindle_sim.planner.settings import joint_optimum_s
from spindle_sim.planner.strategies.stages import Piece, cut_stages, most_stages, stage_pieces
from spindle_sim.planner.strategies.timing import OperatorTimes
from spindle_sim.workload import TransformerLayer, Workload

__all__ = [
    "ParallelConfig",
    "Recompute",
    "configured_plan",
    "operator_s",
    "parallel_plan",
    "task_pieces",
    "wrong_config",
]


_SHORTEST_S = 1e-12  # of an operator that costs nothing


class Recompute(StrEnum):
    """Which activations of a transformer layer are computed again in the backward."""

    NONE = "none"
    SELECTIVE = "selective"  # those of the attention core
    FULL = "full"  # all but the layer's input


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """How one task is trained on tp * pp * dp devices, from the cluster's first on.

    `micro_batch` is in samples of one data-parallel rank; without it the batch isn't cut. `chunks`
    is how many model chunks a pipeline rank has: more than one is Megatron-LM's interleaved
    schedule. Under full recomputation `recompute_ops`, where given, limits it to that many
    layers of each stage (`--recompute-num-layers`, method `block`).
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    micro_batch: int | None = None
    chunks: int = 1
    recompute: Recompute = Recompute.NONE
    recompute_ops: int | None = None
    sequence_parallel: bool = False

    @property
    def num_devices(self) -> int:
        """Devices used."""
        return self.tp * self.pp * self.dp

    @property
    def num_stages(self) -> int:
        """Stages of the pipeline, all chunks counted."""
        return self.pp * self.chunks

    def micro_batches(self, batch: int) -> int:
        """Give the number of micro-batches of a global batch."""
        return 1 if self.micro_batch is None else batch // (self.dp * self.micro_batch)

    def stage_devices(self, stage: int) -> tuple[int, ...]:
        """Give the devices of a stage: ranks are ordered tensor, data, pipeline, as Megatron's."""
        size = self.tp * self.dp
        rank = stage % self.pp
        return tuple(range(rank * size, (rank + 1) * size))


def parallel_plan(
    workload: Workload,
    cluster: Cluster,
    configs: Mapping[str, ParallelConfig],
    *,
    zero_stage: int = 0,
    overlap_sync: bool = False,
    estimator: Estimator | None = None,
    strategy: str = "megatron",
) -> Plan:
    """Give the plan that trains each task under its configuration, the tasks one after another.

    For a GPT of one task "train", batch 512, on 64 devices with micro-batches of 4 samples:

        parallel_plan(workload, cluster, {"train": ParallelConfig(
            tp=2, pp=4, dp=8, micro_batch=4, recompute=Recompute.FULL)})

    Each task is a round, in the order of `configs`: micro-batches run one forward, one backward
    (1F1B), interleaved where `chunks` > 1. A task with one run of transformer layers has them
    divided evenly over the stages, what comes before them on the first and what follows on the
    last; others are cut into stages of about equal time. `zero_stage` 1 is Megatron-LM's
    distributed optimizer, `overlap_sync` its overlapped gradient reduction. Whether it fits the
    memory isn't asked here: `validate_plan` tells.

    Raises:
        UsageError: a task has no configuration, or one that isn't possible.
    """
    estimator = estimator or Estimator(cluster)
    context = Context(
        workload=workload,
        cluster=cluster,
        graph=contract(workload),
        estimator=estimator,
        settings=Settings(tp=()),
    )
    problems = list(_problems(context, configs))
    if problems:
        raise UsageError(*problems)
    return configured_plan(
        context, configs, zero_stage=zero_stage, overlap_sync=overlap_sync, strategy=strategy
    )


def configured_plan(
    context: Context,
    configs: Mapping[str, ParallelConfig],
    *,
    zero_stage: int,
    overlap_sync: bool,
    strategy: str,
    times: OperatorTimes | None = None,
) -> Plan:
    """Give the plan of possible configurations, one for each task, trained in their order."""
    times = times or OperatorTimes(estimator=context.estimator)
    slices: list[Slice] = []
    rounds: list[Round] = []
    batches = {task.name: task.batch_size for task in context.workload.tasks}
    for index, (task, config) in enumerate(configs.items()):
        count = config.micro_batches(batches[task])
        if count > 1:
            order = Order.ONE_FORWARD_ONE_BACKWARD
            rounds.append(Round(round=index, micro_batches=count, order=order))
        nodes = [context.graph.nodes[name] for name in context.metaops_of(task)]
        for stage, pieces in enumerate(task_pieces(nodes, config, times)):
            for piece in pieces:
                node = context.graph.nodes[piece.metaop]
                duration_s = operator_s(times, node, config, recompute=piece.recompute)
                made = _slice(node, piece, config, duration_s, number=len(slices), stage=stage)
                slices.append(replace(made, round=index))
    # A chunk's slices run behind one another; a round without micro-batches numbers them itself.
    cut = {item.round for item in rounds}
    numbered = [
        item if item.round in cut else replace(item, stage=index)
        for index, item in enumerate(slices)
    ]
    return complete(
        context,
        numbered,
        rounds=tuple(rounds),
        strategy=strategy,
        zero_stage=zero_stage,
        overlap_sync=overlap_sync,
        optimum_s=joint_optimum_s(_judged(context, configs, slices)),
    )


def task_pieces(
    nodes: Sequence[MetaNode], config: ParallelConfig, times: OperatorTimes
) -> tuple[tuple[Piece, ...], ...]:
    """Give the pieces of MetaOps of each stage of a task's pipeline."""
    each_s = [operator_s(times, node, config) for node in nodes]
    key = tuple(node.metaop.id for node in nodes), tuple(each_s), config.num_stages
    if key not in times.cuts:
        both_s = [sum(pair) for pair in each_s]
        times.cuts[key] = cut_stages(nodes, both_s, config.num_stages)
    cuts = times.cuts[key]
    limit = config.recompute_ops if config.recompute is Recompute.FULL else 0
    # First what frees most bytes for the time that it takes, as for all strategies.
    worth = [
        -(node.metaop.saved_bytes + node.metaop.saved_replicated_bytes - node.metaop.output_bytes)
        / max(forward_s, _SHORTEST_S)
        for node, (forward_s, _) in zip(nodes, each_s, strict=True)
    ]
    order = sorted(range(len(nodes)), key=worth.__getitem__)
    return stage_pieces(nodes, cuts, recompute_ops=limit, order=order)


def operator_s(
    times: OperatorTimes, node: MetaNode, config: ParallelConfig, *, recompute: bool = False
) -> tuple[float, float]:
    """Give forward and backward of one operator for one micro-batch."""
    batch = node.metaop.batch
    return times.of(
        node,
        samples=batch / config.micro_batches(batch) / config.dp,
        dp=config.dp,
        tp=config.tp,
        recompute=recompute,
        selective=config.recompute is Recompute.SELECTIVE,
        sequence_parallel=config.sequence_parallel,
    )


def wrong_config(
    nodes: Sequence[MetaNode], cluster: Cluster, config: ParallelConfig
) -> Iterator[str]:
    """Say what is impossible about the configuration of a task of these MetaOps, if anything."""
    batch = nodes[0].metaop.batch
    micro_batch = 1 if config.micro_batch is None else config.micro_batch
    if min(config.tp, config.pp, config.dp, config.chunks, micro_batch) < 1:
        yield "tp, pp, dp, micro_batch and chunks must be at least 1"
        return
    if config.num_devices > cluster.num_devices:
        yield (
            f"tp {config.tp} x pp {config.pp} x dp {config.dp} = {config.num_devices} devices,"
            f" {cluster.name} has {cluster.num_devices}"
        )
    if cluster.island_size % config.tp and config.tp % cluster.island_size:
        yield (
            f"tp {config.tp} neither divides the {cluster.island_size} devices of an island nor is"
            " a multiple of them"
        )
    for node in nodes:
        layer = node.operator.operator
        if isinstance(layer, TransformerLayer) and layer.heads % config.tp:
            yield f"tp {config.tp} doesn't divide the {layer.heads} heads of {node.metaop.id}"
    if batch % (config.dp * micro_batch):
        yield f"dp {config.dp} x micro_batch {micro_batch} doesn't divide batch {batch}"
        return
    count = config.micro_batches(batch)
    coupled = next((n.metaop.id for n in nodes if n.metaop.batch_coupled), None)
    if count > 1 and coupled:
        yield f"{coupled} needs its whole batch at once: it can't be cut into {count} micro-batches"
    most = most_stages(nodes)
    if config.num_stages > most:
        yield f"{config.num_stages} stages are more than the {most} that it can be cut into"
    if config.chunks > 1 and (config.pp < 2 or count % config.pp):  # noqa: PLR2004
        yield (
            f"{config.chunks} model chunks: interleaving needs pp of at least 2 and micro-batches"
            f" ({count}) that are a multiple of it ({config.pp})"
        )


def _problems(context: Context, configs: Mapping[str, ParallelConfig]) -> Iterator[str]:
    tasks = [task.name for task in context.workload.tasks]
    for name in configs:
        if name not in tasks:
            yield f"task {name}: isn't in {context.workload.name}; its tasks: {', '.join(tasks)}"
    degrees: dict[str, tuple[str, int]] = {}
    for task in tasks:
        if task not in configs:
            yield f"task {task}: has no parallel configuration"
            continue
        nodes = [context.graph.nodes[name] for name in context.metaops_of(task)]
        for message in wrong_config(nodes, context.cluster, configs[task]):
            yield f"task {task}: {message}"
        tp = configs[task].tp
        for module in dict.fromkeys(node.metaop.module for node in nodes):
            other, degree = degrees.setdefault(module, (task, tp))
            if degree != tp:
                yield (
                    f"task {task}: tp {tp}, but task {other}, which shares module {module}, has"
                    f" tp {degree}; parameters are divided once"
                )


def _slice(
    node: MetaNode,
    piece: Piece,
    config: ParallelConfig,
    duration_s: tuple[float, float],
    *,
    number: int,
    stage: int,
) -> Slice:
    return Slice(
        # Of equal length, so that names are ordered as the slices are.
        id=f"s{number:04d}",
        metaop=piece.metaop,
        first_op=piece.first_op,
        num_ops=piece.num_ops,
        stage=stage,
        devices=config.stage_devices(stage),
        dp=config.dp,
        tp=config.tp,
        forward_s=piece.num_ops * duration_s[0],
        backward_s=piece.num_ops * duration_s[1],
        start_s=float(number),  # for the order within a stage, until the times are known
        recompute=piece.recompute,
        selective=config.recompute is Recompute.SELECTIVE and bool(node.cost.attentions),
        sequence_parallel=config.sequence_parallel and config.tp > 1,
    )


def _judged(
    context: Context, configs: Mapping[str, ParallelConfig], slices: Sequence[Slice]
) -> Context:
    """Give the context whose Theorem 1 optimum is that of these configurations."""
    tp: dict[str, int] = {}
    recomputed: dict[str, int] = {}
    for item in slices:
        metaop = context.graph.nodes[item.metaop].metaop
        tp[metaop.module] = configs[metaop.task].tp
        if item.recompute:
            recomputed[item.metaop] = recomputed.get(item.metaop, 0) + item.num_ops
    return replace(context, settings=Settings(tp=tuple(tp.items()), recompute=recomputed))
