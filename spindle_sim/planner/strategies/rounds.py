"""How long one round of a task takes under a parallel configuration, and what it keeps in memory.

A forecast for the search of `megatron` and `deepspeed`: the micro-batches of a pipeline by the same
order as in the plan, messages between its stages as they are on idle links. `least_s` is a bound
that costs nothing, so that few configurations have to be played through.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from spindle_sim.estimate import activation_bytes, working_bytes
from spindle_sim.plan.pipeline import Pipeline, pipeline_order, rank_order
from spindle_sim.planner.affinity import Affinity, Group
from spindle_sim.planner.metagraph import MetaNode
from spindle_sim.planner.strategies.parallel import (
    ParallelConfig,
    Recompute,
    operator_s,
    task_pieces,
)
from spindle_sim.planner.strategies.stages import Piece
from spindle_sim.planner.strategies.timing import OperatorTimes

__all__ = ["Sketch", "TaskRounds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """One configuration of a task, not yet played through.

    By stage: seconds of a micro-batch's forward and backward, bytes that it keeps until then, and
    the most that a device holds of it meanwhile. `peak_bytes` is of each pipeline rank.
    """

    config: ParallelConfig
    micro_batches: int
    stages: tuple[tuple[Piece, ...], ...]
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    peak_bytes: tuple[float, ...]

    @property
    def shape(self) -> Pipeline:
        """The pipeline."""
        return Pipeline(
            ranks=self.config.pp, chunks=self.config.chunks, micro_batches=self.micro_batches
        )

    @property
    def least_s(self) -> float:
        """What the round can't be shorter than: a rank's work, and the ways there and back."""
        ranks, ahead_s, longest_s = self.config.pp, 0.0, 0.0
        for rank in range(ranks):
            own_s = sum(self.forward_s[rank::ranks]) + sum(self.backward_s[rank::ranks])
            longest_s = max(longest_s, ahead_s + self.micro_batches * own_s)
            ahead_s += self.forward_s[rank] + self.backward_s[rank]
        return longest_s


@dataclass(slots=True, kw_only=True)
class TaskRounds:
    """The rounds of one task on one cluster; remembers what it computed."""

    nodes: tuple[MetaNode, ...]
    times: OperatorTimes
    affinity: Affinity
    _hops: dict[tuple[object, ...], float] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        """Global batch of the task."""
        return self.nodes[0].metaop.batch

    @property
    def coupled(self) -> bool:
        """Whether the batch can't be cut."""
        return any(node.metaop.batch_coupled for node in self.nodes)

    def sketch(self, config: ParallelConfig) -> Sketch:
        """Give a possible configuration with the times and sizes of its stages."""
        stages = task_pieces(self.nodes, config, self.times)
        by_id = {node.metaop.id: node for node in self.nodes}
        forward_s, backward_s, kept, held = [], [], [], []
        for pieces in stages:
            ahead_s, back_s, level, peak = 0.0, 0.0, 0.0, 0.0
            for piece in pieces:
                node = by_id[piece.metaop]
                one_s = operator_s(self.times, node, config, recompute=piece.recompute)
                ahead_s += piece.num_ops * one_s[0]
                back_s += piece.num_ops * one_s[1]
                more, working = _bytes(node, piece, config)
                level += more
                peak = max(peak, level + working)
            forward_s.append(ahead_s)
            backward_s.append(back_s)
            kept.append(level)
            held.append(peak)
        count = config.micro_batches(self.batch)
        shape = Pipeline(ranks=config.pp, chunks=config.chunks, micro_batches=count)
        return Sketch(
            config=config,
            micro_batches=count,
            stages=stages,
            forward_s=tuple(forward_s),
            backward_s=tuple(backward_s),
            peak_bytes=tuple(_peak(shape, rank, kept, held) for rank in range(config.pp)),
        )

    def round_s(self, sketch: Sketch) -> float:
        """Give how long the round takes, messages between stages included."""
        hops_s = [self._hop_s(sketch, stage) for stage in range(sketch.config.num_stages - 1)]
        if sketch.micro_batches == 1:
            return sum(sketch.forward_s) + sum(sketch.backward_s) + 2 * sum(hops_s)
        if sketch.config.num_stages == 1:
            return sketch.least_s
        return _play(sketch, hops_s)

    def _hop_s(self, sketch: Sketch, stage: int) -> float:
        """Give how long a micro-batch's activations take from a stage to the next one."""
        config, (piece, *_) = sketch.config, reversed(sketch.stages[stage])
        metaop = next(n.metaop for n in self.nodes if n.metaop.id == piece.metaop)
        size_bytes = metaop.output_bytes * self.batch / sketch.micro_batches
        ranks = stage % config.pp, (stage + 1) % config.pp
        key = config.tp, config.dp, ranks, size_bytes
        if key not in self._hops:
            groups = [Group(config.stage_devices(rank), config.tp) for rank in ranks]
            self._hops[key] = self.affinity.transfer_s(groups[0], groups[1], size_bytes)
        return self._hops[key]


def _bytes(node: MetaNode, piece: Piece, config: ParallelConfig) -> tuple[float, float]:
    """Give what a device keeps of a piece for one micro-batch, and holds in its backward."""
    count = config.micro_batches(node.metaop.batch)
    cut = config.sequence_parallel and config.tp > 1
    kept = activation_bytes(
        node.metaop,
        num_ops=piece.num_ops,
        dp=config.dp,
        tp=config.tp,
        recompute=piece.recompute,
        first_op=piece.first_op,
        micro_batches=count,
        selective=config.recompute is Recompute.SELECTIVE,
        sequence_parallel=cut,
    )
    if not piece.recompute:
        return kept, 0.0
    working = working_bytes(
        node.metaop, dp=config.dp, tp=config.tp, micro_batches=count, sequence_parallel=cut
    )
    return kept, working


def _peak(shape: Pipeline, rank: int, kept: Sequence[float], held: Sequence[float]) -> float:
    """Give the most that a rank's devices hold of activations."""
    if shape.chunks == 1:
        # One micro-batch after another until the first comes back.
        waiting = min(shape.micro_batches, shape.ranks - rank) - 1
        return waiting * kept[rank] + held[rank]
    level, peak = 0.0, 0.0
    for block in rank_order(shape, rank):
        if block.backward:
            level -= kept[block.stage]
            peak = max(peak, level + held[block.stage])
        else:
            level += kept[block.stage]
    return peak


def _play(sketch: Sketch, hops_s: Sequence[float]) -> float:
    """Run all micro-batches through the pipeline."""
    free = [0.0] * sketch.config.pp
    ends: list[float] = []
    for rank, stage, backward, source in _steps(sketch.shape):
        start_s = free[rank]
        if source >= 0:
            start_s = max(start_s, ends[source] + hops_s[stage if backward else stage - 1])
        duration_s = sketch.backward_s[stage] if backward else sketch.forward_s[stage]
        free[rank] = start_s + duration_s
        ends.append(free[rank])
    return max(free)


@lru_cache(maxsize=256)
def _steps(shape: Pipeline) -> tuple[tuple[int, int, bool, int], ...]:
    """Give (rank, stage, backward, index of the step whose output it takes or -1), in an order."""
    last = shape.ranks * shape.chunks - 1
    place: dict[tuple[int, int, bool], int] = {}
    steps: list[tuple[int, int, bool, int]] = []
    for index, (stage, micro_batch, backward) in enumerate(pipeline_order(shape)):
        other = stage + 1 if backward else stage - 1
        source = place[other, micro_batch, backward] if 0 <= other <= last else -1
        place[stage, micro_batch, backward] = index
        steps.append((stage % shape.ranks, stage, backward, source))
    return tuple(steps)
