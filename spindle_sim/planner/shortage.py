"""The error for a device that is too small: what fills it, what was tried already, what would help.

Its items add up to what the device would hold. The advice is arithmetic on them, not a search.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spindle_sim.estimate.memory import (
    activation_bytes,
    state_bytes,
    working_bytes,
)
from spindle_sim.planner.context import Context
from spindle_sim.planner.memory_fit import Ledger, OutOfMemoryError, kept_and_working_bytes
from spindle_sim.planner.metagraph import MetaGraph, MetaNode
from spindle_sim.planner.recompute import kept_bytes
from spindle_sim.units import format_bytes

__all__ = ["Holdings", "devices_needed", "holdings", "shortage"]

_GIB = 2.0**30
_LISTED = 3
_ROUND_SHARES = (0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0.0625, 0.03125)
_DEGREES = (8, 4, 2, 1)
# Activations are never spread quite evenly over the devices.
_BALANCE = 0.9
_MOST_DEVICES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """What one device holds at its peak: bytes by name, the largest first.

    `trained` is the part of a module's states that it wouldn't have if it were frozen.
    """

    states: tuple[tuple[str, float], ...]  # by module
    trained: tuple[tuple[str, float], ...]
    activations: tuple[tuple[str, float], ...]  # by MetaOp, in the fullest round
    working_bytes: float

    @property
    def states_bytes(self) -> float:
        """All states."""
        return sum(size for _, size in self.states)

    @property
    def activation_bytes(self) -> float:
        """What shrinks with the batch: activations and working memory."""
        return sum(size for _, size in self.activations) + self.working_bytes

    @property
    def total_bytes(self) -> float:
        """Everything."""
        return self.states_bytes + self.activation_bytes


def holdings(ledger: Ledger, device: int) -> Holdings:
    """Give what a device holds of the drafts placed so far."""
    states: dict[str, float] = {}
    trained: dict[str, float] = {}
    seen: set[str] = set()
    kept: dict[str, float] = {}
    round_index, peak, peak_bytes, peak_working = 0, dict[str, float](), 0.0, 0.0
    for entry in ledger.entries:
        if device not in entry.devices:
            continue
        metaop = ledger.graph.nodes[entry.draft.metaop].metaop
        if metaop.parameter_set not in seen:
            seen.add(metaop.parameter_set)
            weights, rest = ledger.set_bytes(entry.draft, device)
            states[metaop.module] = states.get(metaop.module, 0.0) + weights + rest
            trained[metaop.module] = trained.get(metaop.module, 0.0) + rest
        if entry.draft.round != round_index:
            round_index, kept = entry.draft.round, {}
        more, working = kept_and_working_bytes(metaop, entry.draft)
        kept[metaop.id] = kept.get(metaop.id, 0.0) + more
        if sum(kept.values()) + working > peak_bytes:
            peak, peak_working = dict(kept), working
            peak_bytes = sum(kept.values()) + working
    return Holdings(
        states=_ranked(states),
        trained=_ranked(trained),
        activations=_ranked(peak),
        working_bytes=peak_working,
    )


def shortage(
    context: Context, ledger: Ledger, device: int, *, more_to_come: bool = False
) -> OutOfMemoryError:
    """Give the error for a device that holds more than it may; maybe not all is placed yet."""
    held = holdings(ledger, device)
    total_bytes = float(ledger.used_bytes()[device])
    short_bytes = total_bytes - ledger.capacity_bytes
    assert short_bytes > 0.0, f"device {device} isn't short of memory"
    names = _metaops(ledger, device)
    parts = [f"states {_listed(held.states)}", f"activations {_listed(held.activations)}"]
    if held.working_bytes:
        parts.append(f"working memory of recomputation {format_bytes(held.working_bytes)}")
    least = " at least" if more_to_come else ""
    message = (
        f"device {device}: {format_bytes(short_bytes)} short: it would hold{least}"
        f" {format_bytes(total_bytes)}, a plan may use {format_bytes(ledger.capacity_bytes)} of its"
        f" {format_bytes(context.cluster.gpu.memory_bytes)}; it holds {'; '.join(parts)}. That is"
        f" {_tried(context, names)}. What would help:"
        f" {'; '.join(_advice(context, held, ledger.capacity_bytes))}"
    )
    return OutOfMemoryError(message, device=device, short_bytes=short_bytes, metaops=names)


def devices_needed(context: Context) -> int | None:
    """Give about how many devices of this kind hold the workload; None where no number does.

    With ZeRO-1, everything recomputed, the tasks one after another, every module on every device
    under the tensor parallelism that takes least, and activations spread nearly evenly. More than
    the cluster has, since those weren't enough; whole nodes where there are several.
    """
    cluster, graph = context.cluster, context.graph
    for num_devices in _sizes(context):
        per_node = min(num_devices, max(cluster.devices_per_node, _DEGREES[0]))
        island = cluster.island_size
        if island == cluster.devices_per_node:  # all of a node: so it will be in a larger one
            island = per_node
        states, working = min(
            (_least_bytes(context, tp, num_devices) for tp in _DEGREES if island % tp == 0), key=sum
        )
        kept = _recomputed_bytes(graph) / (_BALANCE * num_devices)
        if states + working + kept <= cluster.usable_memory_bytes:
            return num_devices
    return None


def _metaops(ledger: Ledger, device: int) -> tuple[str, ...]:
    """Give the MetaOps of a device, those that keep most there first."""
    kept: dict[str, float] = {}
    for entry in ledger.entries:
        if device in entry.devices:
            name = entry.draft.metaop
            more, _ = kept_and_working_bytes(ledger.graph.nodes[name].metaop, entry.draft)
            kept[name] = kept.get(name, 0.0) + more
    return tuple(name for name, _ in _ranked(kept))


def _tried(context: Context, metaops: Sequence[str]) -> str:
    """Say what the planner did to save memory."""
    settings, nodes = context.settings, context.graph.nodes
    gaining = [name for name in metaops if _least_kept_bytes(nodes[name]) < kept_bytes(nodes[name])]
    begun = [name for name in gaining if settings.recompute.get(name, 0)]
    whole = [name for name in begun if settings.recompute[name] == nodes[name].metaop.num_ops]
    if not begun:
        words = ["without recomputation"]
    elif whole == gaining:
        words = ["with recomputation of all MetaOps there"]
    else:
        words = [f"with recomputation in {len(begun)} of {len(gaining)} MetaOps there"]
    words.append(f"ZeRO-1 {'on' if settings.zero1 else 'off'}")
    words.append(f"tensor parallelism {max((degree for _, degree in settings.tp), default=1)}")
    if len(settings.rounds) > 1:
        words.append(f"the tasks in {len(settings.rounds)} rounds")
    return ", ".join(words)


def _advice(context: Context, held: Holdings, capacity_bytes: float) -> Iterator[str]:
    """Give what a user can do, each with its figure."""
    num_devices = devices_needed(context)
    if num_devices is not None:
        yield f"more devices: at least about {num_devices} of this kind"
    # What isn't placed yet comes on top: every parameter lies on some device.
    least_bytes = _least_states_bytes(context)
    kept_least_bytes = _recomputed_bytes(context.graph) / context.cluster.num_devices
    needed_bytes = max(held.total_bytes, least_bytes + kept_least_bytes)
    # A plan may use a fraction of the memory only.
    yield (
        "a GPU with at least"
        f" {math.ceil(needed_bytes / context.cluster.usable_memory_fraction / _GIB)} GiB"
    )
    room_bytes = capacity_bytes - max(held.states_bytes, least_bytes)
    if room_bytes > 0 and (scale := math.floor(100.0 * room_bytes / held.activation_bytes) / 100.0):
        # Round shares leave a batch its divisors, which data parallelism needs.
        round_share = next((share for share in _ROUND_SHARES if share <= scale), None)
        such_as = f", say {round_share:g}" if round_share else ""
        yield f"a batch scale of at most {scale:g}{such_as}"
    if least_bytes > capacity_bytes:
        return
    frozen: list[str] = []
    freed_bytes = 0.0
    for module, size_bytes in held.trained:
        if freed_bytes < held.total_bytes - capacity_bytes:
            frozen.append(module)
            freed_bytes += size_bytes
    if freed_bytes >= held.total_bytes - capacity_bytes:
        yield f"frozen modules: {', '.join(frozen)} would take {format_bytes(freed_bytes)} less"


def _least_states_bytes(context: Context) -> float:
    """Give the states of all parameters, each held once, spread evenly over the devices."""
    states = {
        node.metaop.parameter_set: node.metaop.num_ops * state_bytes(node.metaop)
        for node in context.graph.nodes.values()
    }
    return sum(states.values()) / context.cluster.num_devices


def _sizes(context: Context) -> Iterator[int]:
    """Give larger numbers of devices: up to a node of eight by doubling, then whole nodes."""
    cluster = context.cluster
    per_node = max(cluster.devices_per_node, _DEGREES[0])
    size = 1
    while size < per_node:
        if size > cluster.num_devices:
            yield size
        size *= 2
    for size in range(per_node, _MOST_DEVICES + 1, per_node):
        if size > cluster.num_devices:
            yield size


def _least_bytes(context: Context, tp: int, num_devices: int) -> tuple[float, float]:
    """Give a device's states with every module, and the most working memory."""
    states: dict[str, float] = {}
    working = 0.0
    for node in context.graph.nodes.values():
        heads = getattr(node.operator.operator, "heads", tp)
        degree = tp if heads % tp == 0 else 1
        dp = max(1, num_devices // degree)
        # Data parallelism can't divide a batch further than into samples.
        working = max(working, working_bytes(node.metaop, dp=min(dp, node.metaop.batch), tp=degree))
        states[node.metaop.parameter_set] = node.metaop.num_ops * state_bytes(
            node.metaop, tp=degree, optimizer_shards=dp
        )
    return sum(states.values()), working


def _recomputed_bytes(graph: MetaGraph) -> float:
    """Give what the task that keeps most keeps with recomputation, on all devices together."""
    tasks: dict[str, float] = {}
    for node in graph.nodes.values():
        task = node.metaop.task
        tasks[task] = tasks.get(task, 0.0) + _least_kept_bytes(node)
    return max(tasks.values(), default=0.0)


def _least_kept_bytes(node: MetaNode) -> float:
    """Give what a MetaOp keeps over all devices, recomputed where that is less."""
    return min(
        activation_bytes(node.metaop, num_ops=node.metaop.num_ops, dp=1, recompute=recompute)
        for recompute in (False, True)
    )


def _ranked(sizes: dict[str, float]) -> tuple[tuple[str, float], ...]:
    return tuple(sorted(sizes.items(), key=lambda entry: (-entry[1], entry[0])))


def _listed(sizes: Sequence[tuple[str, float]]) -> str:
    """Give the sum and its largest parts: "50.00 GiB (llm 40.00 GiB, 2 more 10.00 GiB)"."""
    total = sum(size for _, size in sizes)
    named = [f"{name} {format_bytes(size)}" for name, size in sizes[:_LISTED] if size]
    rest = sum(size for _, size in sizes[_LISTED:])
    if rest:
        named.append(f"{len(sizes) - _LISTED} more {format_bytes(rest)}")
    return f"{format_bytes(total)}" + (f" ({', '.join(named)})" if named else "")
