"""The global parameter device group pool: which ranks hold which parameters (section 3.6).

Read off the slices. A tied projection holds the table of the embedding that it shares, which the
plan's own parameter groups don't count: its group is that of all who hold the table.
"""

from dataclasses import dataclass

from spindle_sim.errors import InputError, PlanError
from spindle_sim.plan import Plan, Slice
from spindle_sim.workload import Embedding, Operator, Projection, Workload

__all__ = [
    "OperatorKey",
    "PoolGroup",
    "held_operators",
    "is_tied",
    "operator_of",
    "parameter_pool",
    "tied_table",
]


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

    With `tied` a rank that runs a tied projection holds the table as well.

    Raises:
        PlanError: a tied projection is divided otherwise than its table.
    """
    metaops = plan.metaop_by_id()
    held: dict[OperatorKey, set[int]] = {}
    for item in plan.slices:
        name = metaops[item.metaop].parameter_set
        for index in range(item.first_op, item.first_op + item.num_ops):
            _hold(held, item, name, index)
        if tied and is_tied(plan.workload, name):
            _hold(held, item, _table_of(plan, item, name), 0)
    return {key: frozenset(ranks) for key, ranks in sorted(held.items())}


def parameter_pool(plan: Plan) -> tuple[PoolGroup, ...]:
    """Give the groups of trained parameters, ordered by devices: the order of synchronization."""
    modules = {module.name: module for module in plan.workload.modules}
    groups: dict[tuple[int, ...], list[OperatorKey]] = {}
    for key, ranks in held_operators(plan, tied=True).items():
        module = modules[key.parameter_set.split("/", 1)[0]]
        if not module.frozen and operator_of(plan.workload, key.parameter_set).parameters:
            groups.setdefault(tuple(sorted(ranks)), []).append(key)
    return tuple(
        PoolGroup(devices=devices, operators=tuple(sorted(groups[devices])))
        for devices in sorted(groups)
    )


def operator_of(workload: Workload, parameter_set: str) -> Operator:
    """Give the operator that a parameter set belongs to."""
    module_name, block_name = parameter_set.split("/", 1)
    blocks = workload.module(module_name).blocks
    return next(block.operator for block in blocks if block.name == block_name)


def is_tied(workload: Workload, parameter_set: str) -> bool:
    """Tell whether a parameter set is a projection that uses an embedding's table."""
    operator = operator_of(workload, parameter_set)
    return isinstance(operator, Projection) and operator.tied


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


def _table_of(plan: Plan, item: Slice, name: str) -> str:
    table = tied_table(plan.workload, name)
    metaops = plan.metaop_by_id()
    for other in plan.slices:
        if metaops[other.metaop].parameter_set == table and other.tp != item.tp:
            raise PlanError(
                f"slice {item.id}: tp is {item.tp}, but slice {other.id} holds the table {table},"
                f" to which it is tied, with tp {other.tp}; their shards would differ"
            )
    return table


def _hold(held: dict[OperatorKey, set[int]], item: Slice, name: str, index: int) -> None:
    for position, device in enumerate(item.devices):
        key = OperatorKey(
            parameter_set=name, index=index, shard=position % item.tp, num_shards=item.tp
        )
        held.setdefault(key, set()).add(device)
