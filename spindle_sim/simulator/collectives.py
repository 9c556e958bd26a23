"""The demand of an all-reduce on the links: what it moves over each, and how long it takes alone.

On idle links it takes exactly what the estimator says (ring or tree, hierarchical across islands);
beside other traffic its share of each link shrinks as that of any stream.
"""

from collections.abc import Sequence

from spindle_sim.estimate import Estimator
from spindle_sim.simulator.links import Links
from spindle_sim.simulator.network import Demand

__all__ = ["all_reduce_demand"]


def all_reduce_demand(
    estimator: Estimator, links: Links, size_bytes: float, devices: Sequence[int]
) -> Demand | None:
    """Give the demand of an all-reduce of `size_bytes` on each of `devices`; None if it is free."""
    count = len(devices)
    if count == 1 or size_bytes <= 0:
        return None
    alone_s = estimator.all_reduce_s(size_bytes, devices)
    loads = _ring_loads(links, size_bytes, devices)
    capacities = links.capacities
    busiest_s = max(moved / capacities[link] for link, moved in loads.items())
    busiest_bytes = max(loads.values())
    # Progress is counted in bytes of the most loaded link. What the links don't account for is
    # latency: it passes before the first byte, and isn't stretched by other traffic.
    latency_s = max(alone_s - busiest_s, 0.0)
    return Demand(
        size_bytes=busiest_bytes,
        latency_s=latency_s,
        loads=tuple((link, moved / busiest_bytes) for link, moved in sorted(loads.items())),
        limit_bytes_per_s=busiest_bytes / (alone_s - latency_s),
    )


def _ring_loads(links: Links, size_bytes: float, devices: Sequence[int]) -> dict[int, float]:
    """Give the bytes on each link: 2 (k - 1) / k of the size over every port of the ring.

    Across islands, one ring for each NIC of a node with members shares the size: the NIC carries
    its part in and out. Devices alone in their island use no port.
    """
    cluster = links.cluster
    count = len(devices)
    moved = 2 * (count - 1) / count * size_bytes
    islands: dict[int, list[int]] = {}
    for device in devices:
        islands.setdefault(links.island[device], []).append(device)
    loads: dict[int, float] = {}
    for members in islands.values():
        if len(members) > 1:
            for device in members:
                loads[links.port_out[device]] = moved
                loads[links.port_in[device]] = moved
        if len(islands) > 1:
            nics = {links.nic_out[device]: links.nic_in[device] for device in members}
            for outward, inward in nics.items():
                loads[outward] = loads.get(outward, 0.0) + moved / len(nics)
                loads[inward] = loads.get(inward, 0.0) + moved / len(nics)
    nodes = {links.node[device] for device in devices}
    if len(nodes) > 1 and cluster.oversubscription > 1:
        loads[links.fabric] = moved * len(nodes)
    return loads
