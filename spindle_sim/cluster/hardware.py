"""ON WHAT: the GPUs, device islands, NICs and fabric of a cluster, as pure data in SI units.

Devices are numbered 0 .. num_devices - 1, node by node. A device island is a set of devices joined
by NVLink/NVSwitch or PCIe (section 3.5); it never spans nodes.
"""

import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from spindle_sim.errors import InputError, Problem
from spindle_sim.names import name_problems

__all__ = ["MAX_DEVICES", "Cluster", "Gpu"]

MAX_DEVICES = 16_384  # far above what planning is made for: a slip of the finger, not a cluster
# What is outside of these is no hardware, and may make times that no float can hold.
_LEAST_RATE = 1.0  # bytes, or bytes or FLOP per second
_MAX_RATE = 1e30
_MAX_LATENCY_S = 3600.0
_MAX_OVERSUBSCRIPTION = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One model of GPU.

    `source` says where each figure was read and which are assumed or remembered.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    name: str
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    peak_flops: float  # dense bf16 tensor-core FLOP/s
    link: str  # "NVLink3 x8", "PCIe Gen4 x16"
    link_bandwidth_bytes_per_s: float  # to all peers together, one direction, as the vendor states
    collective_bandwidth_bytes_per_s: float  # bus bandwidth that NCCL reaches over that link
    source: str

    def __post_init__(self) -> None:
        """Check the name and the figures."""
        _refuse(name_problems(self.name, where="GPU"))
        _refuse(
            _outside(
                f"GPU {self.name!r}",
                {
                    "memory_bytes": self.memory_bytes,
                    "memory_bandwidth_bytes_per_s": self.memory_bandwidth_bytes_per_s,
                    "peak_flops": self.peak_flops,
                    "link_bandwidth_bytes_per_s": self.link_bandwidth_bytes_per_s,
                    "collective_bandwidth_bytes_per_s": self.collective_bandwidth_bytes_per_s,
                },
                least=_LEAST_RATE,
                most=_MAX_RATE,
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal nodes of equal GPUs behind one fabric.

    `oversubscription` divides the fabric's bisection: 1 is a non-blocking fabric, 2 carries half of
    what all NICs could send at once. `usable_memory_fraction` leaves room for the CUDA context,
    NCCL buffers and fragmentation.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    name: str
    gpu: Gpu
    num_nodes: int
    devices_per_node: int
    island_size: int
    nics_per_node: int
    nic_bandwidth_bytes_per_s: float  # one NIC, one direction
    nic_efficiency: float = 0.92  # reached by NCCL of the line rate
    oversubscription: float = 1.0
    link_latency_s: float = 10e-6  # of one message within an island
    network_latency_s: float = 20e-6  # of one message between nodes
    usable_memory_fraction: float = 0.92
    source: str = ""

    def __post_init__(self) -> None:
        """Check that the counts fit together."""
        where = f"cluster {self.name!r}"
        counts = {
            "num_nodes": self.num_nodes,
            "devices_per_node": self.devices_per_node,
            "island_size": self.island_size,
        }
        nics = {"nics_per_node": self.nics_per_node}
        fractions = {
            "nic_efficiency": self.nic_efficiency,
            "usable_memory_fraction": self.usable_memory_fraction,
        }
        latencies = {
            "link_latency_s": self.link_latency_s,
            "network_latency_s": self.network_latency_s,
        }
        bandwidth = {"nic_bandwidth_bytes_per_s": self.nic_bandwidth_bytes_per_s}
        _refuse(
            [
                *name_problems(self.name, where="cluster"),
                *_outside(where, counts, least=1),
                *_outside(where, nics, least=1, most=MAX_DEVICES),
                *_outside(where, fractions, above=0.0, most=1.0),
                *_outside(where, latencies, least=0, most=_MAX_LATENCY_S),
                *_outside(where, bandwidth, least=_LEAST_RATE, most=_MAX_RATE),
                *_outside(
                    where,
                    {"oversubscription": self.oversubscription},
                    least=1,
                    most=_MAX_OVERSUBSCRIPTION,
                ),
            ]
        )
        _refuse(self._misfits(where))

    def _misfits(self, where: str) -> Iterator[Problem]:
        if self.num_devices > MAX_DEVICES:
            message = (
                f"{where}: {self.num_devices:,} devices ({self.num_nodes:,} nodes of"
                f" {self.devices_per_node:,}) are more than the {MAX_DEVICES:,} that can be"
                " planned for"
            )
            yield Problem(path="num_nodes", message=message)
        if self.devices_per_node % self.island_size:
            message = (
                f"{where}: island_size ({self.island_size}) must divide"
                f" devices_per_node ({self.devices_per_node})"
            )
            yield Problem(path="island_size", message=message)

    @property
    def num_devices(self) -> int:
        """Number of GPUs."""
        return self.num_nodes * self.devices_per_node

    @property
    def num_islands(self) -> int:
        """Number of device islands."""
        return self.num_devices // self.island_size

    @property
    def usable_memory_bytes(self) -> float:
        """What a plan may put on one device."""
        return self.gpu.memory_bytes * self.usable_memory_fraction

    def node_of(self, device: int) -> int:
        """Give the node of a device."""
        return device // self.devices_per_node

    def island_of(self, device: int) -> int:
        """Give the island of a device."""
        return device // self.island_size

    def nic_of(self, device: int) -> int:
        """Give the NIC (of its node) that a device uses: devices share NICs in equal runs."""
        return device % self.devices_per_node * self.nics_per_node // self.devices_per_node


def _refuse(problems: Iterable[Problem]) -> None:
    found = list(problems)
    if found:
        raise InputError(*found)


def _outside(
    where: str,
    figures: Mapping[str, float],
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = sys.float_info.max,
) -> Iterator[Problem]:
    """Find the figures that are below `least`, not above `above`, over `most`, or no number."""
    limits = []
    if least > -math.inf:
        limits.append(f"at least {least:g}")
    if above > -math.inf:
        limits.append(f"above {above:g}")
    limits.append(f"at most {most:g}" if most < sys.float_info.max else "finite")
    for name, figure in figures.items():
        if not (figure >= least and figure > above and figure <= most):
            shown = f"{min(figure, sys.float_info.max):g}"  # an integer may be beyond floats
            message = f"{where}: must be {' and '.join(limits)}, not {shown}"
            yield Problem(path=name, message=message)
