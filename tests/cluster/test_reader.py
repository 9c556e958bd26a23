"""A user's cluster file: what is read, and how every mistake is named."""

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
import yaml

from spindle_sim.cluster import GPUS, cluster_schema, load_cluster
from spindle_sim.errors import InputError

ROOT = Path(__file__).parents[2]
OWN_GPU = """\
name: lab
gpu:
  name: Lab-1
  memory: 24GiB
  memory_bandwidth: 1TB/s
  peak: 100TFLOP/s
  link: PCIe Gen4 x16
  link_bandwidth: 32GB/s
  collective_bandwidth: 20GB/s
nodes: 2
devices_per_node: 4
island_size: 2
nics_per_node: 1
nic_bandwidth: 100Gb/s
link_latency: 0us
"""
SHORT = "name: mine\ngpu: a800\nnodes: 2\ndevices_per_node: 8\n"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def make(text: str) -> Path:
        path = tmp_path / "c.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return make


def mistakes(path: Path) -> list[tuple[int | None, str, str]]:
    with pytest.raises(InputError) as caught:
        load_cluster(path)
    return [(problem.line, problem.path, problem.message) for problem in caught.value.problems]


def test_a_gpu_given_in_full_is_read_in_si_units(write: Callable[[str], Path]) -> None:
    cluster = load_cluster(write(OWN_GPU))
    assert cluster.gpu.memory_bytes == 24 * 2**30
    assert cluster.gpu.peak_flops == 100e12
    assert cluster.nic_bandwidth_bytes_per_s == 12.5e9
    assert cluster.link_latency_s == 0
    assert (cluster.num_islands, cluster.num_devices) == (4, 8)


def test_a_workload_file_is_told_as_such_in_one_line(write: Callable[[str], Path]) -> None:
    (found,) = mistakes(write("name: mine\nmodules: []\ntasks: []\n"))
    assert found == (None, "", "describes a workload, not a cluster: give it before the options")
    # one stray field doesn't make it one
    assert [path for _, path, _ in mistakes(write(SHORT + "tasks: []\n"))] == ["tasks"]


def test_what_is_left_out_is_typical_of_the_gpu(write: Callable[[str], Path]) -> None:
    cluster = load_cluster(write(SHORT))
    assert cluster.gpu is GPUS["a800"]
    assert (cluster.island_size, cluster.nics_per_node) == (8, 1)
    assert "paper" in cluster.source


def test_every_mistake_is_named_at_once(write: Callable[[str], Path]) -> None:
    text = """\
name: c
gpu: h10
nodes: 0
devices_per_node: 8
nic_bandwidth: 400
link_latency: 5parsec
oversubscription: .5
nics: 1
nodes: 3
"""
    found = mistakes(write(text))
    assert [(line, path) for line, path, _ in found] == [
        (2, "gpu"),
        (5, "nic_bandwidth"),
        (6, "link_latency"),
        (7, "oversubscription"),
        (8, "nics"),
        (9, "nodes"),
    ]
    messages = {path: message for _, path, message in found}
    assert "did you mean 'h100'?" in messages["gpu"]
    assert "found 400, expected a quantity with its unit: 400Gb/s" in messages["nic_bandwidth"]
    assert "5parsec" in messages["link_latency"]
    assert "0.5" in messages["oversubscription"]


@pytest.mark.parametrize(
    ("text", "line", "path", "message"),
    [
        (SHORT.replace("nodes: 2", "nodes: 1000000"), 3, "nodes", "8,000,000 devices"),
        (SHORT + "island_size: 3\n", 5, "island_size", "must divide"),
        (SHORT + "nodes: 2\n", 5, "nodes", "twice"),
        (SHORT.replace("a800", "[a800]"), 2, "gpu", "found a list"),
        (SHORT.replace("gpu: a800\n", ""), 1, "gpu", "required"),
        (SHORT + "usable_memory_fraction: 1.5\n", 5, "usable_memory_fraction", "1.5"),
        (OWN_GPU.replace("nics_per_node: 1\n", ""), 1, "nics_per_node", "no typical network"),
        (OWN_GPU.replace("memory: 24GiB", "memory: 24"), 4, "gpu.memory", "80GiB"),
        (OWN_GPU.replace("memory: 24GiB", "memory: 0GiB"), 4, "gpu.memory", "above 0"),
        (SHORT + "link_latency: 1e90us\n", 5, "link_latency", "at most 3600"),
        (SHORT + "network_latency: 2h\n", 5, "network_latency", "at most 3600"),
        (SHORT + "nic_bandwidth: 1e90Gb/s\n", 5, "nic_bandwidth", "at most 1e+30"),
        (SHORT + "nic_bandwidth: 1e-90Gb/s\n", 5, "nic_bandwidth", "at least 1"),
        (SHORT + "oversubscription: 1e90\n", 5, "oversubscription", "at most 1e+06"),
        (SHORT + "nics_per_node: 1000000000\n", 5, "nics_per_node", "at most 16384"),
        (SHORT + 'source: a\nname: "a\\a"\n', 6, "name", "twice"),
        (SHORT.replace("name: mine", 'name: "a\\e[2J"'), 1, "name", "can't be printed"),
        (OWN_GPU.replace("memory: 24GiB", "memory: 1e90GiB"), 4, "gpu.memory", "at most 1e+30"),
        (OWN_GPU.replace("peak: 100T", "peak: 1e-90T"), 6, "gpu.peak", "at least 1"),
        (OWN_GPU.replace("peak:", "peek:"), 6, "gpu.peek", "did you mean 'peak'?"),
    ],
)
def test_one_mistake_is_named_where_it_stands(
    write: Callable[[str], Path], text: str, line: int, path: str, message: str
) -> None:
    found = mistakes(write(text))
    assert [e for e in found if e[:2] == (line, path) and message in e[2]], found


def test_a_file_that_is_not_there_gives_one_clear_error(tmp_path: Path) -> None:
    assert mistakes(tmp_path / "none.yaml") == [(None, "", "no such file")]


def test_the_published_schema_is_current(golden: Callable[[str, str], None]) -> None:
    text = json.dumps(cluster_schema(), indent=2, sort_keys=True) + "\n"
    golden("../../schemas/cluster.schema.json", text)


@pytest.mark.parametrize("text", [OWN_GPU, SHORT, (ROOT / "examples/cluster.yaml").read_text()])
def test_a_right_file_fits_the_schema(write: Callable[[str], Path], text: str) -> None:
    load_cluster(write(text))
    jsonschema.validate(yaml.safe_load(text), cluster_schema())


@pytest.mark.parametrize(
    "text",
    [
        SHORT.replace("a800", "a801"),
        SHORT + "nic_bandwidth: 400\n",
        SHORT + "nic_bandwidth: 400GB\n",
        SHORT + "other: 1\n",
        OWN_GPU.replace("100TFLOP/s", "100"),
    ],
)
def test_a_wrong_file_does_not_fit_the_schema(text: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(text), cluster_schema())


def test_the_example_is_four_nodes_of_a800() -> None:
    cluster = load_cluster(ROOT / "examples/cluster.yaml")
    assert (cluster.num_devices, cluster.gpu.name) == (32, "A800-SXM4-80GB")
    assert cluster.nics_per_node * cluster.nic_bandwidth_bytes_per_s == 50e9
    assert (cluster.oversubscription, cluster.link_latency_s) == (2.0, 1e-5)
