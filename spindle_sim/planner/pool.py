"""Who holds which parameters: the global device group pool (section 3.6) and memory per device.

Devices are held as bits of an integer: device d is bit d. Under tensor parallelism each rank holds
its shard of the divided parameters and all of the undivided ones (norms, biases); the latter are
reduced with the shard's group, so that every rank of a data-parallel replica keeps equal copies
(tensor-parallel ranks compute equal gradients of them).
"""

from collections.abc import Sequence

import numpy as np

from spindle_sim.estimate.memory import (
    GRADIENT_BYTES,
    OPTIMIZER_BYTES,
    PARAMETER_BYTES,
    activation_bytes,
    shard_parameters,
    working_bytes,
)
from spindle_sim.plan import DeviceMemory, MetaOp, ParameterGroup, ParameterRange, Plan, Slice
from spindle_sim.plan.schedule import operation_order

__all__ = ["device_memory", "parameter_groups", "peak_activations", "shard_masks"]

# (parameter set, shard, number of shards) -> devices of each operator
ShardMasks = dict[tuple[str, int, int], list[int]]


def shard_masks(metaops: Sequence[MetaOp], slices: Sequence[Slice]) -> ShardMasks:
    """Give the devices that hold each operator's shard, whichever task runs it there."""
    by_id = {metaop.id: metaop for metaop in metaops}
    masks: ShardMasks = {}
    for item in slices:
        metaop = by_id[item.metaop]
        for shard in range(item.tp):
            mask = sum(1 << device for device in item.devices[shard :: item.tp])
            key = metaop.parameter_set, shard, item.tp
            held = masks.setdefault(key, [0] * metaop.num_ops)
            for op in range(item.first_op, item.first_op + item.num_ops):
                held[op] |= mask
    return masks


def parameter_groups(metaops: Sequence[MetaOp], masks: ShardMasks) -> tuple[ParameterGroup, ...]:
    """Give the pool D_i -> {W_j}: trained shards on the same devices together, ordered."""
    by_set = {metaop.parameter_set: metaop for metaop in metaops}
    pool: dict[tuple[int, int, int], list[ParameterRange]] = {}
    for (name, shard, tp), held in masks.items():
        if by_set[name].frozen or not by_set[name].parameters:
            continue
        for mask, first, count in _runs(held):
            part = ParameterRange(parameter_set=name, first_op=first, num_ops=count)
            pool.setdefault((mask, shard, tp), []).append(part)
    groups = [
        ParameterGroup(
            devices=_devices(mask),
            parameter_sets=tuple(parts),
            bytes=sum(
                GRADIENT_BYTES * part.num_ops * shard_parameters(by_set[part.parameter_set], tp)
                for part in parts
            ),
            shard=shard,
            num_shards=tp,
        )
        for (mask, shard, tp), parts in pool.items()
    ]
    return tuple(sorted(groups, key=lambda g: (g.devices, g.num_shards, g.shard)))


def device_memory(plan: Plan, masks: ShardMasks) -> tuple[DeviceMemory, ...]:
    """Give the peak of every device: states all the time, activations of its fullest round."""
    by_set = {metaop.parameter_set: metaop for metaop in plan.metaops}
    num_devices, stage = plan.cluster.num_devices, plan.zero_stage
    parameters, gradients, optimizer = np.zeros((3, num_devices))
    gathered = np.zeros((2, num_devices))  # the two largest operators that are held in part
    for (name, _, tp), held in masks.items():
        metaop = by_set[name]
        for mask, _, count in _runs(held):
            devices = list(_devices(mask))
            size = count * shard_parameters(metaop, tp)
            # Frozen parameters are in no group: nothing of them is divided.
            shards = 1 if metaop.frozen else len(devices)
            parameters[devices] += PARAMETER_BYTES * size / (shards if stage > 2 else 1)  # noqa: PLR2004
            if stage > 2 and shards > 1:  # noqa: PLR2004
                for _ in range(min(count, 2)):
                    one = np.full(len(devices), PARAMETER_BYTES * size / count)
                    three = np.vstack([gathered[:, devices], one])
                    gathered[:, devices] = np.sort(three, axis=0)[1:]
            if not metaop.frozen:
                gradients[devices] += GRADIENT_BYTES * size / (shards if stage > 1 else 1)
                optimizer[devices] += OPTIMIZER_BYTES * size / (shards if stage else 1)
    # One runs, the next one is gathered ahead.
    parameters += gathered.sum(axis=0)
    activations = peak_activations(plan)
    return tuple(
        DeviceMemory(
            device=device,
            parameter_bytes=float(parameters[device]),
            gradient_bytes=float(gradients[device]),
            optimizer_bytes=float(optimizer[device]),
            activation_bytes=activations[device],
        )
        for device in range(num_devices)
    )


def peak_activations(plan: Plan) -> list[float]:
    """Give the most that activations take on each device, as it runs its operations in order."""
    by_id = plan.metaop_by_id()
    level = [0.0] * plan.cluster.num_devices
    peak = list(level)
    sizes = [_sizes(plan, item, by_id[item.metaop]) for item in plan.slices]
    for operation in operation_order(plan):
        kept, working = sizes[operation.slice_index]
        for device in plan.slices[operation.slice_index].devices:
            if operation.backward:
                peak[device] = max(peak[device], level[device] + working)
                level[device] -= kept
            else:
                level[device] += kept
                peak[device] = max(peak[device], level[device])
    return peak


def _sizes(plan: Plan, item: Slice, metaop: MetaOp) -> tuple[float, float]:
    """Give what each device keeps of one micro-batch of a slice, and holds in its backward."""
    micro_batches = plan.micro_batches(item.round)
    kept = activation_bytes(
        metaop,
        num_ops=item.num_ops,
        dp=item.dp,
        tp=item.tp,
        recompute=item.recompute,
        first_op=item.first_op,
        micro_batches=micro_batches,
        selective=item.selective,
        sequence_parallel=item.sequence_parallel,
    )
    if not item.recompute:
        return kept, 0.0
    return kept, working_bytes(
        metaop,
        dp=item.dp,
        tp=item.tp,
        micro_batches=micro_batches,
        sequence_parallel=item.sequence_parallel,
    )


def _runs(held: Sequence[int]) -> list[tuple[int, int, int]]:
    """Give (devices, first operator, count) of runs of operators on equal devices."""
    runs: list[tuple[int, int, int]] = []
    for op, mask in enumerate(held):
        if not mask:
            continue
        if runs and runs[-1][0] == mask and runs[-1][1] + runs[-1][2] == op:
            runs[-1] = mask, runs[-1][1], runs[-1][2] + 1
        else:
            runs.append((mask, op, 1))
    return runs


def _devices(mask: int) -> tuple[int, ...]:
    return tuple(device for device, bit in enumerate(reversed(f"{mask:b}")) if bit == "1")
