"""The scalability estimator of section 3.2: scaling curves for a cluster, and its communication."""

import hashlib
from collections.abc import Sequence

from spindle_sim.cluster import Cluster
from spindle_sim.estimate import collectives
from spindle_sim.estimate.compute import ComputeModel
from spindle_sim.estimate.curve import ScalingCurve
from spindle_sim.estimate.device import device_model
from spindle_sim.plan import Backward
from spindle_sim.workload import OperatorNode, TransformerLayer

__all__ = ["Estimator"]


class Estimator:
    """Times of operators, collectives and transfers on one cluster; remembers what it computed."""

    def __init__(self, cluster: Cluster, profile: str | None = None) -> None:
        """Prepare the models of `cluster`."""
        self.cluster = cluster
        self.compute = ComputeModel(gpu=cluster.gpu, device=device_model(cluster.gpu))
        self._curves: dict[tuple[object, ...], ScalingCurve] = {}

    @property
    def profile_name(self) -> str:
        """How the times came about."""
        return f"analytic model {self.compute.device.name} (modelled)"

    @property
    def profile_hash(self) -> str:
        """SHA-256 of the constants used."""
        return hashlib.sha256(repr(self.compute.device).encode()).hexdigest()

    def curve(
        self,
        operator: OperatorNode,
        backward: Backward,
        *,
        tp: int = 1,
        recompute: bool = False,
    ) -> ScalingCurve:
        """Give T_m(n) of one operator; `allocations` is empty where `tp` is impossible for it."""
        key = (
            operator.operator,
            operator.tokens,
            operator.context_tokens,
            operator.items,
            operator.batch_size,
            backward,
            tp,
            recompute,
        )
        known = self._curves.get(key)
        if known is None:
            known = self._curves[key] = self._build(operator, backward, tp, recompute=recompute)
        return known

    def all_reduce_s(self, size_bytes: float, devices: Sequence[int]) -> float:
        """Give the time of an all-reduce of `size_bytes` on each of `devices`."""
        return collectives.all_reduce_s(self.cluster, size_bytes, devices)

    def transfer_s(self, size_bytes: float, source_device: int, target_device: int) -> float:
        """Give the time of one message."""
        return collectives.transfer_s(self.cluster, size_bytes, source_device, target_device)

    def optimizer_step_s(self, num_parameters: float) -> float:
        """Give the time of one mixed-precision Adam step over parameters of one device."""
        gpu, device = self.cluster.gpu, self.compute.device
        traffic_bytes = 30.0 * num_parameters
        return traffic_bytes / (device.memory_efficiency * gpu.memory_bandwidth_bytes_per_s)

    def _build(
        self, node: OperatorNode, backward: Backward, tp: int, *, recompute: bool
    ) -> ScalingCurve:
        cost = node.cost
        allocations: list[int] = []
        forwards: list[float] = []
        backwards: list[float] = []
        for dp in self._data_parallel_degrees(node, tp):
            n = dp * tp
            samples = node.batch_size * node.items / dp
            forward_s = self.compute.forward_s(cost, samples, tp)
            backward_s = self.compute.backward_s(cost, samples, backward, tp)
            if tp > 1 and cost.reductions:
                size = cost.reduced_bytes * samples / cost.reductions
                reduce_s = cost.reductions * self.all_reduce_s(size, range(tp))
                forward_s += reduce_s
                backward_s += reduce_s if backward is not Backward.NONE else 0.0
            if dp > 1 and cost.gathered_bytes:
                size = cost.gathered_bytes * node.batch_size * node.items
                forward_s += collectives.all_gather_s(self.cluster, size, range(0, n, tp))
            if recompute and backward is not Backward.NONE:
                backward_s += forward_s
            allocations.append(n)
            forwards.append(forward_s)
            backwards.append(backward_s)
        return ScalingCurve(
            tp=tp,
            allocations=tuple(allocations),
            forward_times_s=tuple(forwards),
            backward_times_s=tuple(backwards),
        )

    def _data_parallel_degrees(self, node: OperatorNode, tp: int) -> list[int]:
        if tp > self.cluster.island_size or self.cluster.island_size % tp:
            return []
        layer = node.operator
        if isinstance(layer, TransformerLayer) and layer.heads % tp:
            return []
        most = min(self.cluster.num_devices // tp, node.batch_size)
        return [dp for dp in range(1, most + 1) if node.batch_size % dp == 0]
