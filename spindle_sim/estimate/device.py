"""The device model: what fraction of its peak figures a GPU reaches, as fitted constants.

The constants are data (`spindle_traces/devices.json`) with their provenance; this file reads them.
"""

import json
from dataclasses import dataclass
from importlib import resources

from spindle_sim.cluster import Gpu

__all__ = ["DeviceModel", "Provenance", "device_model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where figures come from: `kind` is "measured" or "modelled"."""

    device: str
    kind: str
    source: str
    date: str
    tool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceModel:
    """Constants of one GPU; efficiencies are fractions of the GPU's peak figures."""

    name: str
    gpus: tuple[str, ...]  # names of GPUs that share the constants, as prefixes
    provenance: Provenance
    gemm_efficiency: float  # of peak_flops, reached by large products
    gemm_fixed_s: float  # start, drain and the last, partly filled wave of one product
    attention_forward_efficiency: float  # of peak_flops, flash attention
    attention_backward_efficiency: float
    attention_fixed_s: float
    memory_efficiency: float  # of memory_bandwidth_bytes_per_s
    kernel_floor_s: float  # the shortest time of a kernel on the GPU
    launch_s: float  # CPU time to launch one kernel: the CPU runs ahead, so it is a floor


def device_model(gpu: Gpu) -> DeviceModel:
    """Give the constants for a GPU: its own, or those of its kin, or of the first in the file."""
    text = resources.files("spindle_traces").joinpath("devices.json").read_text(encoding="utf-8")
    models = [_model(record) for record in json.loads(text)["devices"]]
    for model in models:
        if any(gpu.name.lower().startswith(name.lower()) for name in model.gpus):
            return model
    return models[0]


def _model(record: dict[str, object]) -> DeviceModel:
    provenance = record["provenance"]
    gpus = record["gpus"]
    assert isinstance(provenance, dict)
    assert isinstance(gpus, list)
    fields = {key: value for key, value in record.items() if key not in ("provenance", "gpus")}
    return DeviceModel(provenance=Provenance(**provenance), gpus=tuple(gpus), **fields)  # type: ignore[arg-type]
