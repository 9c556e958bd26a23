"""Runs under bf16 autocast: as near to one process under autocast as that is to full precision."""

import json
import math
from functools import cache
from pathlib import Path

import pytest
import torch

from spindle_sim import make_plan, parse_cluster
from spindle_sim.backend import ExecutionOptions
from spindle_sim.errors import UsageError
from spindle_sim.plan import Plan, save_plan
from spindle_torch.requirements import check_requirements
from tests.spindle_torch.plans import dealt, tiny_plan, workloads
from tests.spindle_torch.reference import Reference
from tests.spindle_torch.running import check_replicas, joined, run_probes

STEPS = 3
Steps = list[tuple[dict[str, float], dict[str, torch.Tensor]]]


@cache
def reference(workload: str, *, autocast: bool) -> Steps:
    model = Reference(workloads()[workload], torch.float32, autocast=autocast)
    return [model.step(number) for number in range(STEPS)]


def distance(found: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Give the norm of all differences over that of the second."""
    apart = sum((found[key] - other[key]).square().sum().item() for key in other)
    return math.sqrt(apart / sum(item.square().sum().item() for item in other.values()))


def plans() -> dict[str, Plan]:
    """Plans on two ranks; that of ofasys is one with tensor parallelism and messages."""
    cluster = parse_cluster("a800:1x2")
    made = {name: make_plan(workloads()[name], cluster) for name in ("multitask-clip", "qwen-val")}
    made["ofasys"] = next(
        plan
        for _, plan in dealt(workloads()["ofasys"], cluster)
        if any(item.tp > 1 for item in plan.slices) and any(item.tp == 1 for item in plan.slices)
    )
    return made


@pytest.mark.slow
def test_losses_and_gradients_are_near_those_of_one_process_under_autocast(tmp_path: Path) -> None:
    made = plans()
    for name, plan in made.items():
        for kind, options in (("cast", {"autocast": 1}), ("full", {"steps": 1})):
            save_plan(plan, tmp_path / f"{name}.{kind}.json")
            (tmp_path / f"{name}.{kind}.options").write_text(
                json.dumps({"steps": STEPS, **options})
            )
    run_probes(tmp_path, 2)
    for name in made:
        ranks = [torch.load(tmp_path / f"{name}.cast.float32.{rank}.pt") for rank in range(2)]
        check_replicas(ranks)
        for rank in ranks:
            assert {item.dtype for item in rank["parameters"].values()} == {torch.float32}
        for step in range(STEPS):
            losses, gradients = reference(name, autocast=True)[step]
            exact_losses, exact = reference(name, autocast=False)[step]
            parts = {key: g for r in ranks for key, g in r["steps"][step]["gradients"].items()}
            found = {key: joined(parts, key, whole) for key, whole in gradients.items()}
            assert 0 < distance(found, exact) < 2 * distance(gradients, exact)
            assert distance(found, gradients) < 2 * distance(gradients, exact)
            for task, loss in losses.items():
                total = sum(rank["steps"][step]["losses"].get(task, 0.0) for rank in ranks)
                assert total == pytest.approx(loss, rel=0.01)
                assert total == pytest.approx(exact_losses[task], rel=0.02)
        full = [torch.load(tmp_path / f"{name}.full.float64.{rank}.pt") for rank in range(2)]
        for rank, other in zip(ranks, full, strict=True):
            sent, sent_whole = (item["steps"][0]["sent_bytes"] for item in (rank, other))
            assert sent == sent_whole / 4, "two bytes a number, in place of eight"
        assert name == "qwen-val" or any(item["steps"][0]["sent_bytes"] for item in full)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ExecutionOptions(autocast="bf16", dtype="float64"), "parameters in float32"),
        (ExecutionOptions(autocast="fp8"), "no autocast 'fp8': there is bf16"),
        (ExecutionOptions(autocast="bf16", emulate=True), "computes nothing"),
        (ExecutionOptions(overlap_sync=True, bucket_mb=0.0), "--bucket-mb 0.0"),
    ],
)
def test_what_makes_no_sense_is_refused(options: ExecutionOptions, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_requirements(tiny_plan(), options, {})
