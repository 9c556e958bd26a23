"""The scalability estimator of section 3.2: scaling curves for a cluster, and its communication."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from spindle_sim.cluster import Cluster
from spindle_sim.estimate.collectives import Collective, CollectiveDemand, CollectiveModel
from spindle_sim.estimate.compute import ComputeModel
from spindle_sim.estimate.curve import ScalingCurve
from spindle_sim.estimate.device import DeviceModels, device_models, is_measured
from spindle_sim.estimate.links import LinkTable, MeasuredLink
from spindle_sim.estimate.measured import MeasuredTimes, measured_step_s
from spindle_sim.estimate.profile import Profile, load_profile
from spindle_sim.estimate.software import EAGER, SoftwareModel
from spindle_sim.plan import Backward
from spindle_sim.workload import Custom, OperatorCost, OperatorNode, Projection, TransformerLayer

__all__ = ["EXTRAPOLATED", "Estimator"]

EXTRAPOLATED = "extrapolated: no measurement of this GPU; expect errors of tens of percent"
# By device model, where whole iterations were measured and the estimates were far off. The figures
# are those of docs/estimates.md, which says why.
_FAR_OFF = {
    "h100-1": "estimated too fast: 43 iterations measured on H100s were simulated 24.8 % too short"
    " on average, 10 to 38 %; compare plans rather than trust their times",
}


class Estimator:
    """Times of operators, collectives and transfers on one cluster; remembers what it computed.

    Operators that `profile` holds take its times, all others those of the device model.
    """

    def __init__(
        self,
        cluster: Cluster,
        profile: Profile | Path | str | None = None,
        *,
        models: DeviceModels | None = None,
        software: SoftwareModel = EAGER,
    ) -> None:
        """Prepare the models of `cluster`; `profile` may be a file's path."""
        models = models or device_models()
        if isinstance(profile, Path | str):
            profile = load_profile(profile)
        self.cluster = cluster
        self.profile = profile
        self.software = software
        device = software.device(models.device(cluster.gpu))
        self.compute = ComputeModel(
            gpu=cluster.gpu,
            device=device,
            software=software,
            pace=software.pace(cluster.num_nodes),
        )
        self.collectives = CollectiveModel(
            cluster=cluster,
            nccl=models.collective(cluster.gpu),
            ring_share=software.ring_network_share,
            mixed_ring_share=software.mixed_ring_network_share,
        )
        self._measured = MeasuredTimes.of(profile, self.compute) if profile else None
        self._links = LinkTable.of(profile, cluster) if profile and profile.links else None
        self._curves: dict[tuple[object, ...], ScalingCurve] = {}

    @property
    def extrapolated(self) -> bool:
        """Whether the device model has constants of another GPU: none of this die was measured.

        Times that a profile holds are those of the profile all the same.
        """
        return not is_measured(self.compute.device, self.cluster.gpu)

    @property
    def caution(self) -> str:
        """What a reader of the times must be told loudly; empty where there is nothing."""
        known = _FAR_OFF.get(self.compute.device.name, "")
        caution = EXTRAPOLATED if self.extrapolated else known
        if not caution or self.profile is None:
            return caution
        return f"operators that {self.profile.name} lacks are {caution}"

    @property
    def profile_name(self) -> str:
        """How the times came about, in short, for plans and reports; `caution` says more."""
        device = self.compute.device
        words = [device.provenance.kind]
        if device.provenance.device != self.cluster.gpu.name:
            words.insert(0, f"from {device.provenance.device}")
        if self.extrapolated:
            words.append("extrapolated")
        model = f"analytic model {device.name} ({', '.join(words)})"
        if self.software is not EAGER:
            model += f", software {self.software.name}"
        if self.profile is None:
            return model
        return f"{self.profile.provenance.kind} {self.profile.name}, elsewhere {model}"

    @property
    def profile_hash(self) -> str:
        """SHA-256 of the profile and of the constants used."""
        known = f"{self.compute.device!r}{self.collectives.nccl!r}"
        if self.profile is not None:
            known += self.profile.sha256
        if self.software is not EAGER:
            known += repr(self.software)
        return hashlib.sha256(known.encode()).hexdigest()

    def provenance(self, operator: OperatorNode, *, tp: int = 1) -> str:
        """Say where the times of one operator come from: "measured NAME" or "analytic model".

        Loudly, where that model has no measurement of this GPU.
        """
        profile, measured = self.profile, self._measured
        if profile and measured and measured.find(operator, tp) is not None:
            return f"{profile.provenance.kind} {profile.name}"
        model = f"analytic model {self.compute.device.name}"
        return f"{model}, {EXTRAPOLATED}" if self.extrapolated else model

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

    def operation_s(
        self,
        operator: OperatorNode,
        backward: Backward,
        *,
        samples: float,
        dp: int = 1,
        tp: int = 1,
        recompute: bool = False,
        selective: bool = False,
        sequence_parallel: bool = False,
    ) -> tuple[float, float]:
        """Give forward and backward seconds of one operator for `samples` on each of `dp` ranks.

        `samples` are those of one batch or micro-batch on one data-parallel rank. The times include
        the collectives of `tp` and, in the backward, what is computed again: the whole forward
        where `recompute`, the attention cores where `selective`. `sequence_parallel` divides the
        memory traffic that tensor parallelism alone leaves whole; its collectives cost as much, but
        for the gathers of the backward that the software has more.
        """
        cost = operator.cost
        count = samples * operator.items
        forward_s, backward_s = self._compute_s(
            operator, backward, tp=tp, samples=count, sequence_parallel=sequence_parallel
        )
        reduce_s = self._reduce_s(cost, count, tp)
        gather_s, return_s = 0.0, 0.0
        if dp > 1 and cost.gathered_bytes:
            size_bytes, ranks = cost.gathered_bytes * count * dp, range(0, dp * tp, tp)
            gather_s, return_s = self._gather_s(size_bytes, ranks)
        forward_s += reduce_s + gather_s
        if backward is Backward.NONE:
            return forward_s, backward_s
        backward_s += reduce_s + return_s
        if sequence_parallel:
            backward_s += self.software.sequence_gathers * self._regather_s(cost, count, tp)
        if recompute:  # the gathered features aren't gathered again, they are kept
            backward_s += forward_s - gather_s
        elif selective:
            backward_s += sum(self.compute.attention_s(item, count, tp) for item in cost.attentions)
        return forward_s, backward_s

    def all_reduce_s(self, size_bytes: float, devices: Sequence[int]) -> float:
        """Give the time of an all-reduce of `size_bytes` on each of `devices`, on idle links."""
        if measured := self.measured_link("all_reduce", size_bytes, devices):
            return measured.time_s
        return self.collectives.time_s(Collective.ALL_REDUCE, size_bytes, devices)

    def reduce_scatter_s(self, size_bytes: float, devices: Sequence[int]) -> float:
        """Give the time of a reduce-scatter of `size_bytes` on each of `devices`."""
        return self.collectives.time_s(Collective.REDUCE_SCATTER, size_bytes, devices)

    def all_gather_s(self, size_bytes: float, devices: Sequence[int]) -> float:
        """Give the time of an all-gather whose result has `size_bytes`."""
        if measured := self.measured_link("all_gather", size_bytes, devices):
            return measured.time_s
        return self.collectives.time_s(Collective.ALL_GATHER, size_bytes, devices)

    def collective_demand(
        self, collective: Collective, size_bytes: float, devices: Sequence[int]
    ) -> CollectiveDemand:
        """Give a collective as data, for a simulator whose traffic shares links."""
        return self.collectives.demand(collective, size_bytes, devices)

    def transfer_s(self, size_bytes: float, source_device: int, target_device: int) -> float:
        """Give the time of one message on idle links."""
        ends = (source_device, target_device)
        if source_device != target_device and (
            measured := self.measured_link("transfer", size_bytes, ends)
        ):
            return measured.time_s
        return self.collectives.transfer_s(size_bytes, source_device, target_device)

    def measured_link(
        self, operation: str, size_bytes: float, devices: Sequence[int]
    ) -> MeasuredLink | None:
        """Give what the profile says of a transfer, all_reduce or all_gather; None if nothing."""
        return None if self._links is None else self._links.find(operation, size_bytes, devices)

    def optimizer_step_s(self, num_parameters: float) -> float:
        """Give the time of one mixed-precision Adam step over the parameters of one device.

        That of the profile, where it has one.
        """
        if self.profile is not None and self.profile.optimizer and num_parameters > 0:
            return measured_step_s(self.profile.optimizer, num_parameters)
        return self.compute.optimizer_step_s(num_parameters)

    def _build(
        self, node: OperatorNode, backward: Backward, tp: int, *, recompute: bool
    ) -> ScalingCurve:
        allocations, forwards, backwards = [], [], []
        for dp in self._data_parallel_degrees(node, tp):
            forward_s, backward_s = self.operation_s(
                node,
                backward,
                samples=node.batch_size / dp,
                dp=dp,
                tp=tp,
                recompute=recompute,
            )
            allocations.append(dp * tp)
            forwards.append(forward_s)
            backwards.append(backward_s)
        return ScalingCurve(
            tp=tp,
            allocations=tuple(allocations),
            forward_times_s=tuple(forwards),
            backward_times_s=tuple(backwards),
        )

    def _compute_s(
        self,
        node: OperatorNode,
        backward: Backward,
        *,
        tp: int,
        samples: float,
        sequence_parallel: bool,
    ) -> tuple[float, float]:
        cost = node.cost
        if self._measured is not None and (found := self._measured.find(node, tp)) is not None:
            return self._measured.times_s(found, cost, backward, samples)
        forward_s = self.compute.forward_s(cost, samples, tp, sequence_parallel=sequence_parallel)
        if isinstance(node.operator, Projection) and node.operator.logits:
            logits = samples * node.tokens * node.operator.columns / tp
            forward_s += self.compute.loss_s(logits)
        return forward_s, self.compute.backward_s(
            cost, samples, backward, tp, sequence_parallel=sequence_parallel
        )

    def _gather_s(self, size_bytes: float, devices: Sequence[int]) -> tuple[float, float]:
        """Give how long a coupled loss gathers features in the forward, and sums their gradients.

        Both modalities one after the other, where the profile says how long that takes: small
        collectives cost their latency each. In the model they are one gather.
        """
        if self.measured_link("all_gather", size_bytes / 2, devices) is None:
            return self.all_gather_s(size_bytes, devices), 0.0
        each_s = self.all_gather_s(size_bytes / 2, devices)
        return 2 * each_s, 2 * self.all_reduce_s(size_bytes / 2, devices)

    def _reduce_s(self, cost: OperatorCost, samples: float, tp: int) -> float:
        if tp == 1 or not cost.reductions:
            return 0.0
        size_bytes = cost.reduced_bytes * samples / cost.reductions
        return cost.reductions * self.all_reduce_s(size_bytes, range(tp))

    def _regather_s(self, cost: OperatorCost, samples: float, tp: int) -> float:
        if tp == 1 or not cost.reductions:
            return 0.0
        size_bytes = cost.reduced_bytes * samples / cost.reductions
        return cost.reductions * self.all_gather_s(size_bytes, range(tp))

    def _data_parallel_degrees(self, node: OperatorNode, tp: int) -> list[int]:
        # Whole islands side by side are possible too: slow, but measured configurations have it.
        if self.cluster.island_size % tp and tp % self.cluster.island_size:
            return []
        layer = node.operator
        if isinstance(layer, TransformerLayer) and layer.heads % tp:
            return []
        if isinstance(layer, Custom) and layer.whole and tp > 1:
            return []
        most = min(self.cluster.num_devices // tp, node.batch_size)
        return [dp for dp in range(1, most + 1) if node.batch_size % dp == 0]
