"""Memory: an entry a device, within capacity, and no less than the states alone need."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from spindle_sim.plan.model import DeviceMemory
from spindle_sim.plan.rules.holders import (
    BYTES_PER_GRADIENT,
    BYTES_PER_PARAMETER,
    OPTIMIZER_BYTES_PER_PARAMETER,
    shard_parameters,
)
from spindle_sim.plan.rules.subject import Subject
from spindle_sim.plan.rules.violation import Violation
from spindle_sim.units import format_bytes

__all__ = ["check_memory"]

_TOLERANCE = 1e-6


@dataclass(slots=True, kw_only=True)
class _States:
    parameter_bytes: float = 0.0
    gradient_bytes: float = 0.0
    optimizer_bytes: float = 0.0


def check_memory(subject: Subject) -> Iterator[Violation]:
    """Give the devices whose memory is missing, over capacity or too small to be true."""
    needed = _needed(subject)
    entries = subject.plan.memory
    for device, count in Counter(entry.device for entry in entries).items():
        if count > 1:
            yield _violation(device, f"has {count} memory entries")
        if not 0 <= device < subject.plan.cluster.num_devices:
            yield _violation(device, "has a memory entry but doesn't exist")
    for device in sorted(subject.on_device.keys() - {entry.device for entry in entries}):
        yield _violation(device, "runs slices but has no memory entry")
    for entry in entries:
        yield from _entry(
            entry,
            needed.get(entry.device, _States()),
            subject.plan.cluster.usable_memory_bytes,
        )


def _entry(entry: DeviceMemory, needed: _States, usable_bytes: float) -> Iterator[Violation]:
    if entry.total_bytes > usable_bytes * (1 + 1e-9):
        short = entry.total_bytes - usable_bytes
        message = (
            f"needs {format_bytes(entry.total_bytes)}, {format_bytes(short)} more than the"
            f" {format_bytes(usable_bytes)} that a plan may use"
        )
        yield _violation(entry.device, message)
    for name in ("parameter_bytes", "gradient_bytes", "optimizer_bytes"):
        found, least = getattr(entry, name), getattr(needed, name)
        if found < least * (1 - _TOLERANCE):
            message = f"{name} is {found}, what its slices use alone is {least}"
            yield _violation(entry.device, message)


def _needed(subject: Subject) -> dict[int, _States]:
    by_set = {metaop.parameter_set: metaop for metaop in subject.metaops.values()}
    # Few sets of devices hold many shards: add up by set first.
    by_devices: dict[frozenset[int], _States] = {}
    for shard, devices in subject.holders.items():
        metaop = by_set[shard.parameter_set]
        count = shard_parameters(metaop, shard.num_shards)
        states = by_devices.setdefault(devices, _States())
        states.parameter_bytes += BYTES_PER_PARAMETER * count
        if not metaop.frozen:
            sharers = len(devices) if subject.plan.zero1 else 1
            states.gradient_bytes += BYTES_PER_GRADIENT * count
            states.optimizer_bytes += OPTIMIZER_BYTES_PER_PARAMETER * count / sharers
    needed: dict[int, _States] = {}
    for devices, states in by_devices.items():
        for device in devices:
            total = needed.setdefault(device, _States())
            total.parameter_bytes += states.parameter_bytes
            total.gradient_bytes += states.gradient_bytes
            total.optimizer_bytes += states.optimizer_bytes
    return needed


def _violation(device: int, message: str) -> Violation:
    return Violation(
        rule="memory", ids=(f"device {device}",), message=f"device {device}: {message}"
    )
