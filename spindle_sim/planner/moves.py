"""What it costs to go on with another number of devices: an estimate before placement.

Going from n to n' devices, aligned as placement does it, keeps min / max of the samples where they
are. The rest leaves through the links of the smaller group: its islands' NICs where the larger one
spans islands, else its own ports; and through the fabric where the larger one spans nodes.
"""

from dataclasses import dataclass, replace
from math import inf

from spindle_sim.cluster import Cluster
from spindle_sim.planner.metagraph import MetaNode

__all__ = ["Moves"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Seconds of moving one MetaOp's data between groups, forward and (where it flows) backward."""

    flow_bytes: float  # both directions
    island_size: int
    port_bytes_per_s: float  # one device within its island
    network_bytes_per_s: float  # all NICs that one island's devices share
    latency_s: float
    node_size: int = 0
    fabric_bytes_per_s: float = inf  # what all nodes share

    @classmethod
    def of(cls, node: MetaNode, cluster: Cluster) -> "Moves":
        """Give the moves of a MetaOp's data on a cluster."""
        metaop = node.metaop
        directions = 2 if metaop.backward in ("full", "input_only") else 1
        nics = cluster.nics_per_node * cluster.nic_bandwidth_bytes_per_s * cluster.nic_efficiency
        return cls(
            flow_bytes=directions * metaop.batch * metaop.hands(metaop),
            island_size=cluster.island_size,
            port_bytes_per_s=cluster.gpu.collective_bandwidth_bytes_per_s,
            network_bytes_per_s=nics * cluster.island_size / cluster.devices_per_node,
            latency_s=directions * cluster.network_latency_s,
            node_size=cluster.devices_per_node,
            fabric_bytes_per_s=(
                cluster.num_nodes * nics / cluster.oversubscription
                if cluster.oversubscription > 1.0
                else inf
            ),
        )

    def weighed(self, weight: float) -> "Moves":
        """Give moves that are `weight` times as dear."""
        return replace(self, flow_bytes=weight * self.flow_bytes, latency_s=weight * self.latency_s)

    def seconds(self, source: int, target: int) -> float:
        """Give the time from `source` to `target` devices; 0 where nothing moves."""
        if source in (0, target):
            return 0.0
        small, large = sorted((source, target))
        moved_bytes = self.flow_bytes * (1.0 - small / large)
        if large > self.island_size:
            islands = -(-small // self.island_size)
            rate = islands * self.network_bytes_per_s
            if large > self.node_size:
                rate = min(rate, self.fabric_bytes_per_s)
            return self.latency_s + moved_bytes / rate
        return self.latency_s + moved_bytes / (small * self.port_bytes_per_s)
