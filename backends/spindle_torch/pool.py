"""The global parameter device group pool: which ranks hold which parameters (section 3.6).

Read off the slices. A tied projection holds the table of the embedding that it shares, a custom
operator those that it is tied to, which the plan's own parameter groups don't count: the group of
a parameter is that of all who hold it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from spindle_sim.errors import InputError, PlanError
from spindle_sim.plan import Plan, Slice
from spindle_sim.workload import Custom, Embedding, Operator, Projection, Workload

__all__ = [
    "OperatorKey",
    "PoolGroup",
    "held_numbers",
    "held_operators",
    "lenders",
    "operator_of",
    "parameter_pool",
    "tied_table",
    "used_operators",
]

_SHARDED_NUMBERS = 25e6  # of a piece whose gradients are scattered at once: 100 MB in float32


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class OperatorKey:
    """One shard of the parameters of one operator: what ranks share and synchronize."""

    parameter_set: str  # "module/block"
    index: int
    shard: int = 0
    num_shards: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolGroup:
    """An entry D_i -> {W_j}."""

    devices: tuple[int, ...]
    operators: tuple[OperatorKey, ...]


def held_operators(plan: Plan, *, tied: bool) -> dict[OperatorKey, frozenset[int]]:
    """Give the ranks that hold each operator's parameters, frozen ones too.

    With `tied` a rank that runs a tied operator holds what that is tied to as well.

    Raises:
        PlanError: a tied operator is divided otherwise than what it is tied to.
    """
    metaops = plan.metaop_by_id()
    held: dict[OperatorKey, set[int]] = {}
    for item in plan.slices:
        name = metaops[item.metaop].parameter_set
        for index in range(item.first_op, item.first_op + item.num_ops):
            _hold(held, item, name, index)
        for lender in lenders(plan.workload, name) if tied else ():
            _check_degrees(plan, item, lender)
            _hold(held, item, lender, 0)
    return {key: frozenset(ranks) for key, ranks in sorted(held.items())}


def parameter_pool(plan: Plan, most_numbers: float | None = None) -> tuple[PoolGroup, ...]:
    """Give the groups of trained parameters, ordered by devices: the order of synchronization.

    From ZeRO-2 on a group of several devices is cut: what one slice uses and another doesn't is
    apart, in pieces of `most_numbers` at the most, since they come and go with the slices that use
    them; in ZeRO-3 each operator is. An operator isn't cut.
    """
    modules = {module.name: module for module in plan.workload.modules}
    groups: dict[tuple[int, ...], list[OperatorKey]] = {}
    for key, ranks in held_operators(plan, tied=True).items():
        module = modules[key.parameter_set.split("/", 1)[0]]
        if not module.frozen and operator_of(plan.workload, key.parameter_set).parameters:
            groups.setdefault(tuple(sorted(ranks)), []).append(key)
    pool = tuple(
        PoolGroup(devices=devices, operators=tuple(sorted(groups[devices])))
        for devices in sorted(groups)
    )
    if not plan.shard_gradients:
        return pool
    most = _SHARDED_NUMBERS if most_numbers is None else most_numbers
    return tuple(
        piece
        for group in pool
        for piece in _cut(plan, group, 0.0 if plan.shard_parameters else most)
    )


def used_operators(plan: Plan, item: Slice) -> tuple[tuple[tuple[str, int], ...], ...]:
    """Give the parameter sets and indexes that each operator of a slice uses, its own first."""
    name = plan.metaop_by_id()[item.metaop].parameter_set
    lent = tuple((lender, 0) for lender in lenders(plan.workload, name))
    return tuple(
        ((name, index), *lent) for index in range(item.first_op, item.first_op + item.num_ops)
    )


def held_numbers(plan: Plan, key: OperatorKey) -> float:
    """Give the parameters of one shard of an operator."""
    operator = operator_of(plan.workload, key.parameter_set)
    divided = operator.sharded_parameters
    return operator.parameters - divided + divided / key.num_shards


def operator_of(workload: Workload, parameter_set: str) -> Operator:
    """Give the operator that a parameter set belongs to."""
    module_name, block_name = parameter_set.split("/", 1)
    blocks = workload.module(module_name).blocks
    return next(block.operator for block in blocks if block.name == block_name)


def lenders(workload: Workload, parameter_set: str) -> tuple[str, ...]:
    """Give the parameter sets whose first operator's parameters an operator uses besides its own.

    Raises:
        InputError: a tied projection's table isn't there.
    """
    operator = operator_of(workload, parameter_set)
    if isinstance(operator, Custom):
        return operator.tied_to
    if isinstance(operator, Projection) and operator.tied:
        return (tied_table(workload, parameter_set),)
    return ()


def tied_table(workload: Workload, parameter_set: str) -> str:
    """Give the parameter set of the embedding whose table a tied projection uses.

    That of its own module, else of the first module that has a table of that size.

    Raises:
        InputError: there is none.
    """
    own = workload.module(parameter_set.split("/", 1)[0])
    operator = operator_of(workload, parameter_set)
    assert isinstance(operator, Projection), f"{parameter_set} isn't a projection"
    for module in (own, *workload.modules):
        for block in module.blocks:
            table = block.operator
            if isinstance(table, Embedding) and (table.vocabulary, table.width) == (
                operator.columns,
                operator.inner,
            ):
                return f"{module.name}/{block.name}"
    raise InputError(
        f"{parameter_set}: is tied, but no embedding has a table of {operator.columns} x"
        f" {operator.inner}; add one, or set tied to false"
    )


def _cut(plan: Plan, group: PoolGroup, most_numbers: float) -> Iterator[PoolGroup]:
    if len(group.devices) == 1:
        yield group
        return
    users: dict[tuple[str, int], list[str]] = {}
    for item in plan.slices:
        for used in set(chain.from_iterable(used_operators(plan, item))):
            users.setdefault(used, []).append(item.id)
    held: list[OperatorKey] = []
    for key in group.operators:
        alike = held and all(
            (key.parameter_set, users[key.parameter_set, key.index])
            == (other.parameter_set, users[other.parameter_set, other.index])
            for other in held[:1]
        )
        if held and not (
            alike and sum(held_numbers(plan, one) for one in (*held, key)) <= most_numbers
        ):
            yield PoolGroup(devices=group.devices, operators=tuple(held))
            held = []
        held.append(key)
    yield PoolGroup(devices=group.devices, operators=tuple(held))


def _check_degrees(plan: Plan, item: Slice, lender: str) -> None:
    metaops = plan.metaop_by_id()
    for other in plan.slices:
        if metaops[other.metaop].parameter_set == lender and other.tp != item.tp:
            raise PlanError(
                f"slice {item.id}: tp is {item.tp}, but slice {other.id} holds {lender}, to which"
                f" it is tied, with tp {other.tp}; their shards would differ"
            )


def _hold(held: dict[OperatorKey, set[int]], item: Slice, name: str, index: int) -> None:
    for position, device in enumerate(item.devices):
        key = OperatorKey(
            parameter_set=name, index=index, shard=position % item.tp, num_shards=item.tp
        )
        held.setdefault(key, set()).add(device)
