"""Which device holds which shard of which operator's parameters, and how many bytes that is."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spindle_sim.plan.model import Slice
from spindle_sim.plan.rules.expected import ExpectedMetaOp

__all__ = [
    "BYTES_PER_GRADIENT",
    "BYTES_PER_PARAMETER",
    "OPTIMIZER_BYTES_PER_PARAMETER",
    "Shard",
    "shard_holders",
    "shard_parameters",
]

BYTES_PER_PARAMETER = 2.0  # bf16
BYTES_PER_GRADIENT = 2.0  # bf16
OPTIMIZER_BYTES_PER_PARAMETER = 12.0  # float32 master copy and two Adam moments


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Shard `shard` of `num_shards` of operator `index` of a parameter set."""

    parameter_set: str
    index: int
    shard: int
    num_shards: int

    def __str__(self) -> str:
        part = f" shard {self.shard}/{self.num_shards}" if self.num_shards > 1 else ""
        return f"{self.parameter_set}[{self.index}]{part}"


def shard_holders(
    slices: Iterable[Slice], metaops: Mapping[str, ExpectedMetaOp]
) -> dict[Shard, frozenset[int]]:
    """Give the devices that hold each shard, by the slices that use it."""
    holders: dict[tuple[str, int, int, int], set[int]] = {}
    for item in slices:
        metaop = metaops[item.metaop]
        first, last = max(0, item.first_op), min(metaop.num_ops, item.first_op + item.num_ops)
        for shard in range(min(item.tp, len(item.devices))):
            devices = item.devices[shard :: item.tp]
            for index in range(first, last):
                key = (metaop.parameter_set, index, shard, item.tp)
                holders.setdefault(key, set()).update(devices)
    return {
        Shard(parameter_set=name, index=index, shard=shard, num_shards=count): frozenset(devices)
        for (name, index, shard, count), devices in holders.items()
    }


def shard_parameters(metaop: ExpectedMetaOp, num_shards: int) -> float:
    """Give the parameters of one shard of one operator: the undivided part is on every rank."""
    operator = metaop.operator.operator
    undivided = operator.parameters - operator.sharded_parameters
    return operator.sharded_parameters / max(1, num_shards) + undivided
