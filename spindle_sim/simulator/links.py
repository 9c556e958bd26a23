"""The links of a cluster as the simulator shares them, and the path of a message over them.

Every device has an NVLink (or PCIe) port in and one out, at the bandwidth that NCCL reaches over
it; every NIC one direction in and one out, at its line rate times its efficiency; the fabric one
link, where it is oversubscribed. Bandwidths are what one direction carries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from spindle_sim.cluster import Cluster
from spindle_sim.estimate import MeasuredLink
from spindle_sim.simulator.network import Demand

__all__ = ["Links", "Path", "cluster_links", "measured_demand"]


class Path(NamedTuple):
    """The links that a message crosses, and its latency."""

    links: tuple[int, ...]
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """All links of a cluster by number: ports out, ports in, NICs out, NICs in, the fabric.

    `capacities` are bytes per second one way; the others give a number for each device.
    """

    cluster: Cluster
    capacities: tuple[float, ...]
    port_out: tuple[int, ...]
    port_in: tuple[int, ...]
    nic_out: tuple[int, ...]
    nic_in: tuple[int, ...]
    fabric: int
    island: tuple[int, ...]
    node: tuple[int, ...]

    def path(self, source: int, target: int) -> Path:
        """Give the path of a message; between islands of one node it goes through their NICs."""
        cluster = self.cluster
        if self.island[source] == self.island[target]:
            ports = self.port_out[source], self.port_in[target]
            return Path(ports, cluster.link_latency_s)
        nics = self.nic_out[source], self.nic_in[target]
        if cluster.oversubscription > 1 and self.node[source] != self.node[target]:
            return Path((*nics, self.fabric), cluster.network_latency_s)
        return Path(nics, cluster.network_latency_s)

    def nics(self, index: int) -> tuple[int, int]:
        """Give both directions, out and in, of the NIC of that number, counted over all nodes."""
        first = 2 * self.cluster.num_devices
        num_nics = self.cluster.num_nodes * self.cluster.nics_per_node
        return first + index, first + num_nics + index


def measured_demand(
    links: Links, measured: MeasuredLink, size_bytes: float, used: Sequence[int], count: int = 1
) -> Demand:
    """Give a demand that takes its measured time alone: it fills each link that it uses.

    `count` messages progress alike. Beside others each gets its share of the links.
    """
    moving_s = measured.time_s - measured.latency_s
    if moving_s <= 0:
        return Demand(size_bytes=0.0, latency_s=measured.latency_s, loads=())
    rate = size_bytes / moving_s
    return Demand(
        size_bytes=size_bytes,
        latency_s=measured.latency_s,
        loads=tuple(
            (link, count * links.capacities[link] / rate)
            for link in used
            if links.capacities[link] < inf
        ),
        limit_bytes_per_s=rate,
    )


def cluster_links(cluster: Cluster) -> Links:
    """Number the links of a cluster."""
    count, num_nics = cluster.num_devices, cluster.num_nodes * cluster.nics_per_node
    port = cluster.gpu.collective_bandwidth_bytes_per_s
    nic = cluster.nic_bandwidth_bytes_per_s * cluster.nic_efficiency
    # A non-blocking fabric carries what all NICs send: it can't be what limits a stream.
    fabric = inf if cluster.oversubscription == 1 else num_nics * nic / cluster.oversubscription
    devices = range(count)
    nics = [cluster.node_of(d) * cluster.nics_per_node + cluster.nic_of(d) for d in devices]
    return Links(
        cluster=cluster,
        capacities=(*[port] * (2 * count), *[nic] * (2 * num_nics), fabric),
        port_out=tuple(devices),
        port_in=tuple(count + device for device in devices),
        nic_out=tuple(2 * count + index for index in nics),
        nic_in=tuple(2 * count + num_nics + index for index in nics),
        fabric=2 * (count + num_nics),
        island=tuple(cluster.island_of(device) for device in devices),
        node=tuple(cluster.node_of(device) for device in devices),
    )
