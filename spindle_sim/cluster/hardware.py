"""ON WHAT: the GPUs, device islands, NICs and fabric of a cluster, as pure data in SI units.

Devices are numbered 0 .. num_devices - 1, node by node. A device island is a set of devices joined
by NVLink/NVSwitch or PCIe (section 3.5); it never spans nodes.
"""

from dataclasses import dataclass

from spindle_sim.errors import InputError

__all__ = ["MAX_DEVICES", "Cluster", "Gpu"]

MAX_DEVICES = 16_384  # far above what planning is made for: a slip of the finger, not a cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One model of GPU.

    `source` says where each figure was read and which are assumed or remembered.
    """

    name: str
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    peak_flops: float  # dense bf16 tensor-core FLOP/s
    link: str  # "NVLink3 x8", "PCIe Gen4 x16"
    link_bandwidth_bytes_per_s: float  # to all peers together, one direction, as the vendor states
    collective_bandwidth_bytes_per_s: float  # bus bandwidth that NCCL reaches over that link
    source: str

    def __post_init__(self) -> None:
        """Check that every figure is positive."""
        figures = (
            self.memory_bytes,
            self.memory_bandwidth_bytes_per_s,
            self.peak_flops,
            self.link_bandwidth_bytes_per_s,
            self.collective_bandwidth_bytes_per_s,
        )
        if min(figures) <= 0:
            raise InputError(f"GPU {self.name!r}: every figure must be positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal nodes of equal GPUs behind one fabric.

    `oversubscription` divides the fabric's bisection: 1 is a non-blocking fabric, 2 carries half of
    what all NICs could send at once. `usable_memory_fraction` leaves room for the CUDA context,
    NCCL buffers and fragmentation.
    """

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
        if min(self.num_nodes, self.devices_per_node, self.island_size, self.nics_per_node) < 1:
            raise InputError(f"cluster {self.name!r}: every count must be at least 1")
        if self.num_devices > MAX_DEVICES:
            raise InputError(
                f"cluster {self.name!r}: {self.num_devices:,} devices"
                f" ({self.num_nodes:,} nodes of {self.devices_per_node:,}) are more than the"
                f" {MAX_DEVICES:,} that can be planned for"
            )
        if self.devices_per_node % self.island_size:
            raise InputError(
                f"cluster {self.name!r}: island_size ({self.island_size}) must divide"
                f" devices_per_node ({self.devices_per_node})"
            )
        if self.nic_bandwidth_bytes_per_s <= 0 or self.oversubscription < 1:
            raise InputError(
                f"cluster {self.name!r}: nic bandwidth must be positive, oversubscription >= 1"
            )
        if not (0 < self.usable_memory_fraction <= 1 and 0 < self.nic_efficiency <= 1):
            raise InputError(f"cluster {self.name!r}: fractions must be above 0 and at most 1")
        if min(self.link_latency_s, self.network_latency_s) < 0:
            raise InputError(f"cluster {self.name!r}: latencies must not be negative")

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
