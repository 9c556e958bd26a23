"""How long collectives and transfers take on idle links."""

from collections.abc import Sequence

from spindle_sim.cluster import Cluster

__all__ = ["all_gather_s", "all_reduce_s", "transfer_s"]


def all_reduce_s(cluster: Cluster, size_bytes: float, devices: Sequence[int]) -> float:
    """Give the time of a ring all-reduce of `size_bytes` on each of `devices`."""
    k = len(devices)
    if k == 1 or size_bytes <= 0:
        return 0.0
    nodes = {cluster.island_of(d) for d in devices}
    latency_s = 40e-6 + 2 * (k - len(nodes)) * 2e-6 + 2 * (len(nodes) - 1) * 4e-6
    return latency_s + 2 * (k - 1) / k * size_bytes / _bandwidth(cluster, devices)


def all_gather_s(cluster: Cluster, size_bytes: float, devices: Sequence[int]) -> float:
    """Give the time of an all-gather with a result of `size_bytes`."""
    return all_reduce_s(cluster, size_bytes, devices) / 2


def transfer_s(cluster: Cluster, size_bytes: float, source: int, target: int) -> float:
    """Give the time of one message from device to device."""
    if source == target or size_bytes <= 0:
        return 0.0
    latency_s = (
        cluster.link_latency_s
        if cluster.island_of(source) == cluster.island_of(target)
        else cluster.network_latency_s
    )
    return latency_s + size_bytes / _bandwidth(cluster, (source, target))


def _bandwidth(cluster: Cluster, devices: Sequence[int]) -> float:
    if len({cluster.island_of(d) for d in devices}) == 1:
        return cluster.gpu.collective_bandwidth_bytes_per_s
    nics = len({cluster.nic_of(d) for d in devices})
    network = nics * cluster.nic_bandwidth_bytes_per_s * cluster.nic_efficiency
    return min(network, cluster.gpu.collective_bandwidth_bytes_per_s)
