"""The global parameter device group pool: which ranks hold which parameters (section 3.6).

Read off the slices. A tied projection holds the table of the embedding that it shares, a custom
operator those that it is tied to, which the plan's own parameter groups don't count: the group of
a parameter is that of all who hold it.
"""

from dataclasses import dataclass

from spindle_sim.errors import InputError, PlanError
from spindle_sim.plan import Plan, Slice
from spindle_sim.workload import Custom, Embedding, Operator, Projection, Workload

__all__ = [
    "OperatorKey",
    "PoolGroup",
    "held_operators",
    "lenders",
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
