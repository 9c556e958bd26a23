"""Rounds and what comes with them: micro-batches, pipelines, ZeRO stages, recomputation."""

from collections import Counter
from collections.abc import Iterator

from spindle_sim.plan.model import Order, Round, Slice
from spindle_sim.plan.pipeline import pipeline_mistakes
from spindle_sim.plan.rules.subject import Subject
from spindle_sim.plan.rules.violation import Violation

__all__ = ["check_rounds", "check_sharding"]


def check_rounds(subject: Subject) -> Iterator[Violation]:
    """Give the rounds that can't be cut, or run, as they say."""
    members: dict[int, list[Slice]] = {}
    for item in subject.slices.values():
        members.setdefault(item.round, []).append(item)
    for number, count in Counter(item.round for item in subject.plan.rounds).items():
        if count > 1:
            yield _violation(number, f"is given {count} times")
        if number not in members:
            yield _violation(number, "has no slices")
    for one in subject.plan.rounds:
        yield from _round(subject, one, members.get(one.round, []))


def check_sharding(subject: Subject) -> Iterator[Violation]:
    """Give ZeRO stages without the one below, and slices whose memory is saved in vain or twice."""
    plan = subject.plan
    for name, needed in (("shard_gradients", "zero1"), ("shard_parameters", "shard_gradients")):
        if getattr(plan, name) and not getattr(plan, needed):
            message = f"plan: {name} needs {needed}: a ZeRO stage shards what the one below does"
            yield Violation(rule="sharding", ids=("plan",), message=message)
    for item in plan.slices:
        if item.sequence_parallel and item.tp <= 1:
            message = f"slice {item.id}: sequence_parallel needs tp of at least 2, not {item.tp}"
            yield Violation(rule="sharding", ids=(item.id,), message=message)
        if item.selective and item.recompute:
            message = f"slice {item.id}: selective and recompute: what is computed again, all or"
            yield Violation(
                rule="sharding", ids=(item.id,), message=f"{message} the attention cores only?"
            )


def _round(subject: Subject, one: Round, members: list[Slice]) -> Iterator[Violation]:
    count = one.micro_batches
    if count < 1:
        yield _violation(one.round, f"micro_batches is {count}; a round has at least 1")
        return
    for item in members:
        metaop = subject.metaops[item.metaop]
        batch = metaop.operator.batch_size
        # That dp alone divides the batch is the rule of allocations.
        if item.dp >= 1 and batch % item.dp == 0 and batch % (item.dp * count):
            message = (
                f"slice {item.id}: dp {item.dp} x {count} micro-batches doesn't divide the batch"
                f" {batch} of {metaop.id}"
            )
            yield _violation(one.round, message, item.id)
        if count > 1 and metaop.operator.cost.gathered_bytes > 0:
            message = (
                f"slice {item.id}: {metaop.id} needs its whole batch at once and can't be cut into"
                f" {count} micro-batches"
            )
            yield _violation(one.round, message, item.id)
    if one.order is Order.ONE_FORWARD_ONE_BACKWARD:
        for ids, message in pipeline_mistakes(members, count):
            yield _violation(one.round, f"can't be pipelined: {message}", *ids)


def _violation(number: int, message: str, *ids: str) -> Violation:
    name = f"round {number}"
    return Violation(rule="round", ids=(name, *ids), message=f"{name}: {message}")
