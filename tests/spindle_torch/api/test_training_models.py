"""Trained by the engine on two ranks, split models have the gradients of plain PyTorch."""

import random
from itertools import permutations
from pathlib import Path

import pytest
import torch

from spindle_sim import make_plan, parse_cluster
from spindle_sim.plan import Plan, save_plan
from spindle_torch.api import SplitModel
from spindle_torch.intervals import held_samples
from tests.builders import Part
from tests.builders import make_plan as plan_of
from tests.pipelines import with_rounds
from tests.spindle_torch.api.models import PLAIN, build
from tests.spindle_torch.api.stepping import whole_loss
from tests.spindle_torch.running import check_replicas, run_probes
from tests.stated_plans import stated

PROBE = Path(__file__).parent / "probe.py"
TOLERANCE = 1e-12
AMPLIFIED = 1e-3 / 1e-8  # AdamW's learning rate over its epsilon
STEPS = 2


def dealt(split: SplitModel, seed: int, *, zero_stage: int = 0, ranks: int = 2) -> Plan:
    """Give a plan of slices dealt at random to devices, whether shards are even or not."""
    draw = random.Random(seed)
    groups = [group for size in range(ranks) for group in permutations(range(ranks), size + 1)]
    parts: list[Part] = []
    for use in split.uses:
        first = 0
        while first < len(use.parts):
            num_ops = draw.randint(1, len(use.parts) - first)
            parts.append(
                Part(
                    metaop=f"{use.task}/{use.name}/layer",
                    devices=draw.choice(groups),
                    first_op=first,
                    num_ops=num_ops,
                    stage=len(parts),
                    recompute=draw.random() < 0.3,
                )
            )
            first += num_ops
    plan = stated(plan_of(split.workload, parse_cluster(f"a800:1x{ranks}"), parts))
    return with_rounds(plan, (), zero_stage=zero_stage)


def reference(split: SplitModel) -> list[tuple[dict[str, float], dict[str, torch.Tensor]]]:
    """Train in one process with plain PyTorch; the model is left as it is then."""
    trained = {name: item for name, item in split.parameters.items() if item.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), lr=1e-3, foreach=False)
    found = []
    for step in range(STEPS):
        optimizer.zero_grad()
        losses = {
            task.name: task.loss_weight * whole_loss(split, task.name, step=step)
            for task in split.tasks
        }
        torch.autograd.backward(torch.stack(list(losses.values())).sum())
        gradients = {
            name: item.grad.clone() for name, item in trained.items() if item.grad is not None
        }
        found.append(({task: loss.item() for task, loss in losses.items()}, gradients))
        optimizer.step()
    return found


def check(folder: Path, name: str, num_ranks: int) -> None:
    split = build(name.split(".")[0])
    expected = reference(split)
    ranks = [
        torch.load(folder / f"{name}.{rank}.pt", weights_only=True) for rank in range(num_ranks)
    ]
    rounding: dict[str, float] = {}
    for step, (losses, gradients) in enumerate(expected):
        total = dict.fromkeys(losses, 0.0)
        held: dict[str, torch.Tensor] = {}
        for rank in ranks:
            for task, loss in rank["steps"][step]["losses"].items():
                total[task] += loss
            for parameter, gradient in rank["steps"][step]["gradients"].items():
                assert torch.equal(held.setdefault(parameter, gradient), gradient), parameter
        assert total == pytest.approx(losses, rel=TOLERANCE), (name, step)
        if name.endswith(("zero1", "zero2")):
            continue  # no rank has a group's gradients whole; what is trained tells
        assert set(held) >= set(gradients)
        largest = max(gradient.norm().item() for gradient in gradients.values())
        for parameter, gradient in held.items():
            plain = gradients.get(parameter, torch.zeros_like(gradient))
            error = (gradient - plain).norm().item()
            # A gradient of 0, such as that of a key's bias, is all rounding.
            assert error <= TOLERANCE * max(plain.norm().item(), 1e-3 * largest), (name, parameter)
            rounding[parameter] = rounding.get(parameter, 0.0) + error
    check_replicas(ranks)
    for rank in ranks:
        for parameter, trained in rank["parameters"].items():
            error = (trained - split.parameters[parameter]).norm().item()
            # Where a gradient is near 0 AdamW divides what it is off by by its 1e-8.
            bound = 10 * TOLERANCE * max(trained.norm().item(), 1.0)
            assert error <= bound + AMPLIFIED * rounding.get(parameter, 0.0), (name, parameter)


def train_and_check(folder: Path, plans: dict[str, Plan], *, ranks: int = 2) -> None:
    for name, plan in plans.items():
        save_plan(plan, folder / f"{name}.json")
    run_probes(folder, ranks, PROBE)
    for name in plans:
        check(folder, name, ranks)


@pytest.mark.slow
def test_models_train_as_in_plain_pytorch(tmp_path: Path) -> None:
    cluster = parse_cluster("a800:1x2")
    plans: dict[str, Plan] = {}
    for name in PLAIN:
        split = build(name)
        for strategy in ("spindle", "seq"):
            plans[f"{name}.{strategy}"] = make_plan(split.workload, cluster, strategy)
        for seed in range(3):
            plans[f"{name}.{seed}"] = dealt(split, seed)
        plans[f"{name}.zero1"] = dealt(split, 3, zero_stage=1)
    train_and_check(tmp_path, plans)


def test_models_train_in_plans_that_divide_gradients_on_more_ranks_than_there_are_samples(
    tmp_path: Path,
) -> None:
    names = ("two_tasks", "matching")
    plans = {f"{name}.zero2": dealt(build(name), 0, zero_stage=2, ranks=4) for name in names}
    coupled = plans["matching.zero2"]
    (loss,) = (metaop.id for metaop in coupled.metaops if metaop.batch_coupled)
    assert [item.dp for item in coupled.slices if item.metaop == loss] == [4]
    held = {
        last - first
        for plan in plans.values()
        for item in plan.slices
        for batch in [plan.metaop_by_id()[item.metaop].batch]
        for first, last in [held_samples(item, device, batch) for device in item.devices]
    }
    assert {0, 1, 2} <= held
    train_and_check(tmp_path, plans, ranks=4)


@pytest.mark.slow
def test_published_models_train_as_in_plain_pytorch(tmp_path: Path) -> None:
    plans: dict[str, Plan] = {}
    for name in ("vit", "clip", "llama_tied", "llava", "t5"):
        split = build(name)
        plans[f"{name}.spindle"] = make_plan(split.workload, parse_cluster("a800:1x2"))
        plans[f"{name}.0"] = dealt(split, 0)
    train_and_check(tmp_path, plans)
