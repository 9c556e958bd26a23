"""Who holds which parameters: the global device group pool (section 3.6) and memory per device.

Devices are held as bits of an integer: device d is bit d. Under tensor parallelism each rank holds
its shard of the divided parameters and all of the undivided ones (norms, biases); the latter are
reduced with the shard's group, so that every rank of a data-parallel replica keeps equal copies
(tensor-parallel ranks compute equal gradients of them).
"""

from collections.abc import Mapping, Sequence

import numpy as np

from spindle_sim.estimate.memory import (
    GRADIENT_BYTES,
    OPTIMIZER_BYTES,
    PARAMETER_BYTES,
    activation_bytes,
    shard_parameters,
    working_bytes,
)
from spindle_sim.plan import DeviceMemory, MetaOp, ParameterGroup, ParameterRange, Slice

__all__ = ["device_memory", "parameter_groups", "shard_masks"]

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


def device_memory(
    metaops: Sequence[MetaOp],
    slices: Sequence[Slice],
    masks: ShardMasks,
    num_devices: int,
    *,
    zero1: bool,
) -> tuple[DeviceMemory, ...]:
    """Give the peak of every device: states all the time, activations of its fullest round."""
    by_set = {metaop.parameter_set: metaop for metaop in metaops}
    parameters, gradients, optimizer = np.zeros((3, num_devices))
    for (name, _, tp), held in masks.items():
        metaop = by_set[name]
        for mask, _, count in _runs(held):
            devices = list(_devices(mask))
            size = count * shard_parameters(metaop, tp)
            parameters[devices] += PARAMETER_BYTES * size
            if not metaop.frozen:
                gradients[devices] += GRADIENT_BYTES * size
                optimizer[devices] += OPTIMIZER_BYTES * size / (len(devices) if zero1 else 1)
    activations = _peak_activations({m.id: m for m in metaops}, slices, num_devices)
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


def _peak_activations(
    by_id: Mapping[str, MetaOp], slices: Sequence[Slice], num_devices: int
) -> list[float]:
    """Give the most that activations take on each device; a round frees what it kept."""
    peak = [0.0] * num_devices
    kept = [0.0] * num_devices
    current = 0
    for item in sorted(slices, key=lambda s: (s.round, s.stage)):
        if item.round != current:
            kept = [0.0] * num_devices
            current = item.round
        metaop = by_id[item.metaop]
        more = activation_bytes(
            metaop,
            num_ops=item.num_ops,
            dp=item.dp,
            tp=item.tp,
            recompute=item.recompute,
            first_op=item.first_op,
        )
        # In its backward whatever ran later on the device is freed already.
        working = working_bytes(metaop, dp=item.dp, tp=item.tp) if item.recompute else 0.0
        for device in item.devices:
            kept[device] += more
            peak[device] = max(peak[device], kept[device] + working)
    return peak


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
