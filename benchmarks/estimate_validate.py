"""Check the A100 model against measurements: all-reduces, and whole iterations not fitted.

python -m benchmarks.estimate_validate [--json] [--seed 0]
"""

import argparse
import json
from dataclasses import asdict, dataclass, replace

import numpy as np

from benchmarks.estimate_data import all_reduces, one_node
from benchmarks.estimate_fit import fit_nccl
from benchmarks.estimate_megatron import (
    MegatronModel,
    RunConstants,
    fit_run,
    iterations,
)
from spindle_sim.estimate.collectives import Collective, CollectiveModel
from spindle_sim.estimate.compute import ComputeModel
from spindle_sim.estimate.device import NcclModel, device_models
from spindle_sim.workload import TransformerLayer

__all__ = ["Deviation", "all_reduce_deviation", "iteration_deviation", "layer_deviation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """How far estimates are from measurements, relative."""

    points: int
    mean: float
    median: float
    largest: float


def all_reduce_deviation(
    gpu: str, ranks: int | None = None, nccl: NcclModel | None = None
) -> Deviation:
    """Compare all-reduces of "a100", "a800" or "h100" (of so many ranks) with the estimate."""
    measured = [item for item in all_reduces(gpu) if ranks in (None, item.ranks)]
    collectives = CollectiveModel.of(one_node(gpu))
    if nccl is not None:
        collectives = replace(collectives, nccl=nccl)
    return _deviation(
        [
            collectives.time_s(Collective.ALL_REDUCE, item.size_bytes, range(item.ranks))
            / item.time_s
            for item in measured
        ]
    )


def iteration_deviation(
    seed: int, *, free_products: bool = True
) -> tuple[Deviation, Deviation, RunConstants]:
    """Fit the run's constants to a random half of the rows: deviation there, and on the rest.

    Without `free_products` the products' efficiency is that of the micro-benchmarks, so that
    nothing of the device model is fitted to whole iterations.
    """
    model = MegatronModel.of(device_models())
    measured = iterations()
    order = np.random.default_rng(seed).permutation(len(measured))
    fitted, held = np.split(order, [len(measured) // 2])
    efficiency = None if free_products else model.compute.device.gemm_efficiency
    run = fit_run(model, [measured[index] for index in fitted], gemm_efficiency=efficiency)

    def over(indexes: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> Deviation:
        some = [measured[index] for index in indexes]
        return _deviation([model.iteration_s(row, run) / row.iteration_s for row in some])

    return over(fitted), over(held), run


def layer_deviation() -> Deviation:
    """Compare a layer of Llama-2-7B, 2048 tokens, with two times that nothing was fitted to.

    Hetu-Galvatron's profile: 4.40 ms a sample at batch 1, 3.93 at batch 8; it names no GPU, the
    rates (204 and 228 TFLOP/s) are an A100's.
    """
    gpu = one_node("a100").gpu
    compute = ComputeModel(gpu=gpu, device=device_models().device(gpu))
    layer = TransformerLayer(width=4096, heads=32, mlp_width=11008, gated=True, causal=True)
    cost = layer.cost(tokens=2048)
    measured = ((1, 4.40e-3), (8, 3.93e-3))
    return _deviation(
        [compute.forward_s(cost, batch) / batch / time_s for batch, time_s in measured]
    )


def _deviation(ratios: list[float]) -> Deviation:
    errors = np.abs(np.array(ratios) - 1)
    return Deviation(
        points=len(ratios),
        mean=float(errors.mean()),
        median=float(np.median(errors)),
        largest=float(errors.max()),
    )


def _line(what: str, deviation: Deviation) -> str:
    return (
        f"{what:<64} {deviation.points:>4} points  mean {deviation.mean:6.1%}"
        f"  median {deviation.median:6.1%}  largest {deviation.largest:6.1%}"
    )


def main() -> None:
    """Print every deviation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--seed", type=int, default=0, help="of the split into halves")
    arguments = parser.parse_args()
    found = {f"{gpu} all-reduce": all_reduce_deviation(gpu) for gpu in ("a100", "a800", "h100")}
    for ranks in (2, 4, 8):
        others = tuple({2, 4, 8} - {ranks})
        nccl = fit_nccl("a100", ("A100",), ranks=others, show=False)
        found[f"a100 all-reduce, {ranks} ranks, fitted to the others"] = all_reduce_deviation(
            "a100", ranks, nccl
        )
    found["layer of Llama-2-7B, nothing fitted"] = layer_deviation()
    numbers: dict[str, object] = {}
    for free in (True, False):
        title = "iterations" if free else "iterations, products as in micro-benchmarks"
        fitted, held, run = iteration_deviation(arguments.seed, free_products=free)
        found[f"{title}: fitted half (seed {arguments.seed})"] = fitted
        found[f"{title}: other half"] = held
        halves = [iteration_deviation(seed, free_products=free)[1].mean for seed in range(10)]
        numbers[f"{title}: mean over seeds 0-9 of the other half's mean"] = float(np.mean(halves))
        numbers[f"{title}: worst of seeds 0-9"] = max(halves)
        numbers[f"{title}: constants of the run"] = asdict(run)
    if arguments.json:
        print(
            json.dumps({name: asdict(value) for name, value in found.items()} | numbers, indent=1)
        )
        return
    for name, deviation in found.items():
        print(_line(name, deviation))
    for name, value in numbers.items():
        print(f"{name}: {value:.1%}" if isinstance(value, float) else f"{name}: {value}")


if __name__ == "__main__":
    main()
