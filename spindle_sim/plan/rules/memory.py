"""Memory: an entry a device, within capacity, true by what the device's slices need."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from spindle_sim.plan.model import DeviceMemory
from spindle_sim.plan.rules.activations import peak_activation_bytes
from spindle_sim.plan.rules.holders import (
    BYTES_PER_GRADIENT,
    BYTES_PER_PARAMETER,
    OPTIMIZER_BYTES_PER_PARAMETER,
    shard_parameters,
)
from spindle_sim.plan.rules.subject import RELATIVE_TOLERANCE, Subject, close
from spindle_sim.plan.rules.violation import Violation
from spindle_sim.units import format_bytes

__all__ = ["check_memory"]

_TOLERANCE = 1e-6


@dataclass(slots=True, kw_only=True)
class _Needs:
    parameter_bytes: float = 0.0
    gradient_bytes: float = 0.0
    optimizer_bytes: float = 0.0
    activation_bytes: float = 0.0
    gathered: tuple[float, ...] = ()  # bytes of its two largest operators that it holds in part

    @property
    def total_bytes(self) -> float:
        return (
            self.parameter_bytes
            + self.gradient_bytes
            + self.optimizer_bytes
            + self.activation_bytes
        )


def check_memory(subject: Subject) -> Iterator[Violation]:
    """Give the devices whose memory is missing, over capacity or untrue."""
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
            needed.get(entry.device, _Needs()),
            subject.plan.cluster.usable_memory_bytes,
        )


def _entry(entry: DeviceMemory, needed: _Needs, usable_bytes: float) -> Iterator[Violation]:
    total_bytes = max(entry.total_bytes, needed.total_bytes)  # stated, or in truth
    if total_bytes > usable_bytes * (1 + RELATIVE_TOLERANCE):
        short = total_bytes - usable_bytes
        message = (
            f"needs {format_bytes(total_bytes)}, {format_bytes(short)} more than the"
            f" {format_bytes(usable_bytes)} that a plan may use"
        )
        yield _violation(entry.device, message)
    for name in ("parameter_bytes", "gradient_bytes", "optimizer_bytes"):
        found, least = getattr(entry, name), getattr(needed, name)
        if found < least * (1 - _TOLERANCE):
            message = f"{name} is {found}, what its slices use alone is {least}"
            yield _violation(entry.device, message)
    if not close(entry.activation_bytes, needed.activation_bytes, _TOLERANCE):
        message = (
            f"activation_bytes is {entry.activation_bytes}, its slices hold"
            f" {needed.activation_bytes} at the peak"
        )
        yield _violation(entry.device, message)


def _needed(subject: Subject) -> dict[int, _Needs]:
    by_set = {metaop.parameter_set: metaop for metaop in subject.metaops.values()}
    # Few sets of devices hold many shards: add up by set first.
    plan = subject.plan
    stages = plan.zero1, plan.shard_gradients, plan.shard_parameters
    by_devices: dict[frozenset[int], _Needs] = {}
    for shard, devices in subject.holders.items():
        metaop = by_set[shard.parameter_set]
        count = shard_parameters(metaop, shard.num_shards)
        states = by_devices.setdefault(devices, _Needs())
        # Only what trains is in a parameter group, and may be divided over it.
        sharers = [1 if metaop.frozen or not sharded else len(devices) for sharded in stages]
        states.parameter_bytes += BYTES_PER_PARAMETER * count / sharers[2]
        if sharers[2] > 1:
            states.gathered = _largest(*states.gathered, BYTES_PER_PARAMETER * count)
        if not metaop.frozen:
            states.gradient_bytes += BYTES_PER_GRADIENT * count / sharers[1]
            states.optimizer_bytes += OPTIMIZER_BYTES_PER_PARAMETER * count / sharers[0]
    needed: dict[int, _Needs] = {}
    for devices, states in by_devices.items():
        for device in devices:
            total = needed.setdefault(device, _Needs())
            total.parameter_bytes += states.parameter_bytes
            total.gradient_bytes += states.gradient_bytes
            total.optimizer_bytes += states.optimizer_bytes
            total.gathered = _largest(*total.gathered, *states.gathered)
    for total in needed.values():
        total.parameter_bytes += sum(total.gathered)
    for device, peak_bytes in peak_activation_bytes(subject).items():
        needed.setdefault(device, _Needs()).activation_bytes = peak_bytes
    return needed


def _largest(*sizes: float) -> tuple[float, ...]:
    """Give the two largest: that of the operator that runs and, gathered ahead, of the next."""
    return tuple(sorted(sizes)[-2:])


def _violation(device: int, message: str) -> Violation:
    return Violation(
        rule="memory", ids=(f"device {device}",), message=f"device {device}: {message}"
    )
