"""The GPU catalogue: published and measured figures, each with where it comes from and how sure.

Peak is dense bf16. Collective bandwidth is what an all-reduce of 8 GPUs was measured to reach
(bus bandwidth as nccl-tests prints it, 1 GiB), else the ceiling that NCCL's link constants give
(20 GB/s an NVLink). Memory is the nominal size in GiB; of Hopper and Ada cards the driver shows
1-6 % less, which `Cluster.usable_memory_fraction` covers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from spindle_sim.cluster.hardware import Gpu

__all__ = ["GPUS", "NODE_NETWORKS", "NodeNetwork"]

_GIB = 2.0**30
_GB_PER_S = 1e9
_TFLOPS = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNetwork:
    """The NICs that a node of eight of a GPU typically has, where the user names none."""

    nics_per_node: int
    nic_bandwidth_bytes_per_s: float
    source: str


def _gpu(
    name: str,
    *,
    memory_gib: float,
    memory_gb_per_s: float,
    peak_tflops: float,
    link: str,
    link_gb_per_s: float,
    collective_gb_per_s: float,
    source: str,
) -> Gpu:
    return Gpu(
        name=name,
        memory_bytes=memory_gib * _GIB,
        memory_bandwidth_bytes_per_s=memory_gb_per_s * _GB_PER_S,
        peak_flops=peak_tflops * _TFLOPS,
        link=link,
        link_bandwidth_bytes_per_s=link_gb_per_s * _GB_PER_S,
        collective_bandwidth_bytes_per_s=collective_gb_per_s * _GB_PER_S,
        source=source,
    )


GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        "a800": _gpu(
            "A800-SXM4-80GB",
            memory_gib=80,
            memory_gb_per_s=2039,
            peak_tflops=312,
            link="NVLink3 x8",
            link_gb_per_s=200,
            collective_gb_per_s=152,
            source=(
                "peak: A100 die (hmc-tech.com, A800 card: 311.87 bf16); memory bandwidth: assumed"
                " equal to A100-SXM4-80GB; link: 8 of 12 NVLinks, 200 GB/s each way (public report"
                " of an 8x A800-SXM4 node); collective: the same report, 12.369 ms for an"
                " all-reduce of 1 GiB over 8 GPUs"
            ),
        ),
        "a800-pcie": _gpu(
            "A800-PCIe-80GB",
            memory_gib=80,
            memory_gb_per_s=1935,
            peak_tflops=312,
            link="PCIe Gen4 x16",
            link_gb_per_s=32,
            collective_gb_per_s=24,
            source="from memory of the vendor's table; collective is a guess; no NVLink bridges",
        ),
        "a100": _gpu(
            "A100-SXM4-80GB",
            memory_gib=80,
            memory_gb_per_s=2039,
            peak_tflops=312,
            link="NVLink3 x12",
            link_gb_per_s=300,
            collective_gb_per_s=229,
            source=(
                "peak, memory, link: glennklockwood.com/garden/processors/A100; collective:"
                " vTrain's published profile, 8.19 ms for 1 GiB over 8 GPUs (NVIDIA/nccl-tests"
                " issue 175 prints 232.5 GB/s)"
            ),
        ),
        "a100-pcie": _gpu(
            "A100-PCIe-80GB",
            memory_gib=80,
            memory_gb_per_s=1935,
            peak_tflops=312,
            link="PCIe Gen4 x16",
            link_gb_per_s=32,
            collective_gb_per_s=24,
            source=(
                "peak: MooreThreads/SimuMax configs/system/a100_pcie.json; memory bandwidth and"
                " link from memory; collective is a guess"
            ),
        ),
        "h100": _gpu(
            "H100-SXM5-80GB",
            memory_gib=80,
            memory_gb_per_s=3350,
            peak_tflops=989,
            link="NVLink4 x18",
            link_gb_per_s=450,
            collective_gb_per_s=370,
            source=(
                "peak, memory, link: acecloud.ai b200-vs-h200; collective: ring all-reduce of 8"
                " GPUs, NVIDIA/nccl-tests issue 212 (476 GB/s with NVLink SHARP, issue 290)"
            ),
        ),
        "h800": _gpu(
            "H800-SXM5-80GB",
            memory_gib=80,
            memory_gb_per_s=3350,
            peak_tflops=989,
            link="NVLink4 x8",
            link_gb_per_s=200,
            collective_gb_per_s=160,
            source=(
                "H100 with 8 of 18 NVLinks; collective: NCCL's ring ceiling, 8 x 20 GB/s (215 GB/s"
                " measured with NVLink SHARP, NVIDIA/nccl issue 1374)"
            ),
        ),
        "h200": _gpu(
            "H200-SXM-141GB",
            memory_gib=141,
            memory_gb_per_s=4800,
            peak_tflops=989,
            link="NVLink4 x18",
            link_gb_per_s=450,
            collective_gb_per_s=370,
            source=(
                "peak, memory, link: rooflinenotes.dev/accelerators; collective: H100's ring figure"
                " (475 GB/s with NVLink SHARP, NVIDIA/nccl-tests issue 272)"
            ),
        ),
        "a40": _gpu(
            "A40-48GB",
            memory_gib=48,
            memory_gb_per_s=696,
            peak_tflops=149.7,
            link="PCIe Gen4 x16",
            link_gb_per_s=32,
            collective_gb_per_s=24,
            source=(
                "from memory of the vendor's table (products of about 109 TFLOP/s measured in"
                " microsoft/vidur); collective is a guess; no NVLink bridges"
            ),
        ),
        "l40s": _gpu(
            "L40S-48GB",
            memory_gib=48,
            memory_gb_per_s=864,
            peak_tflops=362,
            link="PCIe Gen4 x16",
            link_gb_per_s=32,
            collective_gb_per_s=24,
            source="peak, memory: llmbook appendix G.1; collective is a guess",
        ),
        "mi300x": _gpu(
            "MI300X-192GB",
            memory_gib=192,
            memory_gb_per_s=5300,
            peak_tflops=1307,
            link="Infinity Fabric x7",
            link_gb_per_s=448,
            collective_gb_per_s=310,
            source=(
                "peak, memory, link: llmbook appendix G.1, rooflinenotes.dev; collective is a guess"
            ),
        ),
        "b200": _gpu(
            "B200-SXM",
            memory_gib=180,
            memory_gb_per_s=8000,
            peak_tflops=2250,
            link="NVLink5 x18",
            link_gb_per_s=900,
            collective_gb_per_s=670,
            source=(
                "peak, memory, link: rooflinenotes.dev, llmbook appendix G.1; collective: scaled"
                " from H100's ring figure, a guess"
            ),
        ),
    }
)

_GBIT_PER_S = 1e9 / 8
_PAPER = NodeNetwork(
    nics_per_node=1,
    nic_bandwidth_bytes_per_s=400 * _GBIT_PER_S,
    source=(
        "the paper: 400 Gb/s InfiniBand between nodes (section 5.1); taken as one NIC a node, since"
        " it doesn't say how many"
    ),
)
_DGX_A100 = NodeNetwork(
    nics_per_node=8,
    nic_bandwidth_bytes_per_s=200 * _GBIT_PER_S,
    source="8 NICs of 200 Gb/s, as a DGX A100 has",
)
_HOPPER = NodeNetwork(
    nics_per_node=8,
    nic_bandwidth_bytes_per_s=400 * _GBIT_PER_S,
    source="8 NICs of 400 Gb/s, typical of such nodes",
)
_PCIE = NodeNetwork(
    nics_per_node=2,
    nic_bandwidth_bytes_per_s=100 * _GBIT_PER_S,
    source="2 NICs of 100 Gb/s, a guess",
)

NODE_NETWORKS: Mapping[str, NodeNetwork] = MappingProxyType(
    {
        "a800": _PAPER,
        "a800-pcie": _PCIE,
        "a100": _DGX_A100,
        "a100-pcie": _PCIE,
        "h100": _HOPPER,
        "h800": _HOPPER,
        "h200": _HOPPER,
        "a40": _PCIE,
        "l40s": _PCIE,
        "mi300x": _HOPPER,
        "b200": _HOPPER,
    }
)
