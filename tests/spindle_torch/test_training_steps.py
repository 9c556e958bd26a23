"""Many training steps, clipped and sharded ones: distributed runs stay with one plain process."""

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from spindle_sim import make_plan, parse_cluster
from spindle_sim.estimate.memory import OPTIMIZER_BYTES
from spindle_sim.plan import Plan, save_plan
from spindle_sim.planner import STRATEGIES
from spindle_torch.buckets import Overlap, parameter_buckets
from spindle_torch.compilation import compile_plan
from spindle_torch.pool import parameter_pool
from spindle_torch.program import Launch
from tests.builders import make_memory
from tests.spindle_torch.plans import dealt, refusal, workloads
from tests.spindle_torch.reference import Reference
from tests.spindle_torch.running import check_replicas, joined, run_probes
from tests.spindle_torch.test_gradients import shape

TOLERANCE = 1e-12
MANY_STEPS = 20


@dataclass(frozen=True)
class Case:
    """A plan, and how many steps of it are run."""

    name: str
    workload: str
    plan: Plan
    steps: int = 3
    clip_norm: float | None = None
    bucket_mb: float | None = None


@dataclass(frozen=True)
class Trained:
    """What one process has after its steps."""

    losses: list[dict[str, float]]
    gradients: list[dict[str, torch.Tensor]]
    parameters: dict[str, torch.Tensor]


@cache
def trained(workload: str, steps: int, clip_norm: float | None = None) -> Trained:
    model = Reference(workloads()[workload], torch.float64, clip_norm=clip_norm)
    done = [model.step(number) for number in range(steps)]
    return Trained(
        losses=[losses for losses, _ in done],
        gradients=[gradients for _, gradients in done],
        parameters={name: parameter.detach() for name, parameter in model.parameters()},
    )


def norm(gradients: dict[str, torch.Tensor]) -> float:
    return (
        torch.stack([gradient.square().sum() for gradient in gradients.values()])
        .sum()
        .sqrt()
        .item()
    )


def is_rounding(name: str) -> bool:
    """Tell of a key's bias: it shifts all of a query's scores alike.

    Its gradient is 0 but for rounding, of which AdamW makes steps: there is nothing to be close to.
    """
    return name.partition("@")[0].endswith("key_bias")


def run(folder: Path, cases: list[Case], ranks: int) -> dict[str, list[dict[str, Any]]]:
    """Run all cases in one launch; give what each rank leaves of each."""
    for case in cases:
        options: dict[str, float] = {"steps": case.steps}
        if case.clip_norm is not None:
            options["clip_norm"] = case.clip_norm
        if case.bucket_mb is not None:
            options["bucket_mb"] = case.bucket_mb
        save_plan(case.plan, folder / f"{case.name}.json")
        (folder / f"{case.name}.options").write_text(json.dumps(options))
    run_probes(folder, ranks)
    return {
        case.name: [torch.load(folder / f"{case.name}.float64.{rank}.pt") for rank in range(ranks)]
        for case in cases
    }


def whole(
    ranks: list[dict[str, Any]], step: int, like: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Give the gradients of a step, put together from all ranks."""
    parts = {
        name: gradient
        for rank in ranks
        for name, gradient in rank["steps"][step]["gradients"].items()
    }
    return {name: joined(parts, name, gradient) for name, gradient in like.items()}


@pytest.mark.slow
def test_clipped_gradients_are_those_that_torch_clips_in_one_process(tmp_path: Path) -> None:
    cluster = parse_cluster("a800:1x4")
    cases = []
    for name in ("multitask-clip", "qwen-val", "qwen-val-frozen"):
        plan = next(
            plan
            for _, plan in dealt(workloads()[name], cluster)
            if shares_shards(plan) and any(item.tp == 1 for item in plan.slices)
        )
        free = norm(trained(name, 1).gradients[0])
        cases.append(Case(name=name, workload=name, plan=plan, clip_norm=free / 3))
        cases.append(Case(name=f"{name}.free", workload=name, plan=plan, clip_norm=free * 100))
    for name, ranks in run(tmp_path, cases, 4).items():
        case = next(case for case in cases if case.name == name)
        expected = trained(case.workload, case.steps, case.clip_norm)
        assert case.clip_norm is not None
        for step, gradients in enumerate(expected.gradients):
            found = whole(ranks, step, gradients)
            if not name.endswith(".free"):
                assert norm(found) == pytest.approx(case.clip_norm, rel=1e-5)
            for key, gradient in gradients.items():
                error = (found[key] - gradient).norm().item()
                assert error <= TOLERANCE * norm(gradients), f"{name}: step {step}: {key}"
        check_replicas(ranks)


def shares_shards(plan: Plan) -> bool:
    """Tell whether several devices hold the same shard of two."""
    return any(
        len(group.devices) > 1 and any(key.num_shards > 1 for key in group.operators)
        for group in parameter_pool(plan)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "strategies"), [(2, tuple(STRATEGIES)), (4, ("spindle", "seq", "deepspeed"))]
)
def test_twenty_steps_of_strategies_stay_with_one_process(
    ranks: int, strategies: tuple[str, ...], tmp_path: Path
) -> None:
    cases = []
    for workload in ("multitask-clip", "ofasys", "qwen-val"):
        found: set[object] = set()
        for strategy in strategies:
            plan = make_plan(workloads()[workload], parse_cluster(f"a800:1x{ranks}"), strategy)
            if shape(plan) not in found and refusal(plan) is None:
                name = f"{workload}.{strategy}"
                cases.append(Case(name=name, workload=workload, plan=plan, steps=MANY_STEPS))
            found.add(shape(plan))
        assert any(case.name == f"{workload}.spindle" for case in cases)
    left = run(tmp_path, cases, ranks)
    for case in cases:
        check_many(case, left[case.name])
        check_replicas(left[case.name])


def check_many(case: Case, ranks: list[dict[str, Any]]) -> None:
    expected = trained(case.workload, case.steps)
    for step, losses in enumerate(expected.losses):
        for task, loss in losses.items():
            found = sum(rank["steps"][step]["losses"].get(task, 0.0) for rank in ranks)
            assert found == pytest.approx(loss, rel=1e-10), f"{case.name}: step {step}: {task}"
    parts = {key: item for rank in ranks for key, item in rank["parameters"].items()}
    for key, parameter in expected.parameters.items():
        error = (joined(parts, key, parameter) - parameter).norm().item()
        if is_rounding(key):
            assert max(parameter.abs().max().item(), error) < 1e-8
            continue
        assert error <= 1e-10 * parameter.norm().item(), f"{case.name}: {key}: {error}"


@pytest.mark.slow
def test_overlapped_buckets_give_the_gradients_and_the_step_of_whole_groups(
    tmp_path: Path,
) -> None:
    """Buckets of 1 kB and of 20 kB: some operators leave alone, and some hold others up."""
    cluster = parse_cluster("a800:1x4")
    cases = []
    for name, strategy in (("multitask-clip", "spindle"), ("qwen-val", "seq"), ("ofasys", "")):
        workload = workloads()[name]
        if strategy:
            plan = make_plan(workload, cluster, strategy)
        else:
            plan = next(plan for _, plan in dealt(workload, cluster) if shares_shards(plan))
        for bucket_mb in (0.001, 0.02):
            overlap = Overlap.of(bucket_mb, "float64")
            assert len(parameter_buckets(plan, overlap)) > len(parameter_pool(plan))
            launched = [
                item
                for program in compile_plan(plan, overlap=overlap)
                for item in program.instructions
                if isinstance(item, Launch)
            ]
            assert any(item.within for item in launched)
            cases.append(
                Case(name=f"{name}.{bucket_mb}", workload=name, plan=plan, bucket_mb=bucket_mb)
            )
    for name, ranks in run(tmp_path, cases, 4).items():
        case = next(case for case in cases if case.name == name)
        expected = trained(case.workload, case.steps)
        for step, gradients in enumerate(expected.gradients):
            found = whole(ranks, step, gradients)
            for key, gradient in gradients.items():
                error = (found[key] - gradient).norm().item()
                assert error <= TOLERANCE * norm(gradients), f"{name}: step {step}: {key}"
        check_replicas(ranks)


@pytest.mark.slow
def test_sharded_optimizer_states_give_the_step_of_whole_ones_and_are_as_small_as_planned(
    tmp_path: Path,
) -> None:
    cluster = parse_cluster("a800:1x4")
    cases = []
    for name in ("multitask-clip", "qwen-val", "qwen-val-frozen"):
        plan = next(
            plan for _, plan in dealt(workloads()[name], cluster, zero1=True) if shares_shards(plan)
        )
        clip_norm = norm(trained(name, 1).gradients[0]) / 3
        memory = make_memory(plan.metaops, plan.slices, plan.parameter_groups, zero1=False)
        kept = replace(plan, zero1=False, memory=memory)
        for kind, own in (("whole", kept), ("sharded", plan)):
            cases.append(Case(name=f"{name}.{kind}", workload=name, plan=own, clip_norm=clip_norm))
        cases.append(replace(cases[-1], name=f"{name}.sharded-beside", bucket_mb=0.02))
    left = run(tmp_path, cases, 4)
    for case in cases:
        for rank, found in enumerate(left[case.name]):
            planned, filled = stepped(case, rank)
            assert planned <= found["stepped"] <= planned + filled, f"{case.name}: rank {rank}"
        check_replicas(left[case.name])
        if case.plan.zero1:
            whole_ones = left[f"{case.workload}.whole"]
            for rank_left, other in zip(left[case.name], whole_ones, strict=True):
                for key, parameter in rank_left["parameters"].items():
                    error = (parameter - other["parameters"][key]).norm().item()
                    if is_rounding(key):
                        assert max(parameter.abs().max().item(), error) < 1e-8
                        continue
                    assert error <= TOLERANCE * max(parameter.norm().item(), 1.0), key


def stepped(case: Case, rank: int) -> tuple[float, int]:
    """Give the parameters that a rank steps as the plan's memory has it, and what fills ranges.

    The plan counts no table twice that a tied projection holds as well; none is tied here.
    """
    stated_bytes = sum(item.optimizer_bytes for item in case.plan.memory if item.device == rank)
    overlap = None if case.bucket_mb is None else Overlap.of(case.bucket_mb, "float64")
    cut = parameter_buckets(case.plan, overlap)
    held = sum(rank in bucket.group.devices for bucket in cut)
    return stated_bytes / OPTIMIZER_BYTES, held if case.plan.zero1 else 0
