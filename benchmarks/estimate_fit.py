"""Fit the constants of the device model to published measurements, and write them as data.

    python -m benchmarks.estimate_fit [--output traces/spindle_traces/devices.json]

Prints each fit's deviation. Nothing is fitted where nothing was measured: those entries say so.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.estimate_data import Kernel, all_reduces, kernels, one_node
from benchmarks.estimate_megatron import MegatronModel, fit_run, iterations
from spindle_sim.cluster import GPUS
from spindle_sim.estimate.collectives import Collective, CollectiveModel
from spindle_sim.estimate.device import DeviceModel, DeviceModels, NcclModel, Provenance
from spindle_sim.plan.atomic import write_atomically

__all__ = ["fit_models", "fit_nccl"]

DATE = "2026-11-30"
TOOL = "benchmarks/estimate_fit.py"
# Kernels that Megatron's unfused layer launches in forward, second forward and backward: by count
# of its operations about 30, 30 and 60.
MEGATRON_KERNELS = 120
ELEMENTWISE_PASSES = {"add": 3, "input_layernorm": 2, "mlp_act": 3}  # reads and writes
MANY_ROWS = 128  # below, a product is bound by memory and 1 us resolution
# Flash attention was measured on these two; other GPUs take the A100's fractions.
ATTENTION_SOURCES = {
    "a100": "MooreThreads/SimuMax A100-PCIe (flash attention)",
    "h100": "arXiv 2407.08608, figures 5 and 6 (FlashAttention-2)",
}

Floats = npt.NDArray[np.float64]


def fit_models() -> DeviceModels:
    """Give all constants."""
    a100 = fit_device("a100", "a100-1", ("A100", "A800"))
    h100 = fit_device("h100", "h100-1", ("H100", "H800", "H200", "B200"))
    a40 = fit_device("a40", "a40-1", ("A40", "L40S"))
    nccl_a100 = fit_nccl("a100", ("A100", "A800"))
    models = DeviceModels(format_version="1.0", devices=(a100, h100, a40), nccl=(nccl_a100,))
    run = fit_run(MegatronModel.of(models), iterations())
    launch_s = round(run.layer_launch_s / MEGATRON_KERNELS, 7)
    print(f"launching: {run.layer_launch_s * 1e3:.2f} ms a layer, {launch_s * 1e6:.1f} us a kernel")
    return DeviceModels(
        format_version="1.0",
        devices=tuple(replace(device, launch_s=launch_s) for device in models.devices),
        nccl=(nccl_a100, fit_nccl("h100", ("H100", "H800", "H200"), sharp_gain=476 / 370)),
    )


def fit_device(key: str, name: str, gpus: tuple[str, ...]) -> DeviceModel:
    """Fit products, element-wise kernels and flash attention of one GPU.

    Attention that was not measured has the A100's fractions.
    """
    gpu, label = GPUS[key], f"{key.upper()} (vidur)"
    products = [item for item in kernels(label, "gemm") if item.m >= MANY_ROWS]
    shapes = np.array([(item.m, item.n, item.k) for item in products])
    times = np.array([item.time_s for item in products])
    m, n, k = shapes.T
    flops_s = 2 * m * n * k / gpu.peak_flops
    bytes_s = 2 * (m * k + k * n + m * n) / gpu.memory_bandwidth_bytes_per_s
    efficiency, fixed, memory = _least_squares(
        lambda p: p[1] * 1e-6 + np.maximum(flops_s / p[0], bytes_s / p[2]), times, [0.7, 8.0, 0.8]
    )
    modelled = fixed * 1e-6 + np.maximum(flops_s / efficiency, bytes_s / memory)
    _show(f"{label} products, {len(times)} of {MANY_ROWS} rows or more", modelled / times)
    elementwise, floor = _fit_elementwise(label, gpu.memory_bandwidth_bytes_per_s)
    forward, backward, tail = fit_attention(show=key == "a100")
    if key == "h100":
        forward, backward = fit_attention_h100(tail)
    return DeviceModel(
        name=name,
        gpus=gpus,
        provenance=Provenance(
            device=gpu.name,
            kind="modelled",
            source="fitted to microsoft/vidur (products, element-wise),"
            f" {ATTENTION_SOURCES.get(key, ATTENTION_SOURCES['a100'])},"
            " VIA-Research/vTrain (launching): see docs/estimates.md",
            date=DATE,
            tool=TOOL,
        ),
        gemm_efficiency=round(efficiency, 4),
        gemm_fixed_s=round(fixed * 1e-6, 9),
        gemm_memory_efficiency=round(min(memory, 1.0), 4),
        attention_forward_efficiency=forward,
        attention_backward_efficiency=backward,
        attention_tail_rows=tail,
        elementwise_efficiency=elementwise,
        kernel_floor_s=floor,
        launch_s=0.0,
    )


def _fit_elementwise(label: str, bandwidth: float) -> tuple[float, float]:
    found = kernels(label, "elementwise")
    passes = [ELEMENTWISE_PASSES[item.operation.split()[1]] for item in found]
    bytes_s = np.array(
        [2 * count * item.m * item.n / bandwidth for count, item in zip(passes, found, strict=True)]
    )
    times = np.array([item.time_s for item in found])
    floor, inverse = _least_squares(lambda p: p[0] * 1e-6 + p[1] * bytes_s, times, [3.0, 1.5])
    _show(f"{label} element-wise kernels", (floor * 1e-6 + inverse * bytes_s) / times)
    return round(min(1 / inverse, 1.0), 4), round(floor * 1e-6, 9)


def fit_attention(*, show: bool) -> tuple[float, float, float]:
    """Fit causal flash attention, sequence 4096: forward and backward efficiency, tail rows."""
    sides = [kernels("A100-PCIe-80GB", name) for name in ("sdp_fwd", "sdp_bwd")]
    rows = [np.array([_noted(item, "head_num") * 4096.0 for item in side]) for side in sides]
    fractions = np.array([item.fraction for side in sides for item in side])

    # The source's rate counts the full square, of which a causal kernel computes half, and the
    # backward's five products. A unit of that takes 1 / fraction.
    def modelled(p: Floats) -> Floats:
        both = [0.5 / p[side] * (1 + 1e3 * p[2] / rows[side]) for side in (0, 1)]
        return np.concatenate(both)

    ahead, back, tail = _least_squares(modelled, 1 / fractions, [0.6, 0.5, 7.0])
    if show:
        _show("A100-PCIe flash attention", modelled(np.array([ahead, back, tail])) * fractions)
    return round(ahead, 4), round(back, 4), round(1e3 * tail, 1)


def fit_attention_h100(tail_rows: float) -> tuple[float, float]:
    """Fit FlashAttention-2 on an H100, sequences of 512 to 16384: forward, backward efficiency.

    All points of a head width have as many query rows, so nothing tells the tail: that is the
    A100's. Half of the forward's points are causal, none of the backward's: the source draws none.
    """
    efficiencies = []
    for name in ("flash2_fwd", "flash2_bwd"):
        found = kernels("H100-SXM5-80GB", name)
        fractions = np.array([item.fraction for item in found])
        rows = np.array(
            [
                _noted(item, "batch") * _noted(item, "seq_len") * _noted(item, "head_num")
                for item in found
            ]
        )
        whole = 1 + tail_rows / rows  # of a kernel's time, over that without the tail
        (efficiency,) = _least_squares(_inverse(whole), 1 / fractions, [0.33])
        _show(f"H100 {name}", whole / efficiency * fractions)
        efficiencies.append(round(efficiency, 4))
    return efficiencies[0], efficiencies[1]


def _inverse(whole: Floats) -> Callable[[Floats], Floats]:
    return lambda p: whole / p[0]


def fit_nccl(
    key: str,
    gpus: tuple[str, ...],
    *,
    sharp_gain: float = 0.0,
    ranks: tuple[int, ...] = (2, 4, 8),
    show: bool = True,
) -> NcclModel:
    """Fit launching, the Simple protocol's pipeline and the ring's loss to all-reduces."""
    measured = [item for item in all_reduces(key) if item.ranks in ranks]
    times = np.array([item.time_s for item in measured])
    cluster = one_node(key)
    provenance = Provenance(
        device=cluster.gpu.name,
        kind="modelled",
        source="fitted to VIA-Research/vTrain trace/a100 (A100), microsoft/vidur (H100); NVLink"
        " SHARP: NVIDIA/nccl-tests issues 290 and 212",
        date=DATE,
        tool=TOOL,
    )

    def model(p: Floats) -> NcclModel:
        return NcclModel(
            name=f"{key}-nccl-1",
            gpus=gpus,
            provenance=provenance,
            launch_s=round(float(p[0]) * 1e-6, 9),
            simple_fixed_s=round(float(p[1]) * 1e-6, 9),
            ring_loss=round(float(p[2]), 4),
        )

    def modelled(p: Floats) -> Floats:
        collectives = CollectiveModel(cluster=cluster, nccl=model(p))
        return np.array(
            [
                collectives.time_s(Collective.ALL_REDUCE, item.size_bytes, range(item.ranks))
                for item in measured
            ]
        )

    found = np.array(_least_squares(modelled, times, [22.0, 54.0, 0.36], step=1e-3))
    if show:
        _show(f"{key} all-reduces", modelled(found) / times)
    return replace(model(found), sharp_gain=round(sharp_gain, 4))


def _least_squares(
    modelled: Callable[[Floats], Floats],
    times: Floats,
    start: list[float],
    step: float = 1e-8,
) -> list[float]:
    from scipy.optimize import least_squares

    def deviations(p: Floats) -> Floats:
        ratios: Floats = np.log(modelled(p) / times)
        return ratios

    found = least_squares(
        deviations,
        start,
        loss="soft_l1",
        f_scale=0.05,
        diff_step=[step] * len(start),
        x_scale=np.array(start),
        bounds=(1e-6, np.inf),
    )
    return [float(value) for value in found.x]


def _noted(kernel: Kernel, name: str) -> float:
    parts = dict(part.strip().split("=") for part in kernel.note.split(".")[-1].split(";"))
    return float(parts[name])


def _show(what: str, ratios: Floats) -> None:
    errors = np.abs(ratios - 1)
    print(
        f"{what}: mean deviation {errors.mean():.1%}, median {np.median(errors):.1%},"
        f" largest {errors.max():.1%}"
    )


def main() -> None:
    """Fit and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="write the constants to this file")
    output = parser.parse_args().output
    text = json.dumps(asdict(fit_models()), indent=1) + "\n"
    if output is None:
        print(text)
    else:
        write_atomically(output, text.encode())


if __name__ == "__main__":
    main()
