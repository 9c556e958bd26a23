"""Clusters in a word, and what is no cluster."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from spindle_sim.cluster import GPUS, Cluster, parse_cluster
from spindle_sim.errors import SpindleError, UsageError


def test_two_nodes_of_eight_are_the_papers_machine() -> None:
    cluster = parse_cluster("a800:2x8")
    assert (cluster.num_nodes, cluster.devices_per_node, cluster.num_devices) == (2, 8, 16)
    assert (cluster.island_size, cluster.num_islands) == (8, 2)
    assert cluster.gpu is GPUS["a800"]
    assert cluster.nics_per_node * cluster.nic_bandwidth_bytes_per_s == 50e9
    assert "section 5.1" in cluster.source


def test_a_single_number_is_one_node() -> None:
    cluster = parse_cluster("h100:4")
    assert (cluster.num_nodes, cluster.devices_per_node) == (1, 4)


def test_case_and_spaces_around_do_not_matter() -> None:
    assert parse_cluster(" A800:2X8 ") == parse_cluster("a800:2x8")


def test_options_replace_the_network_and_say_so() -> None:
    cluster = parse_cluster(
        "a800:2x8", nics_per_node=4, nic_bandwidth="100Gb/s", oversubscription=2.0
    )
    assert cluster.nics_per_node == 4
    assert cluster.nic_bandwidth_bytes_per_s == 12.5e9
    assert cluster.oversubscription == 2.0
    assert "given: nics_per_node 4" in cluster.source


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a80:2x8", "did you mean 'a800'?"),
        ("rtx:1x1", "known are: a100"),
        ("a800", "expected a GPU and its counts"),
        ("a800:", "expected a GPU and its counts"),
        ("a800:x8", "expected a GPU and its counts"),
        ("a800:2x8x2", "expected a GPU and its counts"),
        ("a800:-1x8", "expected a GPU and its counts"),
        ("", "expected a GPU and its counts"),
        ("a800:0x8", "must be at least 1"),
        ("a800:2x0", "must be at least 1"),
        ("a800:1000000x8", "8,000,000 devices"),
        ("a800:999999999999x999999999999", "more than the 16,384"),
    ],
)
def test_a_wrong_word_is_refused_with_what_is_right(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_cluster(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nics_per_node": 0}, "nics_per_node"),
        ({"nic_bandwidth": "400"}, "with its unit"),
        ({"nic_bandwidth": "400GB"}, "expected a bandwidth"),
        ({"oversubscription": 0.5}, "oversubscription"),
        ({"oversubscription": float("nan")}, "oversubscription"),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_cluster("a800:2x8", **options)  # type: ignore[arg-type]
    assert message in str(caught.value)


@given(st.sampled_from(sorted(GPUS)), st.integers(1, 64), st.integers(1, 16))
def test_every_gpu_makes_a_cluster_of_any_size(key: str, nodes: int, devices: int) -> None:
    cluster = parse_cluster(f"{key}:{nodes}x{devices}")
    assert cluster.num_devices == nodes * devices
    assert [cluster.node_of(device) for device in range(cluster.num_devices)] == sorted(
        node for node in range(nodes) for _ in range(devices)
    )
    assert all(0 <= cluster.nic_of(d) < cluster.nics_per_node for d in range(cluster.num_devices))


@given(st.sampled_from(sorted(GPUS)), st.floats(1, 100), st.floats(1e-9, 1e9))
def test_a_cluster_survives_json_unchanged(key: str, oversubscription: float, rate: float) -> None:
    cluster = parse_cluster(
        f"{key}:2x8", oversubscription=oversubscription, nic_bandwidth=f"{rate!r}GB/s"
    )
    adapter = TypeAdapter(Cluster)
    assert adapter.validate_json(adapter.dump_json(cluster)) == cluster
    assert adapter.validate_python(adapter.dump_python(cluster)) == cluster


@given(st.text(max_size=30).filter(lambda text: not text.lower().endswith((".yaml", ".yml"))))
def test_any_text_is_a_cluster_or_one_clear_error(text: str) -> None:
    message = ""
    try:
        parse_cluster(text)
    except SpindleError as error:
        message = str(error)
    assert not message or repr(text) in message


def test_the_nics_of_a_node_are_shared_in_equal_runs() -> None:
    cluster = parse_cluster("a800:2x8", nics_per_node=4)
    assert [cluster.nic_of(device) for device in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_path_is_read_as_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yml"
    path.write_text("name: mine\ngpu: h200\nnodes: 1\ndevices_per_node: 2\n")
    assert parse_cluster(path) == parse_cluster(str(path))
    assert parse_cluster(path).gpu is GPUS["h200"]
    assert parse_cluster(path, oversubscription=3.0).oversubscription == 3.0
