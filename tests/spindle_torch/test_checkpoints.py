"""Training that goes on from a checkpoint is the training that was never interrupted."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import permutations
from pathlib import Path

import pytest
import torch

from spindle_sim import make_plan, parse_cluster
from spindle_sim.plan import Plan, save_plan
from spindle_sim.workload import Workload, builtin_workload
from spindle_sim.workload.tiny import tiny
from spindle_torch.data import DataSource
from spindle_torch.pool import parameter_pool
from tests.builders import make_memory
from tests.pipelines import with_rounds
from tests.spindle_torch.plans import dealt
from tests.spindle_torch.reference import Reference
from tests.spindle_torch.running import run_probes
from tests.spindle_torch.saving import PLAN_ENDING, Job, Left, whole_tensors

SAVING = Path(__file__).parent / "saving.py"
TOLERANCE = 1e-12
PLANS = ("spindle", "tensor", "zero")
# Of two plans: which wrote, and which goes on. "divided" has its parameters in ranges (ZeRO-3).
CHANGES = (
    *permutations(PLANS, 2),
    ("divided", "spindle"),
    ("tensor", "divided"),
)
AGAIN = (
    ("spindle", "zero"),
    ("tensor", "spindle"),
    ("zero", "tensor"),
    ("zero", "divided"),
)


def clip(tasks: int) -> Workload:
    return tiny(builtin_workload("multitask-clip")).with_first_tasks(tasks)


def with_zero1(plan: Plan) -> Plan:
    memory = make_memory(plan.metaops, plan.slices, plan.parameter_groups, zero1=True)
    return replace(plan, zero1=True, memory=memory)


def run_jobs(folder: Path, plans: Mapping[str, Plan], jobs: Sequence[Job]) -> dict[str, list[Left]]:
    """Run jobs on as many ranks as the plans have; give what each rank leaves of each."""
    ranks = next(iter(plans.values())).cluster.num_devices
    for name, plan in plans.items():
        save_plan(plan, folder / f"{name}{PLAN_ENDING}")
    (folder / "jobs.json").write_text(json.dumps([asdict(job) for job in jobs]))
    run_probes(folder, ranks, SAVING)
    return {
        job.name: [
            Left(**json.loads((folder / f"{job.name}.{rank}.left").read_text()))
            for rank in range(ranks)
        ]
        for job in jobs
    }


def check_equal(one: Path, two: Path, *, tolerance: float = 0.0) -> None:
    ours, theirs = whole_tensors(one), whole_tensors(two)
    assert ours.keys() == theirs.keys()
    for key, tensor in ours.items():
        check_close(key, tensor, theirs[key], tolerance)


def check_close(key: str, ours: torch.Tensor, theirs: torch.Tensor, tolerance: float) -> None:
    if not tolerance:
        assert torch.equal(ours, theirs), key
    elif "key_bias" not in key:
        # A key's bias shifts all of a query's scores alike: its gradient is nothing but rounding.
        assert (ours - theirs).norm() <= tolerance * theirs.norm(), key


def losses(left: list[Left]) -> list[dict[str, float]]:
    """Add up the ranks' parts of each step's losses."""
    return [
        {
            task: sum(rank.losses[step].get(task, 0.0) for rank in left)
            for task in {task for rank in left for task in rank.losses[step]}
        }
        for step in range(len(left[0].losses))
    ]


@pytest.fixture(scope="module")
def four_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train under plans for four steps, saved after two; go on from each under others."""
    folder = tmp_path_factory.mktemp("four")
    cluster = parse_cluster("a800:1x4")
    plans = {
        "spindle": make_plan(clip(2), cluster),
        "tensor": next(p for _, p in dealt(clip(2), cluster) if shares_shards(p)),
        "zero": next(p for _, p in dealt(clip(2), cluster, zero1=True) if shares_shards(p)),
    }
    plans["divided"] = with_rounds(plans["zero"], (), zero_stage=3)
    jobs = [Job(name=name, plan=name, steps=4, every=2) for name in plans]
    jobs += [
        Job(name=f"{wrote}-{goes_on}", plan=goes_on, steps=2, resume=f"{wrote}/step-2")
        for wrote, goes_on in (*CHANGES, *((name, name) for name in plans))
    ]
    jobs += [
        Job(
            name=f"{wrote}-{goes_on}-again",
            plan=goes_on,
            steps=2,
            every=2,
            resume=f"{wrote}/step-2",
            only_save_again=True,
        )
        for wrote, goes_on in AGAIN
    ]
    left = run_jobs(folder, plans, jobs)
    for name in plans:
        straight = losses(left[name])[2:]
        for other in (other for other in plans if (name, other) in CHANGES or name == other):
            for ours, theirs in zip(losses(left[f"{name}-{other}"]), straight, strict=True):
                assert ours == pytest.approx(theirs, rel=0 if name == other else TOLERANCE)
    return folder


def shares_shards(plan: Plan) -> bool:
    """Tell whether several devices hold the same shard of two."""
    return any(
        len(group.devices) > 1 and any(key.num_shards > 1 for key in group.operators)
        for group in parameter_pool(plan)
    )


@pytest.mark.slow
@pytest.mark.parametrize("plan", [*PLANS, "divided"])
def test_the_same_plan_goes_on_to_the_same_bits(four_ranks: Path, plan: str) -> None:
    check_equal(four_ranks / f"{plan}-{plan}" / "step-4", four_ranks / plan / "step-4")


@pytest.mark.slow
@pytest.mark.parametrize(("wrote", "goes_on"), CHANGES)
def test_any_plan_goes_on_as_if_it_had_not_changed(
    four_ranks: Path, wrote: str, goes_on: str
) -> None:
    ours, theirs = four_ranks / f"{wrote}-{goes_on}" / "step-4", four_ranks / wrote / "step-4"
    check_equal(ours, theirs, tolerance=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize(("wrote", "goes_on"), AGAIN)
def test_what_any_plan_loads_and_saves_again_has_the_same_bits(
    four_ranks: Path, wrote: str, goes_on: str
) -> None:
    again = four_ranks / f"{wrote}-{goes_on}-again" / "step-2"
    check_equal(again, four_ranks / wrote / "step-2")


@pytest.mark.slow
def test_keys_speak_of_the_model_alone_and_every_number_is_written_once(four_ranks: Path) -> None:
    model = Reference(clip(2), torch.float64)
    parameters = dict(model.parameters())
    expected = {f"model.{name}": tuple(item.shape) for name, item in parameters.items()}
    for state in ("exp_avg", "exp_avg_sq"):
        expected |= {f"optim.{k}.{state}": tuple(v.shape) for k, v in parameters.items()}
    expected |= {f"optim.{name}.step": () for name in parameters}
    numbers = sum(torch.Size(shape).numel() for shape in expected.values())
    for plan in (*PLANS, "divided"):
        folder = four_ranks / plan / "step-2"
        found = whole_tensors(folder)
        assert {key: tuple(item.shape) for key, item in found.items()} == expected
        assert not any(item.isnan().any() for item in found.values())
        written_bytes = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        assert written_bytes < 8 * numbers * 1.2  # and headers, for tensors of some dozen numbers


@pytest.mark.slow
def test_two_ranks_go_on_where_four_stopped(four_ranks: Path, tmp_path: Path) -> None:
    cluster = parse_cluster("a800:1x2")
    plans = {
        "seq": make_plan(clip(2), cluster, "seq"),
        "zero": with_zero1(make_plan(clip(2), cluster, "uniform")),
    }
    for wrote in PLANS:
        (tmp_path / wrote).symlink_to(four_ranks / wrote)
    jobs = [
        Job(name=f"{wrote}-{name}-two", plan=name, steps=2, resume=f"{wrote}/step-2")
        for wrote, name in (("spindle", "zero"), ("tensor", "seq"), ("zero", "seq"))
    ]
    run_jobs(tmp_path, plans, jobs)
    for job in jobs:
        straight = four_ranks / job.name.split("-", 1)[0] / "step-4"
        check_equal(tmp_path / job.name / "step-4", straight, tolerance=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("zero1", [False, True])
def test_tasks_that_leave_and_come_back_go_on_where_they_were(
    tmp_path: Path, *, zero1: bool
) -> None:
    """Four tasks, then two of them, then four again; beside one process that does the same."""
    cluster = parse_cluster("a800:1x2")
    plans = {str(n): make_plan(clip(n), cluster, "uniform") for n in (2, 3, 4)}
    if zero1:
        plans = {name: with_zero1(plan) for name, plan in plans.items()}
    phases = ("4", "2", "4", "3")
    jobs = [
        Job(
            name=f"phase-{index}",
            plan=tasks,
            steps=2,
            every=1,
            folder="run",
            resume=f"run/step-{2 * index}" if index else None,
        )
        for index, tasks in enumerate(phases)
    ]
    left = run_jobs(tmp_path, plans, jobs)
    model = Reference(clip(4), torch.float64)
    cursors = dict.fromkeys((task.name for task in clip(4).tasks), 0)
    for index, tasks in enumerate(phases):
        expected = [train(model, clip(int(tasks)), cursors) for _ in range(2)]
        for ours, theirs in zip(losses(left[f"phase-{index}"]), expected, strict=True):
            assert ours == pytest.approx(theirs, rel=TOLERANCE)
        found = whole_tensors(tmp_path / "run" / f"step-{2 * index + 2}")
        used = {module.name for module in clip(int(tasks)).modules}
        for name, parameter in model.parameters():
            if name.split("/")[0] not in used:
                assert f"model.{name}" not in found
                continue
            check_close(name, found[f"model.{name}"], parameter.detach(), 10 * TOLERANCE)
            states = model.optimizer.state[parameter]
            assert found[f"optim.{name}.step"] == states["step"], name
    notes = left["phase-1"][0].notes
    assert any("dropped: 73 parameters (depth 73); kept in" in note for note in notes), notes
    notes = left["phase-2"][0].notes
    assert any(note.startswith("back from") and "(depth 73)" in note for note in notes), notes


def train(model: Reference, workload: Workload, cursors: dict[str, int]) -> dict[str, float]:
    """Step a model by some of its tasks; the optimizer leaves alone what they don't use."""
    found = {}
    for task in workload.tasks:
        data = DataSource(
            seed=0, step=cursors[task.name], dtype=torch.float64, device=torch.device("cpu")
        )
        found[task.name] = model._task_loss(task, data)
        cursors[task.name] += 1
    model.optimizer.zero_grad()
    torch.autograd.backward(torch.stack(list(found.values())).sum())
    used = {module.name for module in workload.modules}
    for name, parameter in model.parameters():
        if name.split("/")[0] in used and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    model.optimizer.step()
    return {name: loss.item() for name, loss in found.items()}
