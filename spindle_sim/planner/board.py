"""What is placed so far: groups, times on every device, memory, and what one more slice costs.

Times are those of forward and backward together, as if each slice ran both at once: the backward
mirrors the forward. Transfers count both ways where gradients flow back.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np
import numpy.typing as npt

from spindle_sim.estimate.memory import GRADIENT_BYTES, shard_parameters
from spindle_sim.plan import Backward
from spindle_sim.planner.affinity import Affinity, Group
from spindle_sim.planner.claims import Claims
from spindle_sim.planner.context import Context
from spindle_sim.planner.memory_fit import Ledger
from spindle_sim.planner.metagraph import DraftSlice

__all__ = ["Board", "Cost", "Input", "Spread"]

Floats = npt.NDArray[np.float64]
# A slice that takes this many times longer decides where the one before it should be.
HEAVY = 8.0


@dataclass(frozen=True, slots=True)
class Input:
    """A flow into a draft: from which draft, bytes of the whole batch, one way or both."""

    source: int
    size_bytes: float
    directions: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What a group costs: when the slice can start, seconds of transfer and synchronization."""

    start_s: float
    transfer_s: float
    sync_s: float
    claims_s: float  # of others on the same devices

    @property
    def lost_s(self) -> float:
        """Seconds of communication."""
        return self.transfer_s + self.sync_s


@dataclass(frozen=True, slots=True)
class Spread:
    """Where the trained parameters of a draft lie: (islands, shared yet) -> operators.

    Island i is bit i.
    """

    op_bytes: float
    islands: Counter[tuple[int, bool]]


@dataclass(slots=True)
class Board:
    """Placement under way; drafts are put by round and stage, and taken back in reverse."""

    context: Context
    drafts: Sequence[DraftSlice]
    sync_weight: float = 1.0  # of a second of synchronization beside one of a later start
    ledger: Ledger = field(init=False)
    affinity: Affinity = field(init=False)
    inputs: list[list[Input]] = field(init=False)
    durations_s: list[float] = field(init=False)
    followers: dict[int, int] = field(init=False)  # light slice -> heavy one that it leads to
    groups: dict[int, Group] = field(default_factory=dict)
    ends_s: dict[int, float] = field(default_factory=dict)
    free_s: Floats = field(init=False)
    claims: Claims = field(init=False)  # of the stage under way
    _history: list[tuple[int, Floats]] = field(default_factory=list)
    _network_share: float = field(init=False)
    _fabric_bytes_per_s: float = field(init=False)

    def __post_init__(self) -> None:
        """Begin with an idle cluster."""
        context = self.context
        self.ledger = Ledger(context.graph, context.cluster, context.settings.zero1)
        self.affinity = Affinity(context.cluster)
        nics = context.cluster.nics_per_node * self.affinity.network_bytes_per_s
        port = context.cluster.gpu.collective_bandwidth_bytes_per_s
        self._network_share = min(nics, port)
        # One that isn't oversubscribed can't be what limits.
        is_slower = context.cluster.oversubscription > 1.0
        self._fabric_bytes_per_s = self.affinity.fabric_bytes_per_s if is_slower else inf
        self.inputs = _inputs(context, self.drafts)
        self.free_s = np.zeros(context.cluster.num_devices)
        self.begin_stage(())
        self.durations_s = [
            draft.num_ops
            * context.curve(draft.metaop, recompute=draft.recompute).time_s(draft.num_devices)
            for draft in self.drafts
        ]
        self.followers = self._followers()

    def put(self, index: int, group: Group) -> None:
        """Place a draft on a group."""
        columns = np.array(group.devices)
        self.ledger.put(self.drafts[index], group.devices)
        start_s, _ = self._start(index, group)
        end_s = start_s + self.durations_s[index]
        self._history.append((index, self.free_s[columns]))
        self.free_s[columns] = end_s
        self.groups[index] = group
        self.ends_s[index] = end_s

    def take_back(self) -> int:
        """Undo the last `put`; gives its draft."""
        index, free_s = self._history.pop()
        self.ledger.take_back()
        self.free_s[np.array(self.groups.pop(index).devices)] = free_s
        del self.ends_s[index]
        return index

    def begin_stage(self, stage: Iterable[int]) -> None:
        """Free all devices but those that drafts of the stage have, and count everyone's claims."""
        cluster = self.context.cluster
        free = np.ones(cluster.num_devices, dtype=bool)
        self.claims = Claims(cluster.num_islands, free)
        for index in stage:
            free[list(self.drafts[index].devices or ())] = False
            self.claim(index, 1)

    def claim(self, index: int, sign: int) -> None:
        """Count (or, with -1, stop counting) that the draft wants to stay with its samples."""
        n = self.drafts[index].num_devices
        for item in self.inputs[index]:
            source = self.groups.get(item.source)
            if source is not None:
                seconds = item.directions * item.size_bytes / self.network_share()
                self.claims.change(source, sign * n, sign * seconds)

    def sources(self, index: int) -> set[int]:
        """Give the drafts that flow into this one."""
        return {item.source for item in self.inputs[index]}

    def ready_s(self, index: int) -> float:
        """Give when the draft's inputs exist, wherever they are."""
        return max((self.ends_s[item.source] for item in self.inputs[index]), default=0.0)

    def main_source(self, index: int) -> Group | None:
        """Give the group that holds the largest input."""
        inputs = self.inputs[index]
        if not inputs:
            return None
        return self.groups[max(inputs, key=lambda item: item.size_bytes).source]

    def cost(self, index: int, group: Group, spreads: Sequence[Spread]) -> Cost:
        """Give what it costs to run the draft on the group."""
        start_s, transfer_s = self._start(index, group)
        sync_s = sum(self._sync_s(spread, group) for spread in spreads)
        return Cost(start_s, transfer_s, sync_s, self.claims.lost_s(group))

    def gradient_bytes(self, draft: DraftSlice) -> float:
        """Give what a device synchronizes of each of the draft's operators."""
        metaop = self.context.graph.nodes[draft.metaop].metaop
        return 0.0 if metaop.frozen else GRADIENT_BYTES * shard_parameters(metaop, draft.tp)

    def spreads(self, index: int) -> list[Spread]:
        """Give where the trained parameters of the draft, and of what follows on its group, lie."""
        chain = [index]
        while chain[-1] in self.followers:
            chain.append(self.followers[chain[-1]])
        found = (self._spread(self.drafts[i]) for i in chain)
        return [spread for spread in found if spread is not None]

    def _spread(self, draft: DraftSlice) -> Spread | None:
        op_bytes = self.gradient_bytes(draft)
        if not op_bytes:
            return None
        rows = self.ledger.held(draft)[draft.first_op : draft.first_op + draft.num_ops] != 0
        size = self.context.cluster.island_size
        islands = np.packbits(
            rows.reshape(len(rows), -1, size).any(axis=2), axis=1, bitorder="little"
        )
        masks = [int.from_bytes(row.tobytes(), "little") for row in islands]
        shared = rows.sum(axis=1) > draft.tp
        return Spread(op_bytes, Counter(zip(masks, shared.tolist(), strict=True)))

    def _followers(self) -> dict[int, int]:
        """Give for each light slice the heavy one that its samples go to and that has its size."""
        followers: dict[int, int] = {}
        for index, inputs in enumerate(self.inputs):
            for item in inputs:
                light, heavy = self.drafts[item.source], self.drafts[index]
                same = (light.num_devices, light.tp) == (heavy.num_devices, heavy.tp)
                if same and self.durations_s[index] >= HEAVY * self.durations_s[item.source]:
                    followers[item.source] = index
        return followers

    def _start(self, index: int, group: Group) -> tuple[float, float]:
        start_s, transfer_s = float(self.free_s[np.array(group.devices)].max()), 0.0
        for item in self.inputs[index]:
            one_way_s = self.affinity.transfer_s(self.groups[item.source], group, item.size_bytes)
            transfer_s += item.directions * one_way_s
            start_s = max(start_s, self.ends_s[item.source] + item.directions * one_way_s)
        return start_s, transfer_s

    def _sync_s(self, spread: Spread, group: Group) -> float:
        """Give by how much synchronization grows.

        A shard within an island synchronizes over its links. One that spans islands does so over
        the NICs of each: half of that counts at once, half by the part of all islands that it
        loads, since groups of other islands synchronize meanwhile.
        """
        cluster = self.context.cluster
        near_s = 2 * spread.op_bytes / cluster.gpu.collective_bandwidth_bytes_per_s
        taken = sum(1 << i for i in set(self.affinity.island[group.ranks.ravel()].tolist()))
        total_s = 0.0
        for (mask, shared), count in spread.islands.items():
            before, after = mask.bit_count(), (mask | taken).bit_count()
            if after > 1:
                nodes = self._num_nodes(mask | taken)
                far_s = 2 * spread.op_bytes / self.network_share(nodes)
                loaded = after - (before if before > 1 else 0)
                total_s += count * far_s * 0.5 * ((before <= 1) + loaded / cluster.num_islands)
            elif not shared and (group.dp > 1 or mask):
                # Whether the only holder is this very device doesn't matter much: near is cheap.
                total_s += count * near_s
        return total_s

    def network_share(self, nodes: int = 1) -> float:
        """Give the bytes per second at which a node's devices together reach other nodes.

        Where as many `nodes` do so at once, for which the fabric may be too slow.
        """
        return min(self._network_share, self._fabric_bytes_per_s / nodes)

    def _num_nodes(self, islands: int) -> int:
        """Give how many nodes have one of the islands, given as bits."""
        cluster = self.context.cluster
        if self._fabric_bytes_per_s == inf:
            return 1  # it doesn't matter
        each = cluster.num_islands // cluster.num_nodes
        return sum(
            bool(islands >> node * each & (1 << each) - 1) for node in range(cluster.num_nodes)
        )


def _inputs(context: Context, drafts: Sequence[DraftSlice]) -> list[list[Input]]:
    order = sorted(
        range(len(drafts)),
        key=lambda i: (drafts[i].round, drafts[i].stage, drafts[i].first_op),
    )
    inputs: list[list[Input]] = [[] for _ in drafts]
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for index in order:
        name = drafts[index].metaop
        if name in last:
            metaop = context.graph.nodes[name].metaop
            directions = 1 if metaop.backward is Backward.NONE else 2
            size = metaop.hands(metaop) * metaop.batch
            inputs[index].append(Input(last[name], size, directions))
        first.setdefault(name, index)
        last[name] = index
    for edge in context.graph.edges:
        if edge.source in last and edge.target in first:
            item = Input(last[edge.source], edge.bytes, 2 if edge.gradient else 1)
            inputs[first[edge.target]].append(item)
    return inputs
