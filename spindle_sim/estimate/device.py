"""The device model: what a GPU and NCCL reach of their peak figures, as fitted constants.

The constants are data (`spindle_traces/devices.json`) with their provenance; this file reads them.
`benchmarks/estimate_fit.py` makes that file from published measurements.
"""

from dataclasses import dataclass
from importlib import resources

from pydantic import TypeAdapter

from spindle_sim.cluster import GPUS, Gpu

__all__ = ["DeviceModel", "DeviceModels", "NcclModel", "Provenance", "device_models", "is_measured"]


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
    gpus: tuple[str, ...]  # GPUs that share the constants, as prefixes of their names
    provenance: Provenance
    gemm_efficiency: float  # of peak_flops, reached by large products
    gemm_fixed_s: float  # start, drain and the last, partly filled wave of one product
    gemm_memory_efficiency: float  # of memory_bandwidth, reached by products of few rows
    attention_forward_efficiency: float  # of peak_flops, flash attention
    attention_backward_efficiency: float
    attention_tail_rows: float  # query rows (over all heads) that idle in the last wave
    elementwise_efficiency: float  # of memory_bandwidth, reached by everything else
    kernel_floor_s: float  # the shortest time of a kernel on the GPU
    launch_s: float  # CPU time to launch one kernel: the CPU runs ahead, so it is a floor


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclModel:
    """Constants of NCCL on one kind of GPU; hop latencies are NCCL's own (`collectives.py`)."""

    name: str
    gpus: tuple[str, ...]
    provenance: Provenance
    launch_s: float  # from the call to the first byte, on top of NCCL's base latency
    simple_fixed_s: float  # filling the pipeline of the Simple protocol
    ring_loss: float  # the ring's bandwidth is 1 - ring_loss / ranks of what many ranks reach
    sharp_gain: float = 0.0  # NVLink SHARP over the ring, whole island; 0 where there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceModels:
    """The file of constants; the first of a list serves GPUs that none names."""

    format_version: str
    devices: tuple[DeviceModel, ...]
    nccl: tuple[NcclModel, ...]

    def device(self, gpu: Gpu) -> DeviceModel:
        """Give the constants for a GPU: its own die's, or the first."""
        return next((m for m in self.devices if _names(m.gpus, gpu)), self.devices[0])

    def collective(self, gpu: Gpu) -> NcclModel:
        """Give NCCL's constants for a GPU."""
        return next((m for m in self.nccl if _names(m.gpus, gpu)), self.nccl[0])


def is_measured(device: DeviceModel, gpu: Gpu) -> bool:
    """Tell whether the constants were fitted to measurements of this GPU, or of another of its die.

    A die has one peak figure: GPUs that only borrow the constants differ in it.
    """
    measured = next((one for one in GPUS.values() if one.name == device.provenance.device), None)
    same_die = measured is not None and gpu.peak_flops == measured.peak_flops
    return same_die and _names(device.gpus, gpu)


def device_models() -> DeviceModels:
    """Read the constants that come with the program."""
    path = resources.files("spindle_traces").joinpath("devices.json")
    return TypeAdapter(DeviceModels).validate_json(path.read_bytes())


def _names(prefixes: tuple[str, ...], gpu: Gpu) -> bool:
    return gpu.name.lower().startswith(tuple(prefix.lower() for prefix in prefixes))
