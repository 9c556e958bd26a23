"""Losses, gradients and training steps of distributed runs equal those of one plain process."""

import random
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from spindle_sim import make_plan, parse_cluster
from spindle_sim.cluster import Cluster
from spindle_sim.errors import PlanError
from spindle_sim.plan import Plan, save_plan, validate_plan
from spindle_sim.planner import STRATEGIES
from spindle_sim.workload import Workload, builtin_workload
from spindle_sim.workload.tiny import tiny
from spindle_torch.compilation import compile_plan
from tests.builders import make_memory
from tests.random_plans import dealt_plan
from tests.spindle_torch.random_models import random_model
from tests.spindle_torch.reference import Reference
from tests.stated_plans import stated

PROBE = Path(__file__).parent / "probe.py"
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
RANDOM_MODELS = {1: range(2), 2: range(2, 10), 4: range(10, 18), 8: range(18, 20)}  # seeds
STEPS = {"float32": 1, "float64": 2}


def workloads() -> dict[str, Workload]:
    """The three tiny workloads; frozen towers in two more."""
    found = {}
    for name, tasks in (("multitask-clip", 4), ("ofasys", 4), ("qwen-val", 3)):
        found[name] = tiny(builtin_workload(name)).with_first_tasks(tasks)
    for name, frozen in (("multitask-clip", "text"), ("qwen-val", "vision")):
        modules = tuple(
            replace(module, frozen=module.name == frozen) for module in found[name].modules
        )
        found[f"{name}-frozen"] = replace(found[name], modules=modules)
    return found


@dataclass(frozen=True)
class Case:
    name: str
    workload: str
    plan: Plan


def cases(ranks: int) -> Iterator[Case]:
    """Give all strategies on 2 and 4 ranks, fewer on 1 (they differ little) and on 8 (slow)."""
    cluster = parse_cluster(f"a800:1x{ranks}")
    some = {1: ("spindle", "seq"), 8: ("spindle",)}.get(ranks, tuple(STRATEGIES))
    for name, workload in workloads().items():
        for strategy in ("spindle",) if name.endswith("-frozen") else some:
            yield Case(f"{name}.{strategy}", name, make_plan(workload, cluster, strategy))
        if ranks > 1 and not name.endswith("-frozen"):
            seed, plan = next(dealt(workload, cluster))
            yield Case(f"{name}.dealt{seed}", name, plan)
    for model in RANDOM_MODELS[ranks]:
        seed, plan = next(dealt(random_model(model), cluster))
        yield Case(f"random.{model}.dealt{seed}", f"random.{model}", plan)


def dealt(workload: Workload, cluster: Cluster) -> Iterator[tuple[int, Plan]]:
    """Give random plans that the backend takes."""
    for seed in count():
        plan = stated(dealt_plan(random.Random(seed).choice, workload, cluster))
        memory = make_memory(plan.metaops, plan.slices, plan.parameter_groups, zero1=plan.zero1)
        plan = replace(plan, memory=memory)
        with suppress(PlanError):  # a tied projection with another degree than its table's
            compile_plan(plan)
            if not plan.zero1:
                yield seed, plan


@cache
def reference(workload: str, dtype: str) -> list[tuple[dict[str, float], dict[str, torch.Tensor]]]:
    kind, _, seed = workload.partition(".")
    given = random_model(int(seed)) if kind == "random" else workloads()[workload]
    model = Reference(given, getattr(torch, dtype))
    return [model.step(number) for number in range(STEPS[dtype])]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other on busy cores take a hundred times as long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run_probes(folder: Path, ranks: int) -> None:
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, str(PROBE), str(folder), str(rank), str(ranks)],
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            for rank in range(ranks)
        ]
        ended = [process.communicate(timeout=280) for process in processes]
    for process, (_, errors) in zip(processes, ended, strict=True):
        assert process.returncode == 0, errors


def joined(parts: dict[str, torch.Tensor], name: str, whole: torch.Tensor) -> torch.Tensor:
    """Put the shards of a parameter together; whole ones are the same on every shard."""
    shards = [parts[key] for key in sorted(key for key in parts if key.split("@")[0] == name)]
    for dimension in range(whole.dim()):
        total = sum(shard.shape[dimension] for shard in shards)
        if total == whole.shape[dimension] and len(shards) > 1:
            return torch.cat(shards, dim=dimension)
    for shard in shards[1:]:
        assert torch.allclose(shard, shards[0], rtol=1e-9, atol=1e-12), name
    return shards[0]


def check(case: Case, dtype: str, ranks: list[dict[str, Any]]) -> None:
    for step, (losses, gradients) in enumerate(reference(case.workload, dtype)):
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
            # A key's bias has a gradient of 0, and so have queries and keys of a single token:
            # all of it is rounding, and compared with the gradient of the same layer's values.
            other = re.sub(r"/((cross_)?attention)\.(query|key)(_bias)?$", r"/\1.value", name)
            scale = max(gradient.norm().item(), gradients.get(other, gradient).norm().item())
            error = (joined(parts, name, gradient) - gradient).norm().item()
            assert error <= TOLERANCE[dtype] * scale, f"{name}: {error} of {scale}"


def dtypes(case: str) -> tuple[str, ...]:
    """Give in which precision a case runs: float64 shows more, so float32 is for some only."""
    return ("float32", "float64") if case.endswith("spindle") else ("float64",)


def check_replicas(ranks: list[dict[str, Any]]) -> None:
    held: dict[str, torch.Tensor] = {}
    for rank in ranks:
        for name, parameter in rank["parameters"].items():
            assert torch.equal(held.setdefault(name, parameter), parameter), name


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
        for dtype in dtypes(case.name):
            found = [
                torch.load(tmp_path / f"{case.name}.{dtype}.{rank}.pt") for rank in range(ranks)
            ]
            check(case, dtype, found)
            check_replicas(found)
    assert any(len(consumers(case.plan, item.id)) > 1 for case in made for item in case.plan.slices)
    if ranks > 1:
        assert any(item.tp > 1 for case in made for item in case.plan.slices)
        assert any(item.recompute for case in made for item in case.plan.slices)


def consumers(plan: Plan, slice_id: str) -> list[str]:
    return [flow.target_slice for flow in plan.flows if flow.source_slice == slice_id]
