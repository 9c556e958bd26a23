"""How long one round of a task takes under a parallel configuration, and what it keeps in memory.

A forecast for the search of `megatron` and `deepspeed`: the micro-batches of a pipeline by the same
order as in the plan (`play.py`). `least_s` is a bound that costs nothing, so that few
configurations have to be played through.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import inf

import numpy as np
import numpy.typing as npt

from spindle_sim.estimate import activation_bytes, working_bytes
from spindle_sim.estimate.memory import shard_parameters
from spindle_sim.plan.pipeline import Pipeline, rank_order
from spindle_sim.planner.metagraph import MetaNode
from spindle_sim.planner.strategies.parallel import (
    ParallelConfig,
    Recompute,
    operator_s,
    task_pieces,
)
from spindle_sim.planner.strategies.play import Hop, play
from spindle_sim.planner.strategies.stages import Piece
from spindle_sim.planner.strategies.timing import OperatorTimes
from spindle_sim.simulator.links import Links
from spindle_sim.simulator.resharding import Layout, reshard
from spindle_sim.simulator.resharding import Piece as Message

__all__ = ["Sketch", "TaskRounds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """One configuration of a task, not yet played through.

    By stage: seconds of a micro-batch's forward and backward, bytes that it keeps until then, and
    the most that a device holds of it meanwhile. `peak_bytes` is of each pipeline rank.
    `least_s` is what the round can't be shorter than: a rank's work, and the ways there and back.
    """

    task: str
    config: ParallelConfig
    micro_batches: int
    stages: tuple[tuple[Piece, ...], ...]
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    peak_bytes: tuple[float, ...]
    parameters: tuple[float, ...]  # that a device of each pipeline rank trains
    least_s: float

    @property
    def shape(self) -> Pipeline:
        """The pipeline."""
        return Pipeline(
            ranks=self.config.pp, chunks=self.config.chunks, micro_batches=self.micro_batches
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stages:
    """What each stage computes, keeps of a micro-batch, holds of it at most, and trains."""

    pieces: tuple[tuple[Piece, ...], ...]
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    kept_bytes: tuple[float, ...]
    held_bytes: tuple[float, ...]
    parameters: tuple[float, ...]


@dataclass(slots=True, kw_only=True)
class TaskRounds:
    """The rounds of one task on one cluster; remembers what it computed."""

    nodes: tuple[MetaNode, ...]
    times: OperatorTimes
    links: Links
    _hops: dict[tuple[object, ...], Hop] = field(default_factory=dict)
    _stages: dict[tuple[ParallelConfig, int], _Stages] = field(default_factory=dict)

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
        count = config.micro_batches(self.batch)
        # Stages are the same, whatever the number of micro-batches and of ranks with their own.
        samples = self.batch // (count * config.dp)
        dp = config.dp if self.coupled else 0
        key = replace(config, dp=1, micro_batch=samples, pp=config.num_stages, chunks=1), dp
        stages = self._stages.get(key)
        if stages is None:
            stages = self._stages[key] = self._cut(config)
        ranks = range(config.pp)
        shape = Pipeline(ranks=config.pp, chunks=config.chunks, micro_batches=count)
        return Sketch(
            task=self.nodes[0].metaop.task,
            config=config,
            micro_batches=count,
            stages=stages.pieces,
            forward_s=stages.forward_s,
            backward_s=stages.backward_s,
            peak_bytes=tuple(_peak(shape, rank, stages) for rank in ranks),
            parameters=tuple(sum(stages.parameters[rank :: config.pp]) for rank in ranks),
            least_s=_least_s(stages, config.pp, count),
        )

    def _cut(self, config: ParallelConfig) -> _Stages:
        pieces_of = task_pieces(self.nodes, config, self.times)
        by_id = {node.metaop.id: node for node in self.nodes}
        rows: list[tuple[float, ...]] = []
        for pieces in pieces_of:
            ahead_s, back_s, kept, held, parameters = 0.0, 0.0, 0.0, 0.0, 0.0
            for piece in pieces:
                node = by_id[piece.metaop]
                one_s = operator_s(self.times, node, config, recompute=piece.recompute)
                ahead_s += piece.num_ops * one_s[0]
                back_s += piece.num_ops * one_s[1]
                if not node.metaop.frozen:
                    parameters += piece.num_ops * shard_parameters(node.metaop, config.tp)
                more, working = _bytes(node, piece, config)
                kept += more
                held = max(held, kept + working)
            rows.append((ahead_s, back_s, kept, held, parameters))
        forward_s, backward_s, kept_bytes, held_bytes, trained = zip(*rows, strict=True)
        return _Stages(
            pieces=pieces_of,
            forward_s=forward_s,
            backward_s=backward_s,
            kept_bytes=kept_bytes,
            held_bytes=held_bytes,
            parameters=trained,
        )

    def round_s(self, sketch: Sketch, limit_s: float = inf) -> float:
        """Give how long the round takes, messages between stages included.

        From `limit_s` on, a bound.
        """
        stages = range(sketch.config.num_stages - 1)
        ahead = [self._hop(sketch, stage, stage + 1) for stage in stages]
        back = [self._hop(sketch, stage + 1, stage) for stage in stages]
        if sketch.micro_batches == 1:
            hops_s = sum(hop.alone_s for hop in (*ahead, *back))
            return sum(sketch.forward_s) + sum(sketch.backward_s) + hops_s
        if sketch.config.num_stages == 1:
            return sketch.least_s
        return play(
            sketch.shape, sketch.forward_s, sketch.backward_s, ahead, back=back, limit_s=limit_s
        )

    def _hop(self, sketch: Sketch, stage: int, target: int) -> Hop:
        """Give the way of a micro-batch's activations, or their gradients, from stage to stage."""
        config = sketch.config
        ends = sketch.stages[min(stage, target)][-1], sketch.stages[max(stage, target)][0]
        earlier, later = (
            next(n.metaop for n in self.nodes if n.metaop.id == piece.metaop) for piece in ends
        )
        shards = config.tp if config.sequence_parallel else 1
        size_bytes = earlier.hands(later) * self.batch / sketch.micro_batches / shards
        ranks = stage % config.pp, target % config.pp
        key = config.tp, config.dp, ranks, size_bytes
        if key not in self._hops:
            giving, taking = (
                Layout(devices=config.stage_devices(rank), tp=config.tp) for rank in ranks
            )
            self._hops[key] = _hop(self.links, reshard(giving, taking, size_bytes))
        return self._hops[key]


def _hop(links: Links, pieces: Sequence[Message]) -> Hop:
    """Give what messages that go together load on links."""
    latency_s, loads = 0.0, dict[int, float]()
    for source, target, size_bytes in pieces:
        path = links.path(source, target)
        latency_s = max(latency_s, path.latency_s)
        for link in path.links:
            loads[link] = loads.get(link, 0.0) + size_bytes / links.capacities[link]
    return Hop(latency_s=latency_s, loads=tuple(loads.items()))


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


def _least_s(stages: _Stages, ranks: int, micro_batches: int) -> float:
    """Give what a round can't be shorter than: a rank's work, and the ways there and back."""
    both_s = [f + b for f, b in zip(stages.forward_s, stages.backward_s, strict=True)]
    ahead_s, longest_s = 0.0, sum(both_s)
    for rank in range(ranks):
        longest_s = max(longest_s, ahead_s + micro_batches * sum(both_s[rank::ranks]))
        ahead_s += both_s[rank]
    return longest_s


def _peak(shape: Pipeline, rank: int, stages: _Stages) -> float:
    """Give the most that a rank's devices hold of activations."""
    kept, held = stages.kept_bytes, stages.held_bytes
    if shape.chunks == 1:
        # One micro-batch after another until the first comes back.
        others = min(shape.micro_batches, shape.ranks - rank) - 1
        return others * kept[rank] + held[rank]
    chunks, waiting = _waiting(shape, rank)
    own = np.array(kept[rank :: shape.ranks])
    return float((waiting @ own + np.array(held[rank :: shape.ranks])[chunks]).max())


@lru_cache(maxsize=4096)
def _waiting(shape: Pipeline, rank: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    """Give the chunks of backwards, and how many others of each chunk wait for theirs meanwhile."""
    waiting = [0] * shape.chunks
    found: dict[tuple[int, tuple[int, ...]], None] = {}
    for block in rank_order(shape, rank):
        chunk = block.stage // shape.ranks
        waiting[chunk] += -1 if block.backward else 1
        if block.backward:
            found[chunk, tuple(waiting)] = None
    return np.array([c for c, _ in found]), np.array([row for _, row in found], dtype=np.float64)
