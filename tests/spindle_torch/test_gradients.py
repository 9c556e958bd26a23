"""Losses, gradients and training steps of distributed runs equal those of one plain process."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from spindle_sim import make_plan, parse_cluster
from spindle_sim.plan import Plan, save_plan, validate_plan
from spindle_sim.plan.schedule import execution_order
from spindle_sim.planner import STRATEGIES
from tests.spindle_torch.plans import dealt, refusal, workloads
from tests.spindle_torch.reference import Reference
from tests.spindle_torch.rounding import Rounding
from tests.spindle_torch.running import check_replicas, joined, run_probes

TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
STEPS = {"float32": 1, "float64": 2}
Step = tuple[dict[str, float], dict[str, torch.Tensor]]  # losses and gradients


@dataclass(frozen=True)
class Case:
    name: str
    workload: str
    plan: Plan


def cases(ranks: int) -> Iterator[Case]:
    """Give all strategies, and a random plan of each workload.

    Strategies that come to the same plan are one case. Plans of strategies give such small
    operators a device or two; in random ones slices have any degrees.
    """
    cluster = parse_cluster(f"a800:1x{ranks}")
    for name, workload in workloads().items():
        found: dict[object, str] = {}
        for strategy in ("spindle",) if name.endswith("-frozen") else STRATEGIES:
            plan = make_plan(workload, cluster, strategy)
            if reason := refusal(plan):
                assert "can be simulated but not run yet" in reason
                continue
            if found.setdefault(shape(plan), strategy) == strategy:
                yield Case(f"{name}.{strategy}", name, plan)
        if ranks > 1 and not name.endswith("-frozen"):
            seed, plan = next(dealt(workload, cluster))
            yield Case(f"{name}.dealt{seed}", name, plan)


def shape(plan: Plan) -> object:
    """Give all of a plan that decides what is computed where, and in which order."""
    slices = [replace(item, forward_s=0.0, backward_s=0.0, start_s=0.0) for item in plan.slices]
    order = {device: [s.id for s in own] for device, own in execution_order(plan).items()}
    return repr((slices, plan.flows, plan.rounds, plan.zero_stage, order))


@cache
def reference(workload: str, dtype: str) -> list[Step]:
    model = Reference(workloads()[workload], getattr(torch, dtype))
    return [model.step(number) for number in range(STEPS[dtype])]


def check(
    expected: Sequence[Step],
    dtype: str,
    ranks: list[dict[str, Any]],
    rounding: Rounding | None = None,
) -> int:
    """Compare what the ranks leave with the steps of one process.

    With `rounding`, gradients that differ by more may be as far from exact ones as it says; how
    many do so is given.
    """
    rounded = 0
    for step, (losses, gradients) in enumerate(expected):
        parts: dict[str, torch.Tensor] = {}
        total = dict.fromkeys(losses, 0.0)
        for rank in ranks:
            for task, loss in rank["steps"][step]["losses"].items():
                total[task] += loss
            for name, gradient in rank["steps"][step]["gradients"].items():
                if name in parts:
                    assert torch.equal(parts[name], gradient), f"{name} differs between ranks"
                parts[name] = gradient
        assert total == pytest.approx(losses, rel=TOLERANCE[dtype])
        assert {name.split("@")[0] for name in parts} == set(gradients)
        for name, gradient in gradients.items():
            scale = max(gradient.norm().item(), gradients[beside(name, gradients)].norm().item())
            found = joined(parts, name, gradient)
            error, bound = (found - gradient).norm().item(), TOLERANCE[dtype] * scale
            if error > bound and rounding is not None:
                rounded += 1
                error = (found.double() - rounding.exact[name]).norm().item()
                bound = rounding.bounds[name]
            assert error <= bound, f"{name}: {error} of {scale}, at most {bound}"
    return rounded


def beside(name: str, gradients: Mapping[str, torch.Tensor]) -> str:
    """Give the parameter whose gradient tells what rounding is in that of another.

    A key's bias has a gradient of 0, and so have queries and keys of a single token, and the norm
    that only queries come from: what there is is rounding, of what the layer's values get.
    """
    other = re.sub(r"/((cross_)?attention)\.(query|key)(_bias)?$", r"/\1.value", name)
    other = re.sub(r"/cross_norm\.(weight|bias)$", "/cross_attention.value", other)
    return other if other in gradients else name


@pytest.mark.parametrize(
    "ranks",
    [
        1,
        pytest.param(2, marks=pytest.mark.slow),
        pytest.param(4, marks=pytest.mark.slow),
        pytest.param(8, marks=pytest.mark.slow),
    ],
)
def test_losses_and_gradients_are_those_of_one_process_and_replicas_are_equal(
    ranks: int, tmp_path: Path
) -> None:
    made = list(cases(ranks))
    for case in made:
        assert validate_plan(case.plan) == ()
        save_plan(case.plan, tmp_path / f"{case.name}.json")
    run_probes(tmp_path, ranks)
    for case in made:
        for dtype in STEPS:
            found = [
                torch.load(tmp_path / f"{case.name}.{dtype}.{rank}.pt") for rank in range(ranks)
            ]
            check(reference(case.workload, dtype), dtype, found)
            check_replicas(found)
    if ranks > 1:
        assert any(item.tp > 1 for case in made for item in case.plan.slices)
        assert any(item.recompute for case in made for item in case.plan.slices)
