"""Transfer times between device groups, and the order of devices within one."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spindle_sim.cluster import Cluster
from spindle_sim.planner.affinity import Affinity, Group
from spindle_sim.simulator.resharding import Layout, Piece, reshard
from tests.builders import make_cluster


def pieces(source: Group, target: Group, size_bytes: float) -> list[Piece]:
    return [
        piece
        for piece in reshard(
            Layout(devices=source.devices, tp=source.tp),
            Layout(devices=target.devices, tp=target.tp),
            size_bytes,
        )
        if not piece.is_local
    ]


def slowest_s(cluster: Cluster, moved: list[Piece]) -> float:
    """The busiest port or NIC, or the fabric, worked out message by message."""
    loads: Counter[tuple[str, int]] = Counter()
    for piece in moved:
        if cluster.island_of(piece.source) == cluster.island_of(piece.target):
            ends = ("out", piece.source), ("in", piece.target)
            bandwidth = cluster.gpu.collective_bandwidth_bytes_per_s
        else:
            nic = [
                cluster.node_of(d) * cluster.nics_per_node + cluster.nic_of(d)
                for d in (piece.source, piece.target)
            ]
            ends = ("nic out", nic[0]), ("nic in", nic[1])
            bandwidth = cluster.nic_bandwidth_bytes_per_s * cluster.nic_efficiency
        for end in ends:
            loads[end] += piece.bytes / bandwidth  # type: ignore[assignment]
        if cluster.node_of(piece.source) != cluster.node_of(piece.target):
            nics = cluster.num_nodes * cluster.nics_per_node
            fabric = nics * cluster.nic_bandwidth_bytes_per_s * cluster.nic_efficiency
            seconds = piece.bytes * cluster.oversubscription / fabric
            loads["fabric", 0] += seconds  # type: ignore[assignment]
    return max(loads.values(), default=0.0)


CLUSTERS = (
    make_cluster(1, 8),
    make_cluster(2, 4),
    make_cluster(4, 4, nics_per_node=2),
    make_cluster(2, 4, island_size=2),
    make_cluster(2, 4, oversubscription=4),
    make_cluster(4, 4, island_size=2, nics_per_node=2, oversubscription=8),
)


@st.composite
def groups(draw: st.DrawFn, cluster: Cluster) -> Group:
    tp = draw(st.sampled_from([1, 2]))
    units = draw(st.permutations(range(cluster.num_devices // tp)))
    chosen = units[: draw(st.integers(1, len(units)))]
    return Group(tuple(unit * tp + rank for unit in chosen for rank in range(tp)), tp)


@given(st.data())
def test_a_transfer_takes_as_long_as_its_busiest_link(data: st.DataObject) -> None:
    cluster = data.draw(st.sampled_from(CLUSTERS))
    source, target = data.draw(groups(cluster)), data.draw(groups(cluster))
    found = Affinity(cluster).transfer_s(source, target, 1e9)
    assert found == pytest.approx(slowest_s(cluster, pieces(source, target, 1e9)))


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 4), (4, 8), (3, 6)])
def test_doubling_a_group_keeps_every_device_on_one_of_its_halves(before: int, after: int) -> None:
    affinity = Affinity(make_cluster(2, 4))
    source = Group(tuple(range(before)), 1)
    target = Group(affinity.arranged(range(after), 1, source), 1)
    moved = sum(piece.bytes for piece in pieces(source, target, 1.0))
    assert moved == pytest.approx(0.5)


def test_samples_go_to_devices_of_the_island_where_they_are() -> None:
    affinity = Affinity(make_cluster(2, 4))
    source = Group((0, 4), 1)  # the first half of the batch in island 0
    target = Group(affinity.arranged((1, 2, 5, 6), 1, source), 1)
    assert target.devices == (1, 2, 5, 6)
    swapped = Group(affinity.arranged((1, 2, 5, 6), 1, Group((4, 0), 1)), 1)
    assert [device // 4 for device in swapped.devices] == [1, 1, 0, 0]


@given(st.data())
def test_an_arranged_group_has_the_same_devices_and_whole_tensor_parallel_runs(
    data: st.DataObject,
) -> None:
    cluster = data.draw(st.sampled_from(CLUSTERS))
    source, target = data.draw(groups(cluster)), data.draw(groups(cluster))
    devices = sorted(target.devices)
    arranged = Affinity(cluster).arranged(devices, target.tp, source)
    assert sorted(arranged) == devices
    runs = [arranged[start : start + target.tp] for start in range(0, len(devices), target.tp)]
    assert all(run == tuple(range(run[0], run[0] + target.tp)) for run in runs)


@given(st.data())
def test_arranging_moves_no_more_within_one_island_than_ascending_order(
    data: st.DataObject,
) -> None:
    cluster = CLUSTERS[0]
    source, target = data.draw(groups(cluster)), data.draw(groups(cluster))
    if source.tp != target.tp:
        return
    devices = tuple(sorted(target.devices))
    size = max(source.dp, target.dp)
    if max(source.dp, target.dp) % min(source.dp, target.dp):
        return  # parts that divide each other only: otherwise overlaps differ
    arranged = Group(Affinity(cluster).arranged(devices, target.tp, source), target.tp)
    kept = sum(p.bytes for p in pieces(source, arranged, size))
    plain = sum(p.bytes for p in pieces(source, Group(devices, target.tp), size))
    assert kept <= plain + 1e-9
