"""How long collectives and transfers take alone, and which bytes they put on which link.

NCCL's own model: a collective takes latency + bytes / bandwidth under each of its algorithms (ring,
tree, NVLink SHARP) and protocols (LL, LL128, Simple), and NCCL takes the fastest. Latencies of hops
are NCCL's (src/graph/tuning.cc, commit 5067397c, in microseconds); what they leave out (launching,
filling the Simple pipeline, the ring's loss on few ranks) is fitted. A ring crosses the border of
each device island once, whatever the number of ranks there, so it is hierarchical by nature.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from spindle_sim.cluster import Cluster
from spindle_sim.estimate.device import NcclModel, device_models

__all__ = ["Collective", "CollectiveDemand", "CollectiveModel"]

_US = 1e-6
# What cluster's latencies of a single message are where NCCL's hop constants hold.
_LINK_LATENCY_S, _NETWORK_LATENCY_S = 10e-6, 20e-6
_NETWORK_OVERHEAD_S = 1e-6  # the least time of a hop within a node where there are several nodes
_LL_LIMIT = 87.7e9  # bytes/s, NCCL's bound for LL on Ampere, one node
_PAIR = 2  # nodes that a ring crosses at its full rate
_REFERENCE_RANKS = 8  # a Gpu's collective bandwidth is that of eight ranks


class Collective(StrEnum):
    """What is done; sizes are always those of the whole vector (the gathered, the unscattered)."""

    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """One of NCCL's protocols: base and hop latencies in us, share of the link's bandwidth."""

    name: str
    ring_base: float
    tree_base: float
    ring_link: float
    tree_link: float
    ring_pcie: float
    tree_pcie: float
    ring_net: float
    tree_net: float
    overhead_hops: float  # times the network overhead
    bandwidth: float
    tree_bandwidth: float


_PROTOCOLS = (
    Protocol(
        name="LL",
        ring_base=6.6,
        tree_base=6.8,
        ring_link=0.6,
        tree_link=0.6,
        ring_pcie=1.0,
        tree_pcie=1.0,
        ring_net=2.7,
        tree_net=5.0,
        overhead_hops=1,
        bandwidth=0.5,
        tree_bandwidth=1 / 3.8,
    ),
    Protocol(
        name="LL128",
        ring_base=14.0,
        tree_base=14.0,
        ring_link=1.9,
        tree_link=1.25,
        ring_pcie=2.5,
        tree_pcie=1.9,
        ring_net=4.0,
        tree_net=8.5,
        overhead_hops=1,
        bandwidth=0.92,
        tree_bandwidth=0.92 * 0.92,
    ),
    Protocol(
        name="Simple",
        ring_base=8.4,
        tree_base=8.4,
        ring_link=3.4,
        tree_link=4.0,
        ring_pcie=5.7,
        tree_pcie=4.0,
        ring_net=14.0,
        tree_net=14.0,
        overhead_hops=3,
        bandwidth=1.0,
        tree_bandwidth=0.92,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveDemand:
    """One collective as data: alone it lasts latency_s + the longest bytes / capacity of a link.

    Bytes are those of one direction (as many flow the other way) and include what the protocol
    adds (flags, half-empty pipelines), so that bytes / capacity is the time on that link. A port's
    capacity is the GPU's collective bandwidth, a NIC's its line rate times nic_efficiency, the
    fabric's that of all NICs over the oversubscription.
    """

    algorithm: str  # "ring/LL128"; "none" where nothing is to be sent
    latency_s: float
    port_bytes: tuple[tuple[int, float], ...] = ()  # device, bytes through its island port
    nic_bytes: tuple[tuple[tuple[int, int], float], ...] = ()  # (node, NIC of the node), bytes
    fabric_bytes: float = 0.0  # between nodes, all together


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Where the ranks of a group lie."""

    ranks: int
    islands: int
    nodes: int
    most_in_island: int
    nic_share: float  # the largest share of the traffic over an island's border that one NIC has


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """One algorithm and protocol: its latency, and bytes per port and per island border."""

    name: str
    latency_s: float
    port_bytes: float
    border_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveModel:
    """Collectives on one cluster."""

    cluster: Cluster
    nccl: NcclModel
    ring_share: float = 1.0  # of the NICs' rate, across three nodes and more
    mixed_ring_share: float = 1.0  # where a node has several ranks of the group, and others'

    @classmethod
    def of(cls, cluster: Cluster) -> "CollectiveModel":
        """Take the constants that fit the cluster's GPU."""
        return cls(cluster=cluster, nccl=device_models().collective(cluster.gpu))

    def time_s(self, collective: Collective, size_bytes: float, devices: Sequence[int]) -> float:
        """Give the time of a collective alone on idle links; 0 for one device or no bytes."""
        if len(devices) == 1 or size_bytes <= 0:
            return 0.0
        group = self._group(devices)
        return min(
            self._alone_s(choice, group) for choice in self._choices(collective, size_bytes, group)
        )

    def demand(
        self, collective: Collective, size_bytes: float, devices: Sequence[int]
    ) -> CollectiveDemand:
        """Give the collective's load on every link, under the algorithm that is fastest alone."""
        if len(devices) == 1 or size_bytes <= 0:
            return CollectiveDemand(algorithm="none", latency_s=0.0)
        cluster, group = self.cluster, self._group(devices)
        best = min(
            self._choices(collective, size_bytes, group),
            key=lambda choice: self._alone_s(choice, group),
        )
        members = Counter(cluster.island_of(device) for device in devices)
        ports = tuple(
            (device, best.port_bytes)
            for device in devices
            if members[cluster.island_of(device)] > 1
        )
        shares = _nic_shares(cluster, devices) if group.islands > 1 else {}
        nics = tuple((nic, share * best.border_bytes) for nic, share in sorted(shares.items()))
        return CollectiveDemand(
            algorithm=best.name,
            latency_s=best.latency_s,
            port_bytes=ports,
            nic_bytes=nics,
            fabric_bytes=best.border_bytes * group.nodes if group.nodes > 1 else 0.0,
        )

    def transfer_s(self, size_bytes: float, source: int, target: int) -> float:
        """Give the time of one message on idle links; 0 within a device."""
        if source == target or size_bytes <= 0:
            return 0.0
        cluster = self.cluster
        if cluster.island_of(source) == cluster.island_of(target):
            return cluster.link_latency_s + size_bytes / self._port_bandwidth
        bandwidth = self._nic_bandwidth
        if cluster.node_of(source) != cluster.node_of(target):
            bandwidth = min(bandwidth, self._fabric_bandwidth)
        return cluster.network_latency_s + size_bytes / bandwidth

    def _choices(self, collective: Collective, size_bytes: float, group: _Group) -> list[_Choice]:
        ranks, nccl, share = group.ranks, self.nccl, self._network_share(group)
        passes = 2 if collective is Collective.ALL_REDUCE else 1
        ring_bytes = passes * (ranks - 1) / ranks * size_bytes
        choices = []
        for protocol in _PROTOCOLS:
            fixed_s = nccl.launch_s + (nccl.simple_fixed_s if protocol.name == "Simple" else 0.0)
            choices.append(
                _Choice(
                    name=f"ring/{protocol.name}",
                    latency_s=fixed_s + self._ring_latency_s(protocol, group, passes),
                    port_bytes=ring_bytes / self._port_share(protocol.bandwidth, protocol, group),
                    border_bytes=ring_bytes / (protocol.bandwidth * share),
                )
            )
            # A chain within a node is what a tree is there: it pays only across nodes.
            if collective is Collective.ALL_REDUCE and group.islands > 1:
                tree = protocol.tree_bandwidth
                choices.append(
                    _Choice(
                        name=f"tree/{protocol.name}",
                        latency_s=fixed_s + self._tree_latency_s(protocol, group),
                        port_bytes=2 * size_bytes / self._port_share(tree, protocol, group),
                        border_bytes=2 * size_bytes / (tree * share),
                    )
                )
        if nccl.sharp_gain and group.islands == 1 and ranks == self.cluster.island_size:
            simple = choices[-1]
            sharp_bytes = simple.port_bytes / nccl.sharp_gain
            choices.append(
                _Choice(
                    name="sharp/Simple",
                    latency_s=simple.latency_s,
                    port_bytes=sharp_bytes,
                    border_bytes=0.0,
                )
            )
        return choices

    def _network_share(self, group: _Group) -> float:
        if group.nodes <= _PAIR:
            return 1.0
        mixed = 1 < group.most_in_island < self.cluster.island_size
        return self.mixed_ring_share if mixed else self.ring_share

    def _port_share(self, protocol_share: float, protocol: Protocol, group: _Group) -> float:
        """Give the share of a port's bandwidth that a ring of so many ranks reaches."""
        loss = self.nccl.ring_loss
        share = (1 - loss / max(2, group.most_in_island)) / (1 - loss / _REFERENCE_RANKS)
        share *= protocol_share
        if protocol.name == "LL":
            share = min(share, _LL_LIMIT / self._port_bandwidth)
        return share

    def _ring_latency_s(self, protocol: Protocol, group: _Group, passes: int) -> float:
        far = passes * group.islands if group.islands > 1 else 0
        if far:
            far -= passes  # NCCL counts a border less than the ring has
        near = passes * (group.ranks - 1) - far
        hop = protocol.ring_pcie if self._is_pcie else protocol.ring_link
        near_s = self._near_hop_s(hop, protocol, group)
        return protocol.ring_base * _US + near * near_s + far * self._far_hop_s(protocol.ring_net)

    def _tree_latency_s(self, protocol: Protocol, group: _Group) -> float:
        hop = protocol.tree_pcie if self._is_pcie else protocol.tree_link
        near_s = self._near_hop_s(hop, protocol, group)
        depth = (group.islands - 1).bit_length()
        hops_s = (group.most_in_island - 1) * near_s + depth * self._far_hop_s(protocol.tree_net)
        return protocol.tree_base * _US + 2 * hops_s

    def _near_hop_s(self, hop: float, protocol: Protocol, group: _Group) -> float:
        hop_s = hop * _US
        if group.islands > 1:
            hop_s = max(hop_s, protocol.overhead_hops * _NETWORK_OVERHEAD_S)
        return hop_s * self.cluster.link_latency_s / _LINK_LATENCY_S

    def _far_hop_s(self, hop: float) -> float:
        return hop * _US * self.cluster.network_latency_s / _NETWORK_LATENCY_S

    def _alone_s(self, choice: _Choice, group: _Group) -> float:
        sending_s = choice.port_bytes / self._port_bandwidth if group.most_in_island > 1 else 0.0
        if group.islands > 1:
            nic_s = group.nic_share * choice.border_bytes / self._nic_bandwidth
            sending_s = max(sending_s, nic_s)
        if group.nodes > 1:
            fabric_s = group.nodes * choice.border_bytes / self._fabric_bandwidth
            sending_s = max(sending_s, fabric_s)
        return choice.latency_s + sending_s

    def _group(self, devices: Sequence[int]) -> _Group:
        cluster = self.cluster
        members = Counter(device // cluster.island_size for device in devices)
        nodes = {device // cluster.devices_per_node for device in devices}
        shares = _nic_shares(cluster, devices) if len(members) > 1 else {}
        return _Group(
            ranks=len(devices),
            islands=len(members),
            nodes=len(nodes),
            most_in_island=max(members.values()),
            nic_share=max(shares.values(), default=0.0),
        )

    @property
    def _is_pcie(self) -> bool:
        return "pcie" in self.cluster.gpu.link.lower()

    @property
    def _port_bandwidth(self) -> float:
        return self.cluster.gpu.collective_bandwidth_bytes_per_s

    @property
    def _nic_bandwidth(self) -> float:
        return self.cluster.nic_bandwidth_bytes_per_s * self.cluster.nic_efficiency

    @property
    def _fabric_bandwidth(self) -> float:
        nics = self.cluster.num_nodes * self.cluster.nics_per_node
        return nics * self._nic_bandwidth / self.cluster.oversubscription


def _nic_shares(cluster: Cluster, devices: Sequence[int]) -> dict[tuple[int, int], float]:
    """Give each NIC's share of what crosses an island's border: the ranks' NICs carry it alike."""
    shares: dict[tuple[int, int], float] = {}
    used: dict[int, set[tuple[int, int]]] = {}
    for device in devices:
        nic = (cluster.node_of(device), cluster.nic_of(device))
        used.setdefault(cluster.island_of(device), set()).add(nic)
    for nics in used.values():
        for nic in nics:
            shares[nic] = shares.get(nic, 0.0) + 1 / len(nics)
    return shares
