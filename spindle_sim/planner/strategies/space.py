"""All parallel configurations that a task can have under a system: what is searched.

Whatever the system can do and the task allows; nothing is left out because it looks bad.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from spindle_sim.cluster import Cluster
from spindle_sim.planner.metagraph import MetaNode
from spindle_sim.planner.strategies.parallel import ParallelConfig, Recompute
from spindle_sim.planner.strategies.stages import is_stack, most_stages, recomputable
from spindle_sim.workload import TransformerLayer

__all__ = ["Space", "configurations", "recomputing", "tensor_degrees"]

# Recomputation of these shares of a stage's layers is tried; what is chosen is refined after.
_SHARES = (0.25, 0.5, 0.75)
# Of what isn't one run of layers: chunks that a pipeline rank may have.
_MOST_CHUNKS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What a system offers."""

    tensor: bool
    pipeline: bool
    selective: bool
    zero_stages: tuple[int, ...]

    @property
    def searched_stages(self) -> tuple[int, ...]:
        """The ZeRO stages that are searched: stage 1 stands for 0, which it is never worse than.

        Under both gradients are reduced alike; with stage 1 a device holds, and steps, no more.
        """
        return tuple(s for s in self.zero_stages if s > 0 or 1 not in self.zero_stages)

    def standing_for(self, searched: int) -> tuple[int, ...]:
        """Give the stages of the space that a searched one stands for."""
        return tuple(s for s in self.zero_stages if s == searched or (s, searched) == (0, 1))

    def limited(self, zero1: bool | None) -> "Space":  # noqa: FBT001
        """Give the space with sharded optimizer states only, or with none; both where not said."""
        if zero1 is None:
            return self
        stages = tuple(stage for stage in self.zero_stages if (stage > 0) == zero1)
        return replace(self, zero_stages=stages)


def tensor_degrees(nodes: Sequence[MetaNode], cluster: Cluster, space: Space) -> tuple[int, ...]:
    """Give the tensor-parallel degrees that all of these MetaOps allow, ascending."""
    if not space.tensor:
        return (1,)
    heads = {
        layer.heads
        for node in nodes
        for layer in [node.operator.operator]
        if isinstance(layer, TransformerLayer)
    }
    return tuple(
        degree
        for degree in _divisors(cluster.island_size)
        if all(count % degree == 0 for count in heads)
    )


def configurations(
    nodes: Sequence[MetaNode],
    cluster: Cluster,
    space: Space,
    tp: int,
    *,
    narrow: bool = False,
) -> Iterator[ParallelConfig]:
    """Give all configurations of a task at one tensor-parallel degree, recomputing nothing yet.

    If `narrow`, only those that don't interleave.
    """
    batch = nodes[0].metaop.batch
    coupled = any(node.metaop.batch_coupled for node in nodes)
    most = most_stages(nodes)
    room = cluster.num_devices // tp
    for pp in _divisors(room) if space.pipeline else (1,):
        if pp > most:
            break
        for dp in _divisors(batch):
            if pp * dp > room:
                break
            share = batch // dp
            for micro_batch in (share,) if coupled else _divisors(share):
                one = ParallelConfig(
                    tp=tp, pp=pp, dp=dp, micro_batch=micro_batch, sequence_parallel=tp > 1
                )
                yield one
                if pp > 1 and share // micro_batch % pp == 0 and not narrow:
                    for chunks in _chunks(nodes, pp, most):
                        yield replace(one, chunks=chunks)


def recomputing(
    nodes: Sequence[MetaNode], space: Space, config: ParallelConfig, *, narrow: bool = False
) -> Iterator[ParallelConfig]:
    """Give the configuration without recomputation, then with ever more of it."""
    yield config
    if narrow:
        yield replace(config, recompute=Recompute.FULL)
        return
    if space.selective and any(node.cost.attentions for node in nodes):
        yield replace(config, recompute=Recompute.SELECTIVE)
    layers = sum(node.metaop.num_ops for node in nodes if recomputable(node))
    each = -(-layers // config.num_stages)
    full = replace(config, recompute=Recompute.FULL)
    counts = {-(-int(100 * share * each) // 100) for share in _SHARES}
    for count in sorted(counts):
        if 0 < count < each:
            yield replace(full, recompute_ops=count)
    if each:
        yield full


def _chunks(nodes: Sequence[MetaNode], pp: int, most: int) -> Iterator[int]:
    """Give the numbers of model chunks, above one, that a pipeline rank can have."""
    if is_stack(nodes):
        layers = max(node.metaop.num_ops for node in nodes if recomputable(node))
        if layers % pp == 0:
            yield from (v for v in _divisors(layers // pp) if v > 1)
        return
    yield from range(2, min(most // pp, _MOST_CHUNKS) + 1)


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(n for n in range(1, number + 1) if number % n == 0)
