from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spindle_sim.cluster import GPUS, Cluster
from spindle_sim.estimate import Collective, Estimator
from spindle_sim.estimate.collectives import CollectiveModel

MIB = 2.0**20


def cluster(gpu: str = "a800", *, nodes: int = 4, nics: int = 1, island: int = 8) -> Cluster:
    return Cluster(
        name="test",
        gpu=GPUS[gpu],
        num_nodes=nodes,
        devices_per_node=8,
        island_size=island,
        nics_per_node=nics,
        nic_bandwidth_bytes_per_s=50e9,
    )


def all_reduce_s(model: CollectiveModel, size_bytes: float, devices: range) -> float:
    return model.time_s(Collective.ALL_REDUCE, size_bytes, devices)


def test_one_device_or_no_bytes_take_no_time() -> None:
    model = CollectiveModel.of(cluster())
    assert all_reduce_s(model, 1e9, range(1)) == 0.0
    assert all_reduce_s(model, 0.0, range(8)) == 0.0
    assert model.demand(Collective.ALL_REDUCE, 1e9, range(3, 4)).algorithm == "none"


def test_a_large_ring_of_eight_moves_at_the_measured_bus_bandwidth() -> None:
    # t = latency + 2 (k - 1) / k * bytes / bandwidth: the latency cancels in the difference.
    model = CollectiveModel.of(cluster("a800"))
    difference = all_reduce_s(model, 4e9, range(8)) - all_reduce_s(model, 2e9, range(8))
    assert difference == pytest.approx(2 * 7 / 8 * 2e9 / 152e9)


def test_a_ring_across_nodes_moves_at_the_nic_of_a_node() -> None:
    model = CollectiveModel.of(cluster())
    difference = all_reduce_s(model, 4e9, range(16)) - all_reduce_s(model, 2e9, range(16))
    assert difference == pytest.approx(2 * 15 / 16 * 2e9 / (50e9 * 0.92))


def test_two_nodes_of_eight_reach_the_published_share_of_one_nic() -> None:
    # 44.7 GB/s of bus bandwidth were measured on two nodes with 50 GB/s each: 0.89.
    time_s = all_reduce_s(CollectiveModel.of(cluster()), 2.0**30, range(16))
    assert 2 * 15 / 16 * 2.0**30 / time_s == pytest.approx(44.7e9, rel=0.05)


def test_a_device_a_node_reaches_only_its_own_nic() -> None:
    model = CollectiveModel.of(cluster(nics=8))
    alone = model.time_s(Collective.ALL_REDUCE, 2.0**30, (0, 8))
    joint = model.time_s(Collective.ALL_REDUCE, 2.0**30, (0, 1, 8, 9))
    assert 2 * 1 / 2 * 2.0**30 / alone < 50e9
    assert 2 * 3 / 4 * 2.0**30 / joint > 80e9


def test_an_oversubscribed_fabric_slows_a_collective_over_all_nodes() -> None:
    wide = cluster()
    narrow = replace(wide, oversubscription=2.0)
    times = [all_reduce_s(CollectiveModel.of(item), 4e9, range(32)) for item in (wide, narrow)]
    assert times[1] == pytest.approx(2 * times[0], rel=0.01)


def test_small_messages_between_nodes_take_the_tree() -> None:
    model = CollectiveModel.of(cluster(nodes=16))
    assert model.demand(Collective.ALL_REDUCE, 1024, range(128)).algorithm == "tree/LL"
    assert model.demand(Collective.ALL_REDUCE, 8e9, range(128)).algorithm == "ring/Simple"


def test_a_ring_of_low_latency_takes_nccls_own_constants() -> None:
    # ring LL on one node of eight: 6.6 + 14 * 0.6 us, after launching.
    model = CollectiveModel.of(cluster())
    demand = model.demand(Collective.ALL_REDUCE, 1024, range(8))
    assert demand.algorithm == "ring/LL"
    assert demand.latency_s - model.nccl.launch_s == pytest.approx(15e-6)


def test_reduce_scatter_and_all_gather_move_half_of_an_all_reduce() -> None:
    model = CollectiveModel.of(cluster())
    both = [
        model.time_s(kind, 8e9, range(16)) - model.time_s(kind, 4e9, range(16))
        for kind in (Collective.REDUCE_SCATTER, Collective.ALL_GATHER)
    ]
    whole = all_reduce_s(model, 8e9, range(16)) - all_reduce_s(model, 4e9, range(16))
    assert both == pytest.approx([whole / 2, whole / 2])


def test_nvlink_sharp_exists_only_where_the_gpu_has_it() -> None:
    def algorithm(gpu: str) -> str:
        model = CollectiveModel.of(cluster(gpu))
        return model.demand(Collective.ALL_REDUCE, 2.0**30, range(8)).algorithm

    assert algorithm("h100") == "sharp/Simple"
    assert algorithm("a800") == algorithm("a100") == "ring/Simple"


def test_no_all_reduce_of_an_a800_exceeds_its_eight_links() -> None:
    model = CollectiveModel.of(cluster("a800"))
    for ranks in range(2, 9):
        for exponent in range(10, 34):
            time_s = all_reduce_s(model, 2.0**exponent, range(ranks))
            assert 2 * (ranks - 1) / ranks * 2.0**exponent / time_s <= 160e9


def test_a_message_takes_latency_and_the_bandwidth_of_its_link() -> None:
    estimator = Estimator(cluster())
    assert estimator.transfer_s(1e9, 3, 3) == 0.0
    assert estimator.transfer_s(1e9, 0, 7) == pytest.approx(10e-6 + 1e9 / 152e9)
    assert estimator.transfer_s(1e9, 0, 8) == pytest.approx(20e-6 + 1e9 / 46e9)


GROUPS = st.sets(st.integers(0, 31), min_size=2, max_size=32).map(sorted)


@given(
    devices=GROUPS,
    size_bytes=st.floats(1, 1e10),
    kind=st.sampled_from(list(Collective)),
    nics=st.sampled_from([1, 2, 8]),
    island=st.sampled_from([4, 8]),
    gpu=st.sampled_from(["a800", "h100", "a40"]),
    oversubscription=st.sampled_from([1.0, 3.0]),
)
def test_a_demand_alone_on_idle_links_lasts_as_long_as_the_estimate(
    devices: list[int],
    size_bytes: float,
    kind: Collective,
    nics: int,
    island: int,
    gpu: str,
    oversubscription: float,
) -> None:
    where = replace(cluster(gpu, nics=nics, island=island), oversubscription=oversubscription)
    model = CollectiveModel.of(where)
    demand = model.demand(kind, size_bytes, devices)
    nic = where.nic_bandwidth_bytes_per_s * where.nic_efficiency
    fabric = nic * where.nics_per_node * where.num_nodes / oversubscription
    sending_s = max(
        [size / where.gpu.collective_bandwidth_bytes_per_s for _, size in demand.port_bytes]
        + [size / nic for _, size in demand.nic_bytes]
        + [demand.fabric_bytes / fabric]
    )
    alone_s = model.time_s(kind, size_bytes, devices)
    assert demand.latency_s + sending_s == pytest.approx(alone_s, rel=1e-9)


@given(devices=GROUPS, size_bytes=st.floats(1, 1e10), factor=st.floats(1, 10))
def test_more_bytes_or_slower_links_never_make_it_faster(
    devices: list[int], size_bytes: float, factor: float
) -> None:
    fast = CollectiveModel.of(cluster())
    slow = CollectiveModel.of(replace(cluster(), nic_bandwidth_bytes_per_s=50e9 / factor))
    base_s = fast.time_s(Collective.ALL_REDUCE, size_bytes, devices)
    assert fast.time_s(Collective.ALL_REDUCE, factor * size_bytes, devices) >= base_s
    assert slow.time_s(Collective.ALL_REDUCE, size_bytes, devices) >= base_s * (1 - 1e-12)
