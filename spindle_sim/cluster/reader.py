"""A user's cluster: one YAML file with quantities in explicit units, every mistake named."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, TypeAdapter, WithJsonSchema

from spindle_sim.cluster.catalogue import GPUS, NODE_NETWORKS, NodeNetwork
from spindle_sim.cluster.hardware import Cluster, Gpu
from spindle_sim.diagnosis import refuse, validate
from spindle_sim.errors import InputError, Problem, suggestion
from spindle_sim.units import parse_bandwidth, parse_bytes, parse_duration, parse_flops
from spindle_sim.yamlfile import FieldPath, YamlFile, read_yaml, refuse_other_kind

__all__ = ["cluster_schema", "load_cluster"]


def _quantity(parse: Callable[[str], float], example: str, unit: str) -> tuple[Any, Any]:
    def read(value: object) -> float:
        if not isinstance(value, str):
            raise InputError(f"found {value!r:.60}, expected a quantity with its unit: {example}")
        return parse(value)

    schema = {
        "type": "string",
        "pattern": f"^\\s*[0-9.eE+-]+\\s*{unit}\\s*$",
        "examples": [example],
    }
    return BeforeValidator(read), WithJsonSchema(schema)


_SIZE = _quantity(parse_bytes, "80GiB", "([kKMGTP]|[KMGT]i)?B")
_RATE = _quantity(parse_bandwidth, "400Gb/s", "([kKMGTP]|[KMGT]i)?(b/s|bps|B/s)")
_COMPUTE = _quantity(parse_flops, "312TFLOP/s", "[kKMGTP]?(FLOP/s|FLOPS|FLOPs)")
_Count = Annotated[int, Field(ge=1)]
_Fraction = Annotated[float, Field(gt=0, le=1)]
_TIME = _quantity(parse_duration, "5us", "(s|ms|us|µs|ns|min|h)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _GpuFields:
    """A GPU that the catalogue doesn't have, as a cluster file gives it in full."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    name: str
    memory: Annotated[float, *_SIZE]
    memory_bandwidth: Annotated[float, *_RATE]
    peak: Annotated[float, *_COMPUTE]
    link: str
    link_bandwidth: Annotated[float, *_RATE]
    collective_bandwidth: Annotated[float, *_RATE]
    source: str = "given by the user"


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClusterFields:
    """The fields of a cluster file; what is left out has the GPU's typical value."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    name: str
    gpu: _GpuFields
    nodes: _Count
    devices_per_node: _Count
    island_size: _Count | None = None
    nics_per_node: _Count | None = None
    nic_bandwidth: Annotated[float, *_RATE] | None = None
    nic_efficiency: _Fraction = 0.92
    oversubscription: Annotated[float, Field(ge=1)] = 1.0
    link_latency: Annotated[float, *_TIME] = 10e-6
    network_latency: Annotated[float, *_TIME] = 20e-6
    usable_memory_fraction: _Fraction = 0.92
    source: str = ""


# What the fields of `Cluster` and `Gpu` are called in a file, where the names differ.
_FILE_NAMES = {
    "num_nodes": "nodes",
    "memory_bytes": "gpu.memory",
    "memory_bandwidth_bytes_per_s": "gpu.memory_bandwidth",
    "peak_flops": "gpu.peak",
    "link_bandwidth_bytes_per_s": "gpu.link_bandwidth",
    "collective_bandwidth_bytes_per_s": "gpu.collective_bandwidth",
    "nic_bandwidth_bytes_per_s": "nic_bandwidth",
    "link_latency_s": "link_latency",
    "network_latency_s": "network_latency",
}


def load_cluster(path: str | Path) -> Cluster:
    """Read a cluster from a YAML file.

    Raises:
        InputError: the file can't be read, or isn't a cluster; every mistake in it is named.
    """
    file = read_yaml(path)
    refuse_other_kind(
        file,
        own={"gpu", "nodes", "devices_per_node"},
        other={"modules", "tasks"},
        message="describes a workload, not a cluster: give it before the options",
    )
    file, catalogue_gpu, network, problems = _with_catalogue_gpu(file)
    fields = validate(_adapter(), file, schema=_fields_schema(), problems=problems)
    try:
        return _cluster(fields, catalogue_gpu or _gpu(fields.gpu), network)
    except InputError as error:
        refuse(
            file.problem(
                _file_path(problem.path),
                problem.message,
            )
            for problem in error.problems
        )
        raise


def _file_path(field_path: str) -> FieldPath:
    """Give where a field of `Cluster` or `Gpu` stands in a file."""
    name = _FILE_NAMES.get(field_path, field_path)
    return tuple(name.split(".")) if name else ()


def cluster_schema() -> dict[str, Any]:
    """Give the JSON Schema of a cluster file, for editors and other checkers."""
    schema = _fields_schema()
    definitions = {"Gpu": schema.pop("$defs")["_GpuFields"]}
    definitions["Gpu"]["title"] = "Gpu"
    named = {"type": "string", "enum": sorted(GPUS), "description": "a GPU of the catalogue"}
    schema["properties"]["gpu"] = {"anyOf": [named, {"$ref": "#/$defs/Gpu"}]}
    schema["properties"]["link_latency"]["default"] = "10us"
    schema["properties"]["network_latency"]["default"] = "20us"
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "$defs": definitions,
        "title": "spindle-sim cluster",
    }


@cache
def _adapter() -> TypeAdapter[_ClusterFields]:
    return TypeAdapter(_ClusterFields)


def _fields_schema() -> dict[str, Any]:
    return _adapter().json_schema()


def _with_catalogue_gpu(
    file: YamlFile,
) -> tuple[YamlFile, Gpu | None, NodeNetwork | None, list[Problem]]:
    """Look up a GPU given by name; its fields stand in the data, so that the rest is checked."""
    data = file.data
    assert isinstance(data, dict), "read_yaml gives a mapping"
    name = data.get("gpu")
    if not isinstance(name, str):
        return file, None, None, []
    key = name.lower()
    problems = []
    if key not in GPUS:
        problems.append(file.problem(("gpu",), f"no GPU {name!r}; {suggestion(key, GPUS)}"))
    return (
        replace(file, data={**data, "gpu": _PLACEHOLDER}),
        GPUS.get(key),
        NODE_NETWORKS.get(key),
        problems,
    )


_PLACEHOLDER = {
    "name": "of the catalogue",
    "memory": "1GiB",
    "memory_bandwidth": "1GB/s",
    "peak": "1TFLOP/s",
    "link": "",
    "link_bandwidth": "1GB/s",
    "collective_bandwidth": "1GB/s",
}


def _gpu(fields: _GpuFields) -> Gpu:
    return Gpu(
        name=fields.name,
        memory_bytes=fields.memory,
        memory_bandwidth_bytes_per_s=fields.memory_bandwidth,
        peak_flops=fields.peak,
        link=fields.link,
        link_bandwidth_bytes_per_s=fields.link_bandwidth,
        collective_bandwidth_bytes_per_s=fields.collective_bandwidth,
        source=fields.source,
    )


def _cluster(fields: _ClusterFields, gpu: Gpu, network: NodeNetwork | None) -> Cluster:
    missing = [
        Problem(
            path=path,
            message="is required, and missing: no typical network is known for this GPU",
        )
        for path, value in (
            ("nics_per_node", fields.nics_per_node),
            ("nic_bandwidth", fields.nic_bandwidth),
        )
        if value is None and network is None
    ]
    if missing:
        raise InputError(*missing)
    nics, bandwidth = fields.nics_per_node, fields.nic_bandwidth
    sources = [fields.source] if fields.source else []
    if network is not None and (nics is None or bandwidth is None):
        sources.append(f"NICs where not given: {network.source}")
        nics = network.nics_per_node if nics is None else nics
        bandwidth = network.nic_bandwidth_bytes_per_s if bandwidth is None else bandwidth
    assert nics is not None, "a missing count was reported"
    assert bandwidth is not None, "a missing bandwidth was reported"
    return Cluster(
        name=fields.name,
        gpu=gpu,
        num_nodes=fields.nodes,
        devices_per_node=fields.devices_per_node,
        island_size=(fields.devices_per_node if fields.island_size is None else fields.island_size),
        nics_per_node=nics,
        nic_bandwidth_bytes_per_s=bandwidth,
        nic_efficiency=fields.nic_efficiency,
        oversubscription=fields.oversubscription,
        link_latency_s=fields.link_latency,
        network_latency_s=fields.network_latency,
        usable_memory_fraction=fields.usable_memory_fraction,
        source="; ".join(sources),
    )
