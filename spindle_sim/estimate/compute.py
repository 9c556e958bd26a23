"""How long one operator computes on one device: products, attention, memory traffic, launches.

A roofline whose efficiency falls with the size of the work, since every part has a fixed time: a
product takes gemm_fixed_s + max(FLOP / (efficiency * peak), bytes / bandwidth), so that small ones
reach little of the peak. The CPU launches kernels ahead of the GPU, so launching is a floor of an
operator's time, not an addition; a software profile can say that the two don't overlap that well.
Communication is not in here.
"""

from dataclasses import dataclass

from spindle_sim.cluster import Gpu
from spindle_sim.estimate.device import DeviceModel
from spindle_sim.estimate.software import EAGER, SoftwareModel
from spindle_sim.plan import Backward
from spindle_sim.workload import Attention, Gemm, OperatorCost, Sharding

__all__ = ["ComputeModel"]

BYTES_PER_ELEMENT = 2  # bf16
BACKWARD_TRAFFIC = 1.5  # reads the kept input and the gradient, writes one: three for two
# Of unfused attention's scores, 2 bytes each: softmax reads and writes them, dropout too and writes
# a mask of 1 byte; the backward reads mask and gradient and writes, reads both and writes.
FORWARD_SCORE_PASSES, BACKWARD_SCORE_PASSES = 4.5, 5.5
# Without the fused softmax they become float32, are scaled, masked, normalised and rounded, each in
# an operator of its own: 36 bytes a score for 4, in the backward 40 for 6.
FALLBACK_FORWARD_PASSES, FALLBACK_BACKWARD_PASSES = 16.0, 17.0
BACKWARD_ATTENTION = 2.5  # five products for two: the scores are computed again
# Adam reads gradient (2), master weight and two moments (12), writes those and the weight (14);
# the norm of the gradients for clipping reads them once more (2).
OPTIMIZER_BYTES_PER_PARAMETER = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeModel:
    """Times of one operator on one device, for `samples` items computed together."""

    gpu: Gpu
    device: DeviceModel
    software: SoftwareModel = EAGER
    pace: float = 1.0  # of the slowest of all nodes: how much longer it computes

    def forward_s(
        self, cost: OperatorCost, samples: float, tp: int = 1, *, sequence_parallel: bool = False
    ) -> float:
        """Give the forward time of `samples` items at tensor-parallel degree `tp`.

        `sequence_parallel` divides what tensor parallelism alone leaves whole on every rank.
        """
        traffic_bytes = _traffic_bytes(cost, tp, whole=not sequence_parallel)
        busy_s = self._rest_s(traffic_bytes * samples, cost.kernels - _products(cost))
        for gemm in cost.gemms:
            busy_s += self.gemm_s(gemm, samples, tp)
        for item in cost.attentions:
            busy_s += self.attention_s(item, samples, tp)
        return self._launched_s(busy_s, cost.kernels, self._fallback_s(cost, samples, tp))

    def backward_s(
        self,
        cost: OperatorCost,
        samples: float,
        backward: Backward,
        tp: int = 1,
        *,
        sequence_parallel: bool = False,
    ) -> float:
        """Give the backward time, without a recomputed forward."""
        if backward is Backward.NONE:
            return 0.0
        weights = 0 if backward is Backward.INPUT_ONLY else 1
        gradients = 0  # products launched
        busy_s = 0.0
        for index, gemm in enumerate(cost.gemms):
            # The first product's input is the operator's: its gradient may not be wanted.
            inputs = 0 if backward is Backward.WEIGHT_ONLY and index == 0 else 1
            busy_s += (weights + inputs) * self.gemm_s(gemm, samples, tp)
            gradients += (weights + inputs) * gemm.count
        for item in cost.attentions:
            busy_s += self.attention_s(item, samples, tp, backward=True)
        # Each other kernel has about two in the backward: gradient, and its reduction or sum.
        others = 2 * max(0, cost.kernels - _products(cost))
        traffic_bytes = _traffic_bytes(cost, tp, whole=not sequence_parallel)
        added_bytes = weights * self.software.accumulation_bytes * _weights(cost, tp)
        busy_s += self._rest_s(BACKWARD_TRAFFIC * traffic_bytes * samples + added_bytes, others)
        kernels = gradients + 2 * len(cost.attentions) + others
        return self._launched_s(busy_s, kernels, self._fallback_s(cost, samples, tp))

    def gemm_s(self, gemm: Gemm, samples: float, tp: int = 1) -> float:
        """Give the time of the product, or of one of its two gradients: as many FLOP."""
        inner, columns = float(gemm.inner), float(gemm.columns)
        if gemm.sharding is Sharding.COLUMN:
            columns /= tp
        elif gemm.sharding is Sharding.ROW:
            inner /= tp
        return gemm.count * self.product_s(gemm.rows * samples, inner, columns)

    def product_s(self, rows: float, inner: float, columns: float) -> float:
        """Give the time of one matrix product (rows x inner) @ (inner x columns)."""
        device, gpu = self.device, self.gpu
        efficiency = device.gemm_efficiency
        # An odd row length keeps the tensor cores from loading aligned vectors.
        if self.software.gemm_odd_efficiency is not None and int(columns) % 2:
            efficiency = min(efficiency, self.software.gemm_odd_efficiency)
        flops_s = 2.0 * rows * inner * columns / (efficiency * gpu.peak_flops)
        size_bytes = BYTES_PER_ELEMENT * (rows * inner + inner * columns + rows * columns)
        bandwidth = device.gemm_memory_efficiency * gpu.memory_bandwidth_bytes_per_s
        return device.gemm_fixed_s + max(flops_s, size_bytes / bandwidth)

    def attention_s(
        self, attention: Attention, samples: float, tp: int = 1, *, backward: bool = False
    ) -> float:
        """Give the time of flash attention; a causal kernel computes half of the square.

        Unfused attention computes the whole square, and moves its scores.
        """
        if not attention.fused:
            return attention.count * self._unfused_s(attention, samples / tp, backward=backward)
        device = self.device
        rows = attention.queries * attention.heads * samples / tp + device.attention_tail_rows
        flops = 4.0 * rows * attention.keys * attention.head_width
        if attention.causal:
            flops *= 0.5
        efficiency = device.attention_forward_efficiency
        if backward:
            flops *= BACKWARD_ATTENTION
            efficiency = device.attention_backward_efficiency
        busy_s = flops / (efficiency * self.gpu.peak_flops)
        return attention.count * (device.kernel_floor_s + busy_s)

    def loss_s(self, logits: float) -> float:
        """Give what a loss over so many logits takes beyond its operator's products and traffic."""
        software = self.software
        return software.loss_s + self.pace * self._rest_s(software.logit_bytes * logits, 0)

    def optimizer_step_s(self, num_parameters: float) -> float:
        """Give the time of one mixed-precision Adam step over the parameters that a device owns."""
        if num_parameters <= 0:
            return 0.0
        traffic_s = self._rest_s(OPTIMIZER_BYTES_PER_PARAMETER * num_parameters, 1)
        return traffic_s + self.software.step_s

    def _unfused_s(self, attention: Attention, share: float, *, backward: bool) -> float:
        """Give the time of products, softmax and dropout apart, for a share of heads or samples."""
        device, gpu = self.device, self.gpu
        scores = attention.scores * share
        vectors = (attention.queries + attention.keys) * attention.heads * attention.head_width
        size_bytes = BYTES_PER_ELEMENT * (scores + vectors * share)
        product_s = device.gemm_fixed_s + max(
            2.0
            * scores
            * attention.head_width
            / (self.software.batched_efficiency * gpu.peak_flops),
            size_bytes / (device.gemm_memory_efficiency * gpu.memory_bandwidth_bytes_per_s),
        )
        products, passes = (4, BACKWARD_SCORE_PASSES) if backward else (2, FORWARD_SCORE_PASSES)
        if self._falls_back(attention, share):
            passes += FALLBACK_BACKWARD_PASSES if backward else FALLBACK_FORWARD_PASSES
        moved_s = self._rest_s(passes * BYTES_PER_ELEMENT * scores, 2)
        return products * product_s + moved_s

    def _falls_back(self, attention: Attention, share: float) -> bool:
        """Tell whether this share of heads or samples is no whole number of fused softmaxes."""
        multiple = self.software.softmax_multiple
        return multiple is not None and bool(attention.heads * share % multiple)

    def _fallback_s(self, cost: OperatorCost, samples: float, tp: int) -> float:
        """Give the CPU time that attention without the fused softmax takes more."""
        calls = sum(
            item.count
            for item in cost.attentions
            if not item.fused and self._falls_back(item, samples / tp)
        )
        return calls * self.software.softmax_fallback_s

    def _launched_s(self, busy_s: float, kernels: int, more_s: float = 0.0) -> float:
        launch_s = kernels * self.device.launch_s + more_s
        busy_s *= self.pace
        exponent = self.software.launch_exponent
        if exponent is None:
            return max(busy_s, launch_s)
        longer = max(busy_s, launch_s)  # taken out, so that no power overflows
        return float(
            longer * (1.0 + (min(busy_s, launch_s) / longer) ** exponent) ** (1 / exponent)
        )

    def _rest_s(self, traffic_bytes: float, kernels: int) -> float:
        device = self.device
        bandwidth = device.elementwise_efficiency * self.gpu.memory_bandwidth_bytes_per_s
        return traffic_bytes / bandwidth + max(0, kernels) * device.kernel_floor_s


def _traffic_bytes(cost: OperatorCost, tp: int, *, whole: bool) -> float:
    """Give one sample's memory traffic on one of tp ranks."""
    replicated = min(cost.replicated_traffic_bytes, cost.traffic_bytes) if whole else 0.0
    return replicated + (cost.traffic_bytes - replicated) / tp


def _weights(cost: OperatorCost, tp: int) -> float:
    """Give the weights of the products on one of tp ranks."""
    return sum(
        float(gemm.count * gemm.inner * gemm.columns)
        / (1 if gemm.sharding is Sharding.NONE else tp)
        for gemm in cost.gemms
    )


def _products(cost: OperatorCost) -> int:
    return sum(gemm.count for gemm in cost.gemms) + sum(item.count for item in cost.attentions)
