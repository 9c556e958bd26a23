"""How near a device group is to the samples it needs: transfer times, and the order of devices.

The groups that hold and need samples are as in `plan/model.py`: a batch lies in equal runs on the
data-parallel ranks, whole on each tensor-parallel rank. All of it takes time linear in the devices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from spindle_sim.cluster import Cluster

__all__ = ["Affinity", "Crossing", "Group"]

Ints = npt.NDArray[np.intp]
Floats = npt.NDArray[np.float64]
_NONE: Ints = np.zeros(0, dtype=np.intp)


@dataclass(frozen=True, slots=True)
class Group:
    """Devices in order; position d * tp + t is tensor-parallel rank t of data-parallel rank d."""

    devices: tuple[int, ...]
    tp: int
    ranks: Ints = field(init=False, repr=False, compare=False)  # data-parallel x tensor-parallel

    def __post_init__(self) -> None:
        """Arrange the devices by ranks."""
        object.__setattr__(self, "ranks", np.array(self.devices).reshape(-1, self.tp))

    @property
    def dp(self) -> int:
        """Number of parts of the batch."""
        return len(self.devices) // self.tp


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """What a transfer takes alone, and the seconds for which it fills links between islands.

    A NIC goes with whether it receives.
    """

    takes_s: float = 0.0
    nics: Mapping[tuple[int, bool], float] = field(default_factory=dict)
    fabric_s: float = 0.0


@dataclass(slots=True)
class Affinity:
    """Times of moving samples between groups of one cluster, on idle links."""

    cluster: Cluster
    island: Ints = field(init=False)
    nic: Ints = field(init=False)

    def __post_init__(self) -> None:
        """Number islands and NICs by device."""
        cluster, devices = self.cluster, range(self.cluster.num_devices)
        self.island = np.arange(cluster.num_devices) // cluster.island_size
        self.nic = np.array(
            [cluster.node_of(d) * cluster.nics_per_node + cluster.nic_of(d) for d in devices]
        )

    @property
    def network_bytes_per_s(self) -> float:
        """What one NIC reaches."""
        return self.cluster.nic_bandwidth_bytes_per_s * self.cluster.nic_efficiency

    def transfer_s(self, source: Group, target: Group, size_bytes: float) -> float:
        """Give how long `size_bytes` (the whole batch) take from group to group, one way.

        The slowest link decides: a device's port within an island, a NIC between islands, or the
        fabric, where that carries less than all NICs.
        """
        senders, receivers, sizes = self._moved(source, target, size_bytes)
        return self._slowest_s(senders, receivers, sizes) if len(sizes) else 0.0

    def crossing(self, source: Group, target: Group, size_bytes: float) -> "Crossing":
        """Give what a transfer takes alone, and for how long it fills NICs and the fabric."""
        senders, receivers, sizes = self._moved(source, target, size_bytes)
        if not len(sizes):
            return Crossing()
        takes_s = self._slowest_s(senders, receivers, sizes)
        across = self.island[senders] != self.island[receivers]
        if not across.any():
            return Crossing(takes_s=takes_s)
        bytes_per_s = self.network_bytes_per_s
        filled: dict[tuple[int, bool], float] = {}
        for ends, into in ((senders, False), (receivers, True)):
            loads = np.bincount(self.nic[ends[across]], weights=sizes[across])
            used = np.flatnonzero(loads)
            seconds = (loads[used] / bytes_per_s).tolist()
            filled |= {(nic, into): s for nic, s in zip(used.tolist(), seconds, strict=True)}
        fabric_s = self._fabric_s(senders, receivers, sizes)
        return Crossing(takes_s=takes_s, nics=filled, fabric_s=fabric_s)

    @property
    def fabric_bytes_per_s(self) -> float:
        """What all nodes together reach."""
        nics = self.cluster.num_nodes * self.cluster.nics_per_node
        return nics * self.network_bytes_per_s / self.cluster.oversubscription

    def _moved(self, source: Group, target: Group, size_bytes: float) -> tuple[Ints, Ints, Floats]:
        """Give the messages of a transfer: who sends, who receives, how many bytes."""
        if source.devices == target.devices and source.tp == target.tp:
            return _NONE, _NONE, np.zeros(0)
        giver, taker, share = _pieces(source.dp, target.dp)
        senders, receivers = source.ranks[giver], target.ranks[taker]
        if source.tp == target.tp == 1:
            moved = senders != receivers
        else:
            moved = ~(senders[:, :, None] == receivers[:, None, :]).any(axis=1)
            senders = senders[:, np.arange(target.tp) % source.tp]
        sizes = np.broadcast_to((share * size_bytes)[:, None], moved.shape)[moved]
        return senders[moved], receivers[moved], sizes

    def _fabric_s(self, senders: Ints, receivers: Ints, sizes: Floats) -> float:
        """Give for how long messages fill the fabric: those between nodes."""
        nics = self.cluster.nics_per_node
        far = self.nic[senders] // nics != self.nic[receivers] // nics
        return float(sizes[far].sum()) / self.fabric_bytes_per_s

    def _slowest_s(self, senders: Ints, receivers: Ints, sizes: Floats) -> float:
        across = self.island[senders] != self.island[receivers]
        cluster = self.cluster
        seconds = 0.0
        if across.any():
            busiest = _busiest(
                self.nic[senders[across]], self.nic[receivers[across]], sizes[across]
            )
            seconds = busiest / self.network_bytes_per_s
            if cluster.oversubscription > 1.0:  # else it can't be what limits
                seconds = max(seconds, self._fabric_s(senders, receivers, sizes))
            seconds += cluster.network_latency_s
        if not across.all():
            near = ~across
            busiest = _busiest(senders[near], receivers[near], sizes[near])
            port = cluster.gpu.collective_bandwidth_bytes_per_s
            seconds = max(seconds, cluster.link_latency_s + busiest / port)
        return seconds

    def arranged(self, devices: Sequence[int], tp: int, source: Group | None) -> tuple[int, ...]:
        """Order the devices so that samples stay where they are, else within their island.

        `devices` come in runs of `tp` that stay together, and in ascending order.
        """
        if source is None:
            return tuple(devices)
        dp = len(devices) // tp
        slots: list[int | None] = [None] * dp  # data-parallel rank -> first position of its run
        place = {device: position for position, device in enumerate(source.devices)}
        holding: list[tuple[int, int]] = []
        others: list[int] = []
        for start in range(0, len(devices), tp):
            held = [place[d] for d in devices[start : start + tp] if d in place]
            if held:
                holding.append((min(held) // source.tp, start))
            else:
                others.append(start)
        for rank, start in sorted(holding):
            slot = _best_slot(slots, rank, source.dp, dp)
            if slot is None:
                others.append(start)
            else:
                slots[slot] = start
        self._fill(slots, others, devices, source)
        return tuple(
            device for start in slots if start is not None for device in devices[start : start + tp]
        )

    def _fill(
        self,
        slots: list[int | None],
        others: Sequence[int],
        devices: Sequence[int],
        source: Group,
    ) -> None:
        """Give the free ranks to runs of the island where their samples are, then to any."""
        dp, size = len(slots), self.cluster.island_size
        by_island: dict[int, list[int]] = {}
        for start in reversed(others):
            by_island.setdefault(devices[start] // size, []).append(start)
        far: list[int] = []
        for slot, taken in enumerate(slots):
            if taken is None:
                giver = source.devices[slot * source.dp // dp * source.tp]
                near = by_island.get(giver // size)
                if near:
                    slots[slot] = near.pop()
                else:
                    far.append(slot)
        rest = iter(sorted(start for runs in by_island.values() for start in runs))
        for slot in far:
            slots[slot] = next(rest)


@lru_cache(maxsize=4096)
def _pieces(source_dp: int, target_dp: int) -> tuple[Ints, Ints, Floats]:
    """Give (source rank, target rank, share of the batch) of every run of samples in between."""
    # In units of 1 / (source_dp * target_dp) of the batch every boundary is an integer.
    cuts = np.union1d(
        np.arange(source_dp + 1) * target_dp,
        np.arange(target_dp + 1) * source_dp,
    )
    begins = cuts[:-1]
    share = np.diff(cuts) / (source_dp * target_dp)
    return begins // target_dp, begins // source_dp, share


def _busiest(senders: Ints, receivers: Ints, sizes: Floats) -> float:
    """Give the bytes of the busiest link, each carrying both directions at once."""
    out = np.bincount(senders, weights=sizes).max()
    into = np.bincount(receivers, weights=sizes).max()
    return float(max(out, into))


def _best_slot(slots: Sequence[int | None], rank: int, source_dp: int, dp: int) -> int | None:
    """Give the free rank that needs most of what `rank` holds, the first of equals."""
    begin, end = rank * dp, (rank + 1) * dp
    best, most = None, 0
    for slot in range(begin // source_dp, -(-end // source_dp)):
        common = min(end, (slot + 1) * source_dp) - max(begin, slot * source_dp)
        if slots[slot] is None and common > most:
            best, most = slot, common
    return best
