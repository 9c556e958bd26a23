"""The links of a cluster as the simulator shares them, and the path of a message over them.

Every device has an NVLink (or PCIe) port in and one out, at the bandwidth that NCCL reaches over
it; every NIC one direction in and one out, at its line rate times its efficiency; the fabric one
link, where it is oversubscribed. Bandwidths are what one direction carries.
"""

from dataclasses import dataclass
from math import inf

from spindle_sim.cluster import Cluster

__all__ = ["Links", "Path"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """The links that a message crosses, and its latency."""

    links: tuple[int, ...]
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """All links of a cluster: numbers for names, in bytes per second one way."""

    cluster: Cluster

    @property
    def capacities(self) -> tuple[float, ...]:
        """Capacity of each link: ports out, ports in, NICs out, NICs in, fabric."""
        cluster = self.cluster
        port = cluster.gpu.collective_bandwidth_bytes_per_s
        nic = cluster.nic_bandwidth_bytes_per_s * cluster.nic_efficiency
        num_nics = cluster.num_nodes * cluster.nics_per_node
        # A non-blocking fabric carries what all NICs send: it can't be what limits a stream.
        fabric = inf
        if cluster.oversubscription > 1:
            fabric = num_nics * nic / cluster.oversubscription
        return (*[port] * (2 * cluster.num_devices), *[nic] * (2 * num_nics), fabric)

    @property
    def fabric(self) -> int:
        """The fabric between the nodes."""
        cluster = self.cluster
        return 2 * cluster.num_devices + 2 * cluster.num_nodes * cluster.nics_per_node

    def port_out(self, device: int) -> int:
        """The port over which a device sends within its island."""
        return device

    def port_in(self, device: int) -> int:
        """The port over which a device receives within its island."""
        return self.cluster.num_devices + device

    def nic_out(self, device: int) -> int:
        """The NIC, outwards, that a device uses."""
        return 2 * self.cluster.num_devices + self._nic(device)

    def nic_in(self, device: int) -> int:
        """The NIC, inwards, that a device uses."""
        cluster = self.cluster
        num_nics = cluster.num_nodes * cluster.nics_per_node
        return 2 * cluster.num_devices + num_nics + self._nic(device)

    def path(self, source: int, target: int) -> Path:
        """Give the path of a message; between islands of one node it goes through their NICs."""
        cluster = self.cluster
        if cluster.island_of(source) == cluster.island_of(target):
            ports = self.port_out(source), self.port_in(target)
            return Path(links=ports, latency_s=cluster.link_latency_s)
        nics = self.nic_out(source), self.nic_in(target)
        if cluster.oversubscription > 1 and cluster.node_of(source) != cluster.node_of(target):
            return Path(links=(*nics, self.fabric), latency_s=cluster.network_latency_s)
        return Path(links=nics, latency_s=cluster.network_latency_s)

    def _nic(self, device: int) -> int:
        return self.cluster.node_of(device) * self.cluster.nics_per_node + self.cluster.nic_of(
            device
        )
