"""Software profiles: what a training stack and its cluster cost beside what the GPU can do.

The device model says what a GPU reaches; this says what one stack made of it, where iterations of
that stack were measured: launching, losses, steps, gradient rings. The constants are data
(`spindle_traces/software.json`) with their provenance; `benchmarks/measured_fit.py` fits them.
Without a profile (`EAGER`) the device model is left as the micro-benchmarks gave it.
"""

from dataclasses import dataclass, replace
from importlib import resources
from statistics import NormalDist

from pydantic import TypeAdapter

from spindle_sim.errors import UsageError, suggestion
from spindle_sim.estimate.device import DeviceModel, Provenance

__all__ = ["EAGER", "SoftwareModel", "SoftwareModels", "software_model", "software_models"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareModel:
    """Constants of one stack; None leaves what the device model says."""

    name: str
    provenance: Provenance
    gemm_efficiency: float | None = None  # of peak_flops, large products of that stack's runs
    # Of peak_flops, products of an odd number of columns; None: as good as any other.
    gemm_odd_efficiency: float | None = None
    batched_efficiency: float = 0.5  # of peak_flops, batched products of unfused attention
    elementwise_efficiency: float | None = None  # of memory_bandwidth
    launch_s: float | None = None  # CPU time to launch one kernel
    # Launching and computing overlap: (launch^p + compute^p)^(1/p); None: the longer of the two.
    launch_exponent: float | None = None
    loss_s: float = 0.0  # a micro-batch's loss beside its products and traffic
    # Moved in the forward for each logit beyond the operator's count: float32 copies of the loss.
    logit_bytes: float = 0.0
    # Whether gradients are summed beside the last backward where their ranks share a node.
    overlap_in_node: bool = False
    # Moved for each weight of a product in each backward: its gradient is added to those before.
    accumulation_bytes: float = 0.0
    # Under sequence parallelism a block keeps its part of its input: the backward gathers it again
    # this many times, beside the collectives that there are without it.
    sequence_gathers: int = 0
    step_s: float = 0.0  # an iteration's step beside the optimizer's traffic
    # Standard deviation of the speeds of equal nodes: those that wait for each other go at the pace
    # of the slowest of them.
    node_spread: float = 0.0
    # The fused softmax of unfused attention takes heads * samples of a rank in multiples of this
    # number; others run it as plain operators, on float32 scores. None: all run as the fused one.
    softmax_multiple: int | None = None
    softmax_fallback_s: float = 0.0  # CPU time that those operators take more, in each pass
    # Of the NICs' rate, rings over three nodes and more; the second where a node has several of the
    # ring's ranks, and other rings' ranks between them.
    ring_network_share: float = 1.0
    mixed_ring_network_share: float = 1.0

    def pace(self, num_nodes: int) -> float:
        """Give how much longer than one node so many compute that wait for each other.

        The expected largest of as many normal deviates, as Blom approximates it.
        """
        if num_nodes == 1 or not self.node_spread:
            return 1.0
        largest = NormalDist().inv_cdf((num_nodes - 0.375) / (num_nodes + 0.25))
        return 1.0 + self.node_spread * largest

    def device(self, device: DeviceModel) -> DeviceModel:
        """Give the device model with this stack's figures."""
        return replace(
            device,
            gemm_efficiency=self.gemm_efficiency or device.gemm_efficiency,
            elementwise_efficiency=self.elementwise_efficiency or device.elementwise_efficiency,
            launch_s=self.launch_s or device.launch_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareModels:
    """The file of profiles."""

    format_version: str
    software: tuple[SoftwareModel, ...]


EAGER = SoftwareModel(
    name="eager",
    provenance=Provenance(
        device="any",
        kind="modelled",
        source="the device model alone; batched products as in megatron-deepspeed-2022",
        date="2026-11-30",
        tool="by hand",
    ),
)


def software_models() -> SoftwareModels:
    """Read the profiles that come with the program."""
    path = resources.files("spindle_traces").joinpath("software.json")
    return TypeAdapter(SoftwareModels).validate_json(path.read_bytes())


def software_model(name: str) -> SoftwareModel:
    """Give the profile of a name.

    Raises:
        UsageError: there is none of that name.
    """
    known = {model.name: model for model in (EAGER, *software_models().software)}
    if name not in known:
        raise UsageError(f"software {name!r}: no such profile; {suggestion(name, known)}")
    return known[name]
