"""What a rank holds of the model between operations: checked against the plan, whole or in ranges.

In ZeRO-3 a rank has its range of each group, and an operator's parameters only while it computes
and while its backward does, and while the operator before does.
"""

from collections.abc import Callable, Mapping, Sequence

import torch

from spindle_sim.errors import PlanError
from spindle_sim.estimate.memory import PARAMETER_BYTES
from spindle_sim.plan import Plan
from spindle_torch.model import LocalModel, Model
from spindle_torch.pool import OperatorKey, PoolGroup, held_operators
from spindle_torch.sharded_optimizer import GroupRange, ShardedOptimizer
from spindle_torch.stepping import LEARNING_RATE, adamw

__all__ = ["check_memory", "hold", "make_optimizer"]

_MOST_GATHERED = 2  # operators whose parameters a plan counts whole in ZeRO-3


def hold(
    plan: Plan,
    pool: Sequence[PoolGroup],
    rank: int,
    keys: Sequence[OperatorKey],
    make: Callable[[Sequence[OperatorKey]], Model],
) -> tuple[Model, dict[int, GroupRange] | None]:
    """Make the operators that a rank holds, and its ranges of the pool's groups with ZeRO.

    Where parameters are divided they are made group by group, so that no more are ever whole.
    """
    own = {index: group for index, group in enumerate(pool) if rank in group.devices}
    if not plan.zero1:
        return make(keys), None
    if not plan.shard_parameters:
        model = make(keys)
        return model, {index: _range(plan, group, rank, model) for index, group in own.items()}
    grouped = {key for group in own.values() for key in group.operators}
    whole = make([key for key in keys if key not in grouped])
    assert isinstance(whole, LocalModel), "of a user's model nothing is made apart"
    ranges: dict[int, GroupRange] = {}
    for index, group in own.items():
        part = make(group.operators)
        assert isinstance(part, LocalModel), "they are made in one way"
        ranges[index] = _range(plan, group, rank, part)
        whole.add(part)
    return whole, ranges


def make_optimizer(
    pool: Sequence[PoolGroup], rank: int, model: Model, ranges: Mapping[int, GroupRange] | None
) -> torch.optim.Optimizer | ShardedOptimizer | None:
    """Give AdamW for what a rank steps: its ranges, else all trained parameters that it holds."""
    if ranges is not None:
        return ShardedOptimizer(ranges=ranges, learning_rate=LEARNING_RATE)
    trained = [
        parameter
        for group in pool
        if rank in group.devices
        for key in group.operators
        for _, parameter in model.named_parameters(key)
    ]
    return adamw(trained) if trained else None


def check_memory(plan: Plan, rank: int, model: Model) -> None:
    """Compare what a rank holds with the plan's memory, which doesn't count tied tables twice.

    Raises:
        PlanError: its slices hold other parameters than the plan states.
    """
    sharers = _sharers(plan, rank)
    held, counted_whole = 0.0, []
    for key, ranks in held_operators(plan, tied=False).items():
        if rank in ranks:
            numbers, shared = model.num_parameters(key), sharers.get(key, 1)
            held += numbers / shared
            if shared > 1:
                counted_whole.append(numbers)
    held += sum(sorted(counted_whole)[-_MOST_GATHERED:])
    stated = sum(item.parameter_bytes for item in plan.memory if item.device == rank)
    if abs(stated / PARAMETER_BYTES - held) >= 1:
        raise PlanError(
            f"device {rank}: the plan's memory states {stated / PARAMETER_BYTES:,.0f} parameters,"
            f" its slices hold {held:,.0f}; plan the workload anew"
        )


def _range(plan: Plan, group: PoolGroup, rank: int, model: Model) -> GroupRange:
    parameters = [item for key in group.operators for _, item in model.named_parameters(key)]
    position, size = group.devices.index(rank), len(group.devices)
    return GroupRange.of(parameters, position, size, stage=plan.zero_stage)


def _sharers(plan: Plan, rank: int) -> dict[OperatorKey, int]:
    """Give how many devices divide the parameters of operators on this one, where they do."""
    if not plan.shard_parameters:
        return {}
    return {
        OperatorKey(
            parameter_set=part.parameter_set,
            index=index,
            shard=group.shard,
            num_shards=group.num_shards,
        ): len(group.devices)
        for group in plan.parameter_groups
        if rank in group.devices
        for part in group.parameter_sets
        for index in range(part.first_op, part.first_op + part.num_ops)
    }
