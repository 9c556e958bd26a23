"""The estimates against published measurements, to the accuracy that docs/estimates.md states."""

import json
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from statistics import median

import pytest

from benchmarks.estimate_data import kernels, one_node, rows
from benchmarks.estimate_fit import fit_models, fit_nccl
from benchmarks.estimate_validate import (
    all_reduce_deviation,
    iteration_deviation,
    layer_deviation,
)
from spindle_sim.estimate.compute import ComputeModel
from spindle_sim.estimate.device import device_models
from spindle_sim.workload import Attention

SHARED = Path(__file__).parents[3] / "shared" / "measured"


def test_the_median_error_of_a100_all_reduces_is_below_five_percent() -> None:
    found = all_reduce_deviation("a100")
    assert found.points == 33
    assert found.median < 0.05


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_group_size_that_was_not_fitted_has_a_median_error_below_ten_percent(ranks: int) -> None:
    others = tuple(sorted({2, 4, 8} - {ranks}))
    nccl = fit_nccl("a100", ("A100",), ranks=others, show=False)
    assert all_reduce_deviation("a100", ranks, nccl).median < 0.10


def test_a800_all_reduces_which_were_not_fitted_have_a_median_error_below_ten_percent() -> None:
    assert all_reduce_deviation("a800").median < 0.10


@pytest.mark.parametrize("free_products", [True, False])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_iterations_of_the_half_not_fitted_are_met_within_ten_percent(
    seed: int, free_products: bool
) -> None:
    _, held, _ = iteration_deviation(seed, free_products=free_products)
    assert held.points == 54
    assert held.mean < 0.10


def test_a_layer_that_nothing_was_fitted_to_is_met_within_ten_percent() -> None:
    assert layer_deviation().largest < 0.10


@pytest.mark.parametrize(("name", "points"), [("flash2_fwd", 24), ("flash2_bwd", 12)])
def test_flash_attention_of_an_h100_has_a_median_error_below_ten_percent(
    name: str, points: int
) -> None:
    gpu = one_node("h100").gpu
    compute = ComputeModel(gpu=gpu, device=device_models().device(gpu))
    errors = []
    for item in kernels("H100-SXM5-80GB", name):
        noted = dict(part.strip().split("=") for part in item.note.split(";"))
        tokens, width = int(noted["seq_len"]), int(noted["head_dim"])
        heads, batch, causal = (
            int(noted["head_num"]),
            int(noted["batch"]),
            noted["causal"] == "True",
        )
        attention = Attention(
            queries=tokens, keys=tokens, heads=heads, head_width=width, causal=causal
        )
        # The source counts four FLOP a score and width, ten in the backward; half if causal.
        flops = (10 if name == "flash2_bwd" else 4) * batch * heads * tokens**2 * width
        measured_s = flops * (0.5 if causal else 1.0) / (item.fraction * gpu.peak_flops)
        modelled_s = compute.attention_s(attention, batch, backward=name == "flash2_bwd")
        errors.append(abs(modelled_s / measured_s - 1))
    assert len(errors) == points
    assert median(errors) < 0.10


def test_the_shipped_constants_are_what_the_fit_gives() -> None:
    shipped = resources.files("spindle_traces").joinpath("devices.json").read_text()
    fitted = json.loads(json.dumps(asdict(fit_models())))
    for section in ("devices", "nccl"):
        for old, new in zip(json.loads(shipped)[section], fitted[section], strict=True):
            assert {key: value for key, value in new.items() if not isinstance(value, float)} == {
                key: value for key, value in old.items() if not isinstance(value, float)
            }
            floats = {key: value for key, value in new.items() if isinstance(value, float)}
            # The optimizer's last digits differ from one numerical library to the next.
            assert floats == pytest.approx({key: old[key] for key in floats}, rel=0.02)


@pytest.mark.parametrize("name", ["a100_megatron_single_node.csv", "a100_nccl_allreduce.csv"])
def test_the_carried_over_measurements_are_the_published_ones(name: str) -> None:
    if not (SHARED / name).exists():
        pytest.skip("the original table isn't beside this checkout")
    lines = (SHARED / name).read_text().splitlines()
    table = [line for line in lines if not line.startswith("#")]
    assert [list(row.values()) for row in rows(name)] == [line.split(",") for line in table[1:]]
