"""The demand of a collective on the links of the simulator.

Which algorithm it follows, and how many bytes it puts on which link, is the estimator's knowledge
(ring or tree, hierarchical across islands). On idle links it takes what the estimator says; beside
other traffic it shares like any stream.
"""

from collections.abc import Sequence

from spindle_sim.estimate import Collective, Estimator
from spindle_sim.simulator.links import Links, measured_demand
from spindle_sim.simulator.network import Demand

__all__ = ["all_reduce_demand", "collective_demand"]


def all_reduce_demand(
    estimator: Estimator, links: Links, size_bytes: float, devices: Sequence[int]
) -> Demand:
    """Give the demand of an all-reduce of `size_bytes` on each of `devices`."""
    return collective_demand(estimator, links, Collective.ALL_REDUCE, size_bytes, devices=devices)


def collective_demand(
    estimator: Estimator,
    links: Links,
    collective: Collective,
    size_bytes: float,
    *,
    devices: Sequence[int],
) -> Demand:
    """Give the demand of a collective; `size_bytes` are those of the whole vector."""
    wanted = estimator.collective_demand(collective, size_bytes, devices)
    cluster = links.cluster
    moved: list[tuple[int, float]] = []
    for device, port_bytes in wanted.port_bytes:
        moved += [(links.port_out[device], port_bytes), (links.port_in[device], port_bytes)]
    for (node, nic), nic_bytes in wanted.nic_bytes:
        out, inward = links.nics(node * cluster.nics_per_node + nic)
        moved += [(out, nic_bytes), (inward, nic_bytes)]
    if wanted.fabric_bytes and cluster.oversubscription > 1:
        moved.append((links.fabric, wanted.fabric_bytes))
    # Progress is counted in bytes of the link that takes longest, so that two equal collectives, or
    # one and a message, get equal parts of it.
    measured = estimator.measured_link(collective, size_bytes, devices)
    if measured is not None:
        used = [link for link, size in moved if size > 0]
        return measured_demand(links, measured, size_bytes, used)
    busiest = max(moved, key=lambda use: use[1] / links.capacities[use[0]], default=(0, 0.0))[1]
    return Demand(
        size_bytes=busiest,
        latency_s=wanted.latency_s,
        loads=tuple((link, size / busiest) for link, size in moved if size > 0),
    )
