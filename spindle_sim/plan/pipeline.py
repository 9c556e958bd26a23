"""In which order the stages of a pipelined round run its micro-batches: Megatron-LM's 1F1B.

The stages 0 ... p * v - 1 of such a round are virtual pipeline stages: rank r of p runs r, r + p,
r + 2 p, ..., its v model chunks. First some forwards (warm-up), then a forward and a backward in
turns, then the backwards that are left. Interleaved (v > 1) micro-batches go in groups of p: a rank
takes a group through its first chunk, then through its second, and so on; backwards from the last
chunk to the first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spindle_sim.plan.model import Slice

__all__ = ["Block", "Pipeline", "pipeline_mistakes", "pipeline_of", "pipeline_order", "rank_order"]


Mistake = tuple[tuple[str, ...], str]


class Block(NamedTuple):
    """All forwards, or all backwards, of one stage for one micro-batch."""

    stage: int
    micro_batch: int
    backward: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The shape of a pipelined round: p ranks, of v chunks each."""

    ranks: int
    chunks: int
    micro_batches: int


def pipeline_of(slices: Iterable[Slice], micro_batches: int) -> Pipeline:
    """Give the shape of a round in which `pipeline_mistakes` finds nothing."""
    stages = _stages(slices)
    chunks = max((len(own) for own in stages.values()), default=1)
    count = len({stage for own in stages.values() for stage in own})
    return Pipeline(ranks=count // chunks, chunks=chunks, micro_batches=micro_batches)


def pipeline_mistakes(slices: Sequence[Slice], micro_batches: int) -> list[Mistake]:
    """Give why the slices of a round are no pipeline, each with the ids of slices it is about."""
    used = sorted({item.stage for item in slices})
    if used != list(range(len(used))):
        gap = next(stage for place, stage in enumerate(used) if stage != place)
        ids = tuple(item.id for item in slices if item.stage == gap)
        message = f"its stages must be 0, 1, 2, ... without a gap, but there is one before {gap}"
        return [(ids, message)]
    stages = _stages(slices)
    chunks = max((len(own) for own in stages.values()), default=1)
    shape = Pipeline(ranks=len(used) // chunks, chunks=chunks, micro_batches=micro_batches)
    if len(used) % chunks:
        message = f"its {len(used)} stages can't be dealt out evenly, {chunks} to each device"
        return [(tuple(item.id for item in slices[:1]), message)]
    mistakes: list[Mistake] = []
    told: set[tuple[int, ...]] = set()
    for device, own in sorted(stages.items()):
        found = tuple(sorted(own))
        first = found[0] % shape.ranks
        expected = tuple(range(first, len(used), shape.ranks))
        if found != expected and found not in told:
            told.add(found)
            ids = tuple(item.id for item in slices if device in item.devices)
            message = (
                f"device {device} runs stages {_listed(found)}; pipeline rank {first} of"
                f" {shape.ranks} runs {_listed(expected)}"
            )
            mistakes.append((ids, message))
    if chunks > 1 and micro_batches % shape.ranks:
        message = (
            f"{chunks} stages to a device are interleaved, so that its {shape.ranks} pipeline"
            f" ranks must divide its {micro_batches} micro-batches"
        )
        mistakes.append((tuple(item.id for item in slices[:1]), message))
    return mistakes


def rank_order(shape: Pipeline, rank: int) -> tuple[Block, ...]:
    """Give what the devices of one pipeline rank run, in order."""
    total = shape.micro_batches * shape.chunks
    warm_up = _warm_up(shape, rank)
    forwards = [_block(shape, rank, index, backward=False) for index in range(total)]
    backwards = [_block(shape, rank, index, backward=True) for index in range(total)]
    order = forwards[:warm_up]
    for ahead, back in zip(forwards[warm_up:], backwards, strict=False):
        order += [ahead, back]
    return (*order, *backwards[total - warm_up :])


def pipeline_order(shape: Pipeline) -> tuple[Block, ...]:
    """Merge the orders of all ranks into one in which every block follows its inputs.

    By turns: each rank in turn takes its next block if the stage before it, or behind it in the
    backward, has done that micro-batch.
    """
    orders = [rank_order(shape, rank) for rank in range(shape.ranks)]
    last = shape.ranks * shape.chunks - 1
    reached = [0] * shape.ranks
    done: set[Block] = set()
    merged: list[Block] = []
    while len(merged) < sum(map(len, orders)):
        before = len(merged)
        for rank, order in enumerate(orders):
            if reached[rank] == len(order):
                continue
            block = order[reached[rank]]
            other = block.stage + (1 if block.backward else -1)
            if 0 <= other <= last and block._replace(stage=other) not in done:
                continue
            reached[rank] += 1
            done.add(block)
            merged.append(block)
        assert len(merged) > before, "a pipeline that pipeline_mistakes passes never stalls"
    return tuple(merged)


def _warm_up(shape: Pipeline, rank: int) -> int:
    """Give how many forwards a rank runs before its first backward, less one."""
    if shape.chunks == 1:
        return min(shape.ranks - 1 - rank, shape.micro_batches)
    total = shape.micro_batches * shape.chunks
    if shape.micro_batches == shape.ranks:
        return total
    return min(2 * (shape.ranks - 1 - rank) + (shape.chunks - 1) * shape.ranks, total)


def _block(shape: Pipeline, rank: int, index: int, *, backward: bool) -> Block:
    """Give the `index`-th forward or backward of a rank."""
    group, place = divmod(index, shape.ranks * shape.chunks)
    chunk, within = divmod(place, shape.ranks)
    if backward:
        chunk = shape.chunks - 1 - chunk
    return Block(
        stage=rank + chunk * shape.ranks,
        micro_batch=group * shape.ranks + within,
        backward=backward,
    )


def _stages(slices: Iterable[Slice]) -> dict[int, set[int]]:
    """Give the stages of each device."""
    stages: dict[int, set[int]] = {}
    for item in slices:
        for device in item.devices:
            stages.setdefault(device, set()).add(item.stage)
    return stages


def _listed(stages: Sequence[int]) -> str:
    return ", ".join(map(str, stages))
