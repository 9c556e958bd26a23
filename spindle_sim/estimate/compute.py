"""How long one operator computes on one device: products, attention, memory traffic, launches.

A roofline whose efficiency falls with the size of the work through fixed times: a product takes
gemm_fixed_s + max(FLOP / (efficiency * peak), bytes / bandwidth), so small ones reach little of
the peak. Communication is not in here.
"""

from dataclasses import dataclass

from spindle_sim.cluster import Gpu
from spindle_sim.estimate.device import DeviceModel
from spindle_sim.plan import Backward
from spindle_sim.workload import Attention, Gemm, OperatorCost, Sharding

__all__ = ["ComputeModel"]

BYTES_PER_ELEMENT = 2  # bf16
BACKWARD_TRAFFIC = 1.5  # reads the kept input and the gradient, writes one: three for two


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeModel:
    """Times of one operator on one device, for `samples` items computed together."""

    gpu: Gpu
    device: DeviceModel

    def forward_s(self, cost: OperatorCost, samples: float, tp: int = 1) -> float:
        """Give the forward time of `samples` items at tensor-parallel degree `tp`."""
        busy_s = sum(self.gemm_s(gemm, samples, tp) for gemm in cost.gemms)
        busy_s += sum(self.attention_s(item, samples, tp) for item in cost.attentions)
        products = _products(cost)
        busy_s += self._rest_s(cost.traffic_bytes * samples / tp, cost.kernels - products)
        return max(busy_s, cost.kernels * self.device.launch_s)

    def backward_s(
        self, cost: OperatorCost, samples: float, backward: Backward, tp: int = 1
    ) -> float:
        """Give the backward time, without a recomputed forward."""
        if backward is Backward.NONE:
            return 0.0
        weights = 0 if backward is Backward.INPUT_ONLY else 1
        busy_s = 0.0
        for index, gemm in enumerate(cost.gemms):
            # The first product's input is the operator's: its gradient may not be wanted.
            inputs = 0 if backward is Backward.WEIGHT_ONLY and index == 0 else 1
            busy_s += (weights + inputs) * self.gemm_s(gemm, samples, tp)
        for item in cost.attentions:
            busy_s += self.attention_s(item, samples, tp, backward=True)
        kernels = 2 * cost.kernels
        rest = max(0, kernels - 2 * _products(cost))
        busy_s += self._rest_s(BACKWARD_TRAFFIC * cost.traffic_bytes * samples / tp, rest)
        return max(busy_s, kernels * self.device.launch_s)

    def gemm_s(self, gemm: Gemm, samples: float, tp: int = 1) -> float:
        """Give the time of the product (or of one of its two gradients: as many FLOP)."""
        inner, columns = float(gemm.inner), float(gemm.columns)
        if gemm.sharding is Sharding.COLUMN:
            columns /= tp
        elif gemm.sharding is Sharding.ROW:
            inner /= tp
        rows = gemm.rows * samples
        flops_s = 2.0 * rows * inner * columns / (self.device.gemm_efficiency * self.gpu.peak_flops)
        elements = rows * inner + inner * columns + rows * columns
        memory_s = BYTES_PER_ELEMENT * elements / self._memory_bandwidth
        return gemm.count * (self.device.gemm_fixed_s + max(flops_s, memory_s))

    def attention_s(
        self, attention: Attention, samples: float, tp: int = 1, *, backward: bool = False
    ) -> float:
        """Give the time of flash attention; a causal kernel computes half of the square."""
        flops = attention.flops / attention.count * samples / tp * (0.5 if attention.causal else 1)
        efficiency = self.device.attention_forward_efficiency
        if backward:
            # Five products instead of two: the scores are computed again.
            flops *= 2.5
            efficiency = self.device.attention_backward_efficiency
        busy_s = flops / (efficiency * self.gpu.peak_flops)
        return attention.count * (self.device.attention_fixed_s + busy_s)

    def _rest_s(self, traffic_bytes: float, kernels: int) -> float:
        return traffic_bytes / self._memory_bandwidth + max(0, kernels) * self.device.kernel_floor_s

    @property
    def _memory_bandwidth(self) -> float:
        return self.device.memory_efficiency * self.gpu.memory_bandwidth_bytes_per_s


def _products(cost: OperatorCost) -> int:
    return sum(gemm.count for gemm in cost.gemms) + sum(item.count for item in cost.attentions)
