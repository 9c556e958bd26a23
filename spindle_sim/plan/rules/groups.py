"""Parameter groups: each trained shard synchronizes on exactly the devices that hold it."""

from collections.abc import Iterator

from spindle_sim.plan.model import ParameterGroup, ParameterRange
from spindle_sim.plan.rules.expected import ExpectedMetaOp
from spindle_sim.plan.rules.holders import (
    BYTES_PER_GRADIENT,
    Shard,
    shard_parameters,
)
from spindle_sim.plan.rules.subject import Subject, close
from spindle_sim.plan.rules.violation import Violation

__all__ = ["check_groups"]


def check_groups(subject: Subject) -> Iterator[Violation]:
    """Give what is wrong with the parameter device group pool."""
    by_set = {metaop.parameter_set: metaop for metaop in subject.metaops.values()}
    expected = {
        shard: devices
        for shard, devices in subject.holders.items()
        if not by_set[shard.parameter_set].frozen
        and by_set[shard.parameter_set].operator.operator.parameters
    }
    listed: dict[Shard, int] = {}
    for number, group in enumerate(subject.plan.parameter_groups):
        yield from _group(number, group, by_set)
        for shard in _shards(group, by_set):
            if shard in listed:
                message = f"{shard} is also in parameter group {listed[shard]}"
                yield _violation(number, shard, message)
            listed[shard] = number
            if shard in expected:
                yield from _devices(number, group, shard, expected[shard])
            elif shard.parameter_set in by_set and not by_set[shard.parameter_set].frozen:
                message = f"{shard} is held by no slice in that division"
                if by_set[shard.parameter_set].operator.operator.parameters:
                    yield _violation(number, shard, message)
    for shard in expected.keys() - listed.keys():
        devices = ", ".join(map(str, sorted(expected[shard])))
        yield Violation(
            rule="parameter-group",
            ids=(str(shard),),
            message=f"{shard} is in no parameter group; devices {devices} hold it",
        )


def _group(
    number: int, group: ParameterGroup, by_set: dict[str, ExpectedMetaOp]
) -> Iterator[Violation]:
    name = f"parameter group {number}"
    size_bytes = 0.0
    for item in group.parameter_sets:
        metaop = by_set.get(item.parameter_set)
        ids = (name, item.parameter_set)
        if metaop is None:
            message = f"{name}: no task uses parameters {item.parameter_set}"
            yield Violation(rule="reference", ids=ids, message=message)
            continue
        if metaop.frozen:
            message = f"{name}: {item.parameter_set} is frozen and has nothing to synchronize"
            yield Violation(rule="parameter-group", ids=ids, message=message)
        if _within(item, metaop) != (item.first_op, item.first_op + item.num_ops):
            message = (
                f"{name}: has {item.num_ops} operators from {item.first_op} on of"
                f" {item.parameter_set}, which has {metaop.num_ops}"
            )
            yield Violation(rule="parameter-group", ids=ids, message=message)
        size_bytes += BYTES_PER_GRADIENT * shard_parameters(metaop, group.num_shards) * item.num_ops
    listed = ", ".join(map(str, group.devices))
    if len(set(group.devices)) != len(group.devices):
        message = f"{name}: lists a device twice: {listed}"
        yield Violation(rule="parameter-group", ids=(name,), message=message)
    if not close(group.bytes, size_bytes):
        message = (
            f"{name} (devices {listed}): bytes is {group.bytes}, its parameters' gradients are"
            f" {size_bytes}"
        )
        yield Violation(rule="parameter-group", ids=(name,), message=message)


def _within(item: ParameterRange, metaop: ExpectedMetaOp) -> tuple[int, int]:
    """Give the first operator of a range, and the end, as far as the parameter set has them."""
    return max(0, item.first_op), min(metaop.num_ops, item.first_op + item.num_ops)


def _shards(group: ParameterGroup, by_set: dict[str, ExpectedMetaOp]) -> Iterator[Shard]:
    for item in group.parameter_sets:
        if item.parameter_set not in by_set:
            continue
        # What lies beyond the set is told by `_group`; it may be more than one could count.
        first, last = _within(item, by_set[item.parameter_set])
        for index in range(first, last):
            yield Shard(
                parameter_set=item.parameter_set,
                index=index,
                shard=group.shard,
                num_shards=group.num_shards,
            )


def _devices(
    number: int, group: ParameterGroup, shard: Shard, holders: frozenset[int]
) -> Iterator[Violation]:
    missing, strange = holders - set(group.devices), set(group.devices) - holders
    if missing:
        listed = ", ".join(map(str, sorted(missing)))
        yield _violation(number, shard, f"device {listed} holds {shard} and isn't in the group")
    if strange:
        listed = ", ".join(map(str, sorted(strange)))
        yield _violation(number, shard, f"device {listed} is in the group, holds no {shard}")


def _violation(number: int, shard: Shard, message: str) -> Violation:
    name = f"parameter group {number}"
    return Violation(rule="parameter-group", ids=(name, str(shard)), message=f"{name}: {message}")
