"""The GPU catalogue: keys, sources, and figures that must agree among themselves."""

import pytest

from spindle_sim.cluster import GPUS
from spindle_sim.cluster.catalogue import NODE_NETWORKS


def test_the_gpus_that_users_ask_for_are_there() -> None:
    assert {"a800", "a800-pcie", "a100", "a100-pcie", "h100", "h800", "h200"} <= set(GPUS)
    assert set(NODE_NETWORKS) == set(GPUS)


@pytest.mark.parametrize("key", GPUS)
def test_every_gpu_says_where_its_figures_come_from(key: str) -> None:
    gpu = GPUS[key]
    assert key == key.lower()
    assert gpu.name.lower().startswith(key.split("-")[0])
    assert "collective" in gpu.source
    assert any(word in gpu.source for word in ("peak", "from memory", "H100"))
    assert NODE_NETWORKS[key].source


@pytest.mark.parametrize("key", GPUS)
def test_collectives_are_never_faster_than_the_link(key: str) -> None:
    assert GPUS[key].collective_bandwidth_bytes_per_s < GPUS[key].link_bandwidth_bytes_per_s


def test_an_a800_is_an_a100_with_two_thirds_of_its_links() -> None:
    a800, a100 = GPUS["a800"], GPUS["a100"]
    assert a800.peak_flops == a100.peak_flops == 312e12
    assert a800.link_bandwidth_bytes_per_s / a100.link_bandwidth_bytes_per_s == 8 / 12
    assert a800.memory_bytes == 80 * 2**30


def test_measured_collectives_are_the_bus_bandwidth_of_a_gibibyte_over_eight() -> None:
    # bus bandwidth = 2 (n - 1) / n * size / time, as nccl-tests prints it
    for key, time_s in (("a800", 12.369e-3), ("a100", 8.19e-3)):
        bus = 2 * 7 / 8 * 2**30 / time_s
        assert GPUS[key].collective_bandwidth_bytes_per_s == pytest.approx(bus, rel=0.005)


def test_the_a800_network_is_the_papers() -> None:
    network = NODE_NETWORKS["a800"]
    assert network.nics_per_node * network.nic_bandwidth_bytes_per_s == 400e9 / 8
