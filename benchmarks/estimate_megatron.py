"""One iteration of Megatron-DeepSpeed in closed form, from the estimator's models.

For the measured rows with tp = pp = 1: fp16, gradient accumulation over micro-batches, full
activation recomputation, attention without flash kernels (the scores go through memory), Adam.
Five constants belong to that software and run, and are fitted; the rest is the device model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from benchmarks.estimate_data import one_node, rows
from spindle_sim.estimate.collectives import Collective, CollectiveModel
from spindle_sim.estimate.compute import ComputeModel
from spindle_sim.estimate.device import DeviceModels

__all__ = ["Iteration", "MegatronModel", "RunConstants", "fit_run", "iterations"]

VOCABULARY = 50304  # 50257, padded to a multiple of 128
LOGIT_PASSES = 6  # of float32 logits through memory: softmax, loss, and their gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """One measured row."""

    global_batch: int
    micro_batch: int
    hidden: int
    heads: int
    layers: int
    sequence: int
    dp: int
    iteration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConstants:
    """What the device model can't know about that run."""

    gemm_efficiency: float  # of peak, large fp16 products of that run
    score_passes: float  # how often the attention scores cross memory in a forward
    layer_launch_s: float  # CPU: one layer's forward, second forward and backward
    micro_batch_s: float  # what each micro-batch takes beside layers and head
    iteration_s: float  # what each iteration takes beside its micro-batches


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronModel:
    """The closed form, on one A100 node."""

    compute: ComputeModel
    collectives: CollectiveModel

    @classmethod
    def of(cls, models: DeviceModels) -> "MegatronModel":
        """Take the models of an A100 node."""
        cluster = one_node("a100")
        return cls(
            compute=ComputeModel(gpu=cluster.gpu, device=models.device(cluster.gpu)),
            collectives=CollectiveModel(cluster=cluster, nccl=models.collective(cluster.gpu)),
        )

    def iteration_s(self, row: Iteration, run: RunConstants) -> float:
        """Give the seconds of one iteration."""
        device = replace(self.compute.device, gemm_efficiency=run.gemm_efficiency)
        compute = replace(self.compute, device=device)
        layer_s = max(_layer_s(compute, row, run.score_passes), run.layer_launch_s)
        tokens = row.micro_batch * row.sequence
        head_s = 3 * compute.product_s(tokens, row.hidden, VOCABULARY)
        head_s += LOGIT_PASSES * 4 * tokens * VOCABULARY / _bandwidth(compute)
        micro_batches = row.global_batch / (row.dp * row.micro_batch)
        working_s = micro_batches * (row.layers * layer_s + head_s + run.micro_batch_s)
        parameters = 12 * row.layers * row.hidden**2 + (VOCABULARY + row.sequence) * row.hidden
        sync_s = self.collectives.time_s(Collective.ALL_REDUCE, 2.0 * parameters, range(row.dp))
        return working_s + sync_s + compute.optimizer_step_s(parameters) + run.iteration_s


def iterations() -> list[Iteration]:
    """Give the measured rows without tensor and pipeline parallelism, dp > 1 or not."""
    return [
        Iteration(
            global_batch=int(row["global_batch"]),
            micro_batch=int(row["micro_batch"]),
            hidden=int(row["hidden"]),
            heads=int(row["heads"]),
            layers=int(row["layers"]),
            sequence=int(row["sequence"]),
            dp=int(row["dp"]),
            iteration_s=float(row["iteration_ms"]) * 1e-3,
        )
        for row in rows("a100_megatron_single_node.csv")
        if row["tp"] == row["pp"] == "1"
    ]


def fit_run(
    model: MegatronModel, measured: Sequence[Iteration], *, gemm_efficiency: float | None = None
) -> RunConstants:
    """Fit the constants to rows, by relative deviation; a `gemm_efficiency` that is given stays."""
    from scipy.optimize import least_squares

    names = [field.name for field in fields(RunConstants)]
    start = [0.75, 6.0, 3e-3, 3e-3, 5e-3]
    lowest, highest = [0.6, 0.0, 0.0, 0.0, 0.0], [0.9, 60.0, 1e-2, 3e-2, 1e-1]
    if gemm_efficiency is not None:
        lowest[0], highest[0], start[0] = (
            0.999999 * gemm_efficiency,
            1.000001 * gemm_efficiency,
            gemm_efficiency,
        )
    scale = np.array(start)

    def deviations(scaled: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[float]:
        run = RunConstants(**dict(zip(names, map(float, scaled * scale), strict=True)))
        return [float(np.log(model.iteration_s(row, run) / row.iteration_s)) for row in measured]

    bounds = (np.array(lowest) / scale, np.array(highest) / scale)
    found = least_squares(
        deviations, np.ones(len(start)), bounds=bounds, loss="soft_l1", f_scale=0.03
    )
    return RunConstants(**dict(zip(names, map(float, found.x * scale), strict=True)))


def _layer_s(compute: ComputeModel, row: Iteration, score_passes: float) -> float:
    """Give the GPU time of one layer: forward, second forward, backward (2 + 2 products each)."""
    tokens, hidden = row.micro_batch * row.sequence, row.hidden
    shapes = ((hidden, 3 * hidden), (hidden, hidden), (hidden, 4 * hidden), (4 * hidden, hidden))
    products_s = sum(compute.product_s(tokens, inner, columns) for inner, columns in shapes)
    # All heads of all samples in one batched product, queries x keys and weights x values.
    score_rows = row.micro_batch * row.heads * row.sequence
    width = row.hidden / row.heads
    batched_s = 2 * compute.device.gemm_fixed_s + 4.0 * score_rows * row.sequence * width / (
        compute.device.attention_forward_efficiency * compute.gpu.peak_flops
    )
    traffic = 2.0 * score_rows * row.sequence * score_passes + 2.0 * tokens * 22 * hidden
    memory_s = traffic / _bandwidth(compute)
    forward_s = products_s + batched_s + memory_s
    return 2 * forward_s + 2 * (products_s + batched_s) + 1.5 * memory_s


def _bandwidth(compute: ComputeModel) -> float:
    return compute.device.elementwise_efficiency * compute.gpu.memory_bandwidth_bytes_per_s
