"""On GPUs what other files check on CPUs: over NCCL where each rank has a GPU of its own.

On a single GPU that is one rank; several share it by way of CPUs (`staged.py`).
"""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from spindle_sim.backend import CheckpointOptions, ExecutionOptions, ProfilingOptions
from spindle_sim.cluster import parse_cluster
from spindle_sim.errors import ExecutionError
from spindle_sim.estimate import Estimator
from spindle_sim.plan import save_plan
from spindle_sim.planner.contract import contract
from spindle_sim.planner.probes import probes, step_probes
from spindle_sim.timeline import Kind, Phase
from spindle_sim.workload import builtin_workload
from spindle_sim.workload.tiny import tiny
from spindle_torch import TorchBackend
from spindle_torch.data import DataSource
from spindle_torch.drawing import Drawer
from spindle_torch.launch import launch
from spindle_torch.profiler import TorchProfiler
from spindle_torch.shapes import sites
from tests.spindle_torch import test_autocast, test_gradients
from tests.spindle_torch.plans import tiny_plan
from tests.spindle_torch.reference import Reference
from tests.spindle_torch.running import PROBE, joined, run_probes
from tests.spindle_torch.test_late_arrivals import check_staged, left
from tests.spindle_torch.test_launch import FAULTY, order_of_slices, spans_do_not_overlap

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
EXAMPLE = Path(__file__).parents[2] / "examples" / "train_two_tasks.py"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not GPUS, reason="there is no GPU"),
]


def of_gpus(count: int) -> pytest.MarkDecorator:
    return pytest.mark.skipif(count > GPUS, reason=f"there are {GPUS} GPUs")


def test_one_rank_over_nccl_has_the_losses_and_gradients_of_one_process(tmp_path: Path) -> None:
    made = list(test_gradients.cases(1))
    for case in made:
        save_plan(case.plan, tmp_path / f"{case.name}.json")
    run_probes(tmp_path, 1, PROBE, "nccl")
    for case in made:
        for dtype in test_gradients.STEPS:
            expected = test_gradients.reference(case.workload, dtype)
            test_gradients.check(expected, dtype, left(tmp_path, f"{case.name}.{dtype}", 1))


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_share_a_gpu_train_as_one_process_does(ranks: int, tmp_path: Path) -> None:
    """Messages, shards of tensors and tokens, buckets beside the backward, ZeRO, clipping."""
    check_staged(tmp_path, ranks, "staged-cuda")


@pytest.mark.parametrize("ranks", [pytest.param(count, marks=of_gpus(count)) for count in (2, 4)])
def test_ranks_over_nccl_train_as_one_process_does(ranks: int, tmp_path: Path) -> None:
    check_staged(tmp_path, ranks, "nccl")


def test_bf16_autocast_is_as_near_to_full_precision_as_on_a_cpu(tmp_path: Path) -> None:
    made = test_autocast.plans()
    for name, plan in made.items():
        save_plan(plan, tmp_path / f"{name}.json")
        options = {"steps": test_autocast.STEPS, "autocast": 1}
        (tmp_path / f"{name}.options").write_text(json.dumps(options))
    run_probes(tmp_path, 2, PROBE, "staged-cuda")
    for name in made:
        ranks = left(tmp_path, f"{name}.float32", 2)
        for step in range(test_autocast.STEPS):
            _, cast = test_autocast.reference(name, autocast=True)[step]
            losses, exact = test_autocast.reference(name, autocast=False)[step]
            parts = {
                key: g for rank in ranks for key, g in rank["steps"][step]["gradients"].items()
            }
            found = {key: joined(parts, key, whole) for key, whole in exact.items()}
            away = test_autocast.distance(found, exact)
            assert 0 < away < 2 * test_autocast.distance(cast, exact)
            for task, loss in losses.items():
                total = sum(rank["steps"][step]["losses"].get(task, 0.0) for rank in ranks)
                assert total == pytest.approx(loss, rel=0.02)


def test_a_run_takes_gpus_by_itself_and_its_spans_are_the_gpus() -> None:
    plan = tiny_plan("spindle", ranks=1)
    options = ExecutionOptions(iterations=4, clip_norm=1e9, timeout_s=60)
    execution = TorchBackend().execute(plan, options)
    timeline = execution.timeline
    assert timeline.backend == "torch-nccl"
    assert spans_do_not_overlap(timeline)
    assert timeline.iteration_s in execution.iterations_s[1:]
    computed = [span for span in timeline.spans if span.kind is Kind.COMPUTE]
    assert {name for own in order_of_slices(timeline).values() for name, _ in own} == {
        item.id for item in plan.slices
    }
    assert all(span.duration_s > 0 for span in computed)
    assert sum(span.duration_s for span in computed) <= timeline.iteration_s
    assert sum(span.phase is Phase.STEP for span in timeline.spans) == 1
    reference = Reference(plan.workload, torch.float32)
    for number, losses in enumerate(execution.losses):
        expected, _ = reference.step(number)
        assert losses == pytest.approx(expected, rel=1e-4)


def test_data_and_parameters_are_those_of_a_cpu_to_the_bit() -> None:
    workload = tiny_plan().workload
    drawn = []
    for device in (torch.device("cpu"), torch.device("cuda", 0)):
        data = DataSource(seed=1, step=2, dtype=torch.float32, device=device)
        drawer = Drawer(name="a", seed=1, dtype=torch.float32, device=device, rank=1, size=2)
        found = [drawer.normal("b", (64, 48), 0.1, divided=0).detach()]
        for site in sites(workload).values():
            found += [
                item
                for item in (data.inputs(site, 0, 3), data.targets(site, 0, 3))
                if item is not None
            ]
        assert {item.device for item in found} == {device}
        drawn.append(found)
    assert len(drawn[0]) > 2
    assert all(torch.equal(one, other.cpu()) for one, other in zip(*drawn, strict=True))


def test_training_goes_on_on_a_gpu_where_it_was_saved(tmp_path: Path) -> None:
    """AdamW's count of steps lies on the GPU; that all of it came back shows in the losses."""
    plan, folder = tiny_plan("spindle", ranks=1), str(tmp_path / "saved")
    whole = TorchBackend().execute(plan, ExecutionOptions(iterations=4, timeout_s=60))
    saves = ExecutionOptions(
        iterations=2, timeout_s=60, checkpoints=CheckpointOptions(folder=folder)
    )
    goes_on = ExecutionOptions(
        iterations=2, timeout_s=60, checkpoints=CheckpointOptions(resume=folder)
    )
    first, second = (TorchBackend().execute(plan, options) for options in (saves, goes_on))
    for losses, expected in zip((*first.losses, *second.losses), whole.losses, strict=True):
        assert losses == pytest.approx(expected, rel=1e-5)


def test_more_ranks_than_gpus_run_on_cpus_or_are_refused(tmp_path: Path) -> None:
    if GPUS > 3:
        pytest.skip("as many ranks take too long")
    plan = tiny_plan("uniform", ranks=GPUS + 1)
    notes: list[str] = []
    execution = launch(plan, ExecutionOptions(iterations=2), tell=notes.append)
    assert execution.timeline.backend == "torch-gloo"
    assert any(f"which see {GPUS} GPUs: all ranks run on CPUs" in note for note in notes)
    save_plan(plan, tmp_path / "plan.json")
    command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={GPUS + 1}"]
    command += ["-m", "spindle_torch", str(tmp_path / "plan.json"), "--device=cuda"]
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode
    assert "has no GPU of its own" in done.stderr


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", r"^rank 1: ArithmeticError in forward of .+: planted"),
        ("die", r"^rank 1: was killed by SIGKILL$"),
        ("stall", r"^rank 1: was still in forward of .+ when others had waited for too long$"),
    ],
)
@of_gpus(2)
def test_of_ranks_that_wait_in_nccl_the_cause_is_told(fault: str, message: str) -> None:
    options = ExecutionOptions(iterations=2, timeout_s=10)
    with pytest.raises(ExecutionError, match=message):
        launch(tiny_plan("uniform"), options, (FAULTY, fault, "mark"))


def test_a_users_modules_train_on_a_gpu(tmp_path: Path) -> None:
    script = tmp_path / "one_device.py"
    text = EXAMPLE.read_text(encoding="utf-8")
    assert "a800:1x2" in text
    script.write_text(text.replace("a800:1x2", "a800:1x1"), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stderr
    assert sum(line.startswith("step ") for line in done.stdout.split("\n")) == 5


def test_operators_and_steps_are_profiled_in_bf16() -> None:
    workload = tiny(builtin_workload("multitask-clip").with_first_tasks(2))
    wanted = probes(contract(workload), Estimator(parse_cluster("a800:1x1")))
    options = ProfilingOptions(device="cuda", dtype="bf16", budget_s=60.0)
    found = TorchProfiler().profile(wanted, options, lambda _: None, step_probes(workload))
    assert not found.skipped, [item.reason for item in found.skipped]
    assert found.device == torch.cuda.get_device_name()
    assert len(found.results) == len(wanted)
    assert found.optimizer
    for result in found.results:
        times = result.point.forward_s, result.point.backward_s
        assert all(0 < time_s < 0.1 and math.isfinite(time_s) for time_s in times)
