"""What is synchronized at once: whole parameter groups, or buckets of them beside the backward.

A bucket takes the gradients of its group in the order in which they become complete, until the
next would make it too large, as the simulator's do. When a gradient is complete is read off the
one order of all operations: no clock is asked, so that every rank comes to the same. No torch here.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from spindle_sim.plan import Backward, Plan
from spindle_sim.plan.schedule import operation_order
from spindle_torch.pool import (
    OperatorKey,
    PoolGroup,
    held_numbers,
    lenders,
    parameter_pool,
)

__all__ = ["Bucket", "Milestone", "Overlap", "parameter_buckets"]

_MEGABYTE = 1e6


class Milestone(NamedTuple):
    """The last `num_ops` operators of a slice having ended, in the operation at `position`.

    Positions count in `operation_order`; behind them all comes the end of the iteration.
    """

    position: int
    num_ops: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """How gradients are cut up that are synchronized beside the backward."""

    bucket_bytes: float
    number_bytes: int  # of a gradient's number, as it is sent

    @classmethod
    def of(cls, bucket_mb: float, dtype: str) -> "Overlap":
        """Give that of a dtype: "float32" has 4 bytes."""
        return cls(
            bucket_bytes=bucket_mb * _MEGABYTE, number_bytes=8 if dtype.endswith("64") else 4
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Operators of one parameter group whose gradients travel together, once all are complete."""

    group: PoolGroup
    complete: Milestone


class _Gradient(NamedTuple):
    """That of one operator; in the order of completion."""

    complete: Milestone
    parameter_set: str
    from_end: int  # the last operator's gradient is complete first
    key: OperatorKey
    size_bytes: float


def parameter_buckets(plan: Plan, overlap: Overlap | None) -> tuple[Bucket, ...]:
    """Give what is synchronized at once, in the order of every rank.

    Without `overlap` those are the groups of the pool in its order, after everything else; from
    ZeRO-2 on `overlap` only says how large they may be. A group of one device isn't cut, since
    nothing of it travels.
    """
    end = Milestone(len(operation_order(plan)), 0)
    most = None if overlap is None else overlap.bucket_bytes / overlap.number_bytes
    pool = parameter_pool(plan, most)
    if overlap is None or plan.shard_gradients:
        return tuple(Bucket(group=group, complete=end) for group in pool)
    complete = _completions(plan)
    buckets: list[Bucket] = []
    for group in pool:
        if len(group.devices) == 1:
            buckets.append(Bucket(group=group, complete=end))
            continue
        gradients = sorted(
            _Gradient(
                complete=complete.get((key.parameter_set, key.index), end),
                parameter_set=key.parameter_set,
                from_end=-key.index,
                key=key,
                size_bytes=overlap.number_bytes * held_numbers(plan, key),
            )
            for key in group.operators
        )
        buckets += _cut(group, gradients, overlap.bucket_bytes)
    return tuple(sorted(buckets, key=lambda bucket: (bucket.complete, bucket.group.devices)))


def _cut(group: PoolGroup, gradients: Sequence[_Gradient], bucket_bytes: float) -> Iterator[Bucket]:
    """Cut a group; what is complete at one instant stays together."""
    held: list[_Gradient] = []
    for _, together in groupby(gradients, key=attrgetter("complete")):
        more = list(together)
        if held and _size_bytes(held) + _size_bytes(more) > bucket_bytes:
            yield _bucket(group, held)
            held = []
        held += more
    if held:
        yield _bucket(group, held)


def _bucket(group: PoolGroup, held: Sequence[_Gradient]) -> Bucket:
    operators = tuple(sorted(item.key for item in held))
    return Bucket(
        group=PoolGroup(devices=group.devices, operators=operators), complete=held[-1].complete
    )


def _size_bytes(gradients: Iterable[_Gradient]) -> float:
    return sum(item.size_bytes for item in gradients)


def _completions(plan: Plan) -> dict[tuple[str, int], Milestone]:
    """Give when the last backward has added to the gradient of each operator."""
    metaops = plan.metaop_by_id()
    found: dict[tuple[str, int], Milestone] = {}
    for position, operation in enumerate(operation_order(plan)):
        item = plan.slices[operation.slice_index]
        metaop = metaops[item.metaop]
        if not operation.backward or metaop.backward is Backward.INPUT_ONLY:
            continue
        for done in range(1, item.num_ops + 1):
            key = metaop.parameter_set, item.first_op + item.num_ops - done
            found[key] = Milestone(position, done)
        for lender in lenders(plan.workload, metaop.parameter_set):
            found[lender, 0] = Milestone(position, item.num_ops)
    return found
