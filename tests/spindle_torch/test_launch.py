"""Runs through torchrun: what comes back, and how runs end in which a rank fails."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from spindle_sim import simulate
from spindle_sim.backend import ExecutionOptions, find_executor
from spindle_sim.errors import ExecutionError, UsageError
from spindle_sim.plan import Plan, save_plan
from spindle_sim.timeline import Kind, Timeline
from spindle_torch import TorchBackend
from spindle_torch.compilation import compile_plan
from spindle_torch.launch import launch
from spindle_torch.program import Batch
from tests.spindle_torch.plans import tiny_plan
from tests.spindle_torch.processes import marked, ranks_of, wait_for
from tests.stated_plans import two_task_plan

FAULTY = str(Path(__file__).parent / "faulty.py")
ENDS_WITHIN_S = 40  # seconds on an idle machine, most of them for starting


def spans_do_not_overlap(timeline: Timeline) -> bool:
    """Tell whether each device did one thing at a time."""
    for device in range(timeline.num_devices):
        own = [span for span in timeline.spans if span.device == device]
        if any(one.end_s > two.start_s for one, two in pairwise(own)):
            return False
    return True


def order_of_slices(timeline: Timeline) -> dict[int, list[tuple[str, str]]]:
    found: dict[int, list[tuple[str, str]]] = {}
    for span in sorted(timeline.spans, key=lambda span: (span.start_s, span.end_s)):
        if span.kind is Kind.COMPUTE:
            found.setdefault(span.device, []).append((span.slice, str(span.phase)))
    return found


def only_receives(plan: Plan) -> Counter[int]:
    """Count each rank's batches of messages in which it sends nothing."""
    return Counter(
        program.rank
        for program in compile_plan(plan)
        for item in program.instructions
        if isinstance(item, Batch) and not item.sends
    )


@pytest.mark.slow
def test_a_run_gives_losses_and_the_simulators_order_on_every_device() -> None:
    plan = tiny_plan()
    backend = find_executor("torch")
    assert isinstance(backend, TorchBackend)
    execution = backend.execute(plan, ExecutionOptions(iterations=4, clip_norm=0.5, timeout_s=60))
    assert len(execution.iterations_s) == len(execution.losses) == 4
    assert execution.timeline.iteration_s in execution.iterations_s[1:]
    first, *_, last = execution.losses
    assert list(first) == [task.name for task in plan.workload.tasks]
    assert all(loss != first[task] for task, loss in last.items()), "nothing was learned"
    timeline = execution.timeline
    assert timeline.backend == "torch-gloo"
    assert order_of_slices(timeline) == order_of_slices(simulate(plan))
    assert spans_do_not_overlap(timeline)
    assert all(0 <= span.start_s <= span.end_s for span in timeline.spans)
    assert all(0 <= span.wait_s <= span.duration_s for span in timeline.spans)


@pytest.mark.slow
def test_emulation_keeps_the_plans_time_and_finds_every_sample_in_its_place() -> None:
    """Two tasks on eight ranks, tp 2, a frozen module, four devices giving to two and back."""
    plan = two_task_plan()
    options = ExecutionOptions(iterations=2, emulate=True, time_scale=0.02, timeout_s=60)
    execution = TorchBackend().execute(plan, options)
    simulated_s = 0.02 * simulate(plan, network=False).iteration_s
    assert execution.timeline.iteration_s >= 0.99 * simulated_s
    assert order_of_slices(execution.timeline) == order_of_slices(simulate(plan))
    posted = Counter(
        span.device
        for span in execution.timeline.spans
        if span.kind is Kind.RECEIVE and not span.bytes
    )
    assert posted
    assert posted == only_receives(plan), "posting a receive takes time, too"
    planned = plan.slice_by_id()
    computed = [span for span in execution.timeline.spans if span.kind is Kind.COMPUTE]
    for device in {span.device for span in computed}:
        own = [span for span in computed if span.device == device]
        # A slice may be shorter by what the one before it was too long; all together are not.
        planned_s = sum(
            planned[span.slice].forward_s
            if span.phase == "forward"
            else planned[span.slice].backward_s
            for span in own
        )
        assert own[-1].end_s - own[0].start_s >= 0.02 * planned_s > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", r"^rank 1: ArithmeticError in forward of .+: planted \(faulty.py:\d+\)$"),
        ("die", r"^rank 1: was killed by SIGKILL$"),
        ("stall", r"^rank 1: was still in forward of .+ when others had waited for too long$"),
        ("freeze", r"^rank 1: didn't go on, and couldn't be ended but by SIGKILL$"),
        ("other-plan", r"^rank 1 has another plan than rank 0; give all the same$"),
    ],
)
def test_a_run_in_which_a_rank_fails_ends_in_seconds_with_the_cause(
    fault: str, message: str
) -> None:
    options = ExecutionOptions(iterations=2, timeout_s=5)
    mark, begun_s = f"mark-{uuid.uuid4()}", time.monotonic()
    with pytest.raises(ExecutionError, match=message):
        launch(tiny_plan("uniform"), options, (FAULTY, fault, mark))
    assert time.monotonic() - begun_s < ENDS_WITHIN_S
    assert not marked(mark), "a rank is left"


@pytest.mark.slow
def test_the_ranks_of_a_killed_launcher_end_with_it(tmp_path: Path) -> None:
    plan = tiny_plan("uniform")
    path = tmp_path / "plan.json"
    save_plan(plan, path)
    program = (
        "import sys; from spindle_sim.plan import load_plan; from spindle_torch import *;"
        "from spindle_sim.backend import ExecutionOptions;"
        "TorchBackend().execute(load_plan(sys.argv[1]),"
        " ExecutionOptions(emulate=True, iterations=1000, time_scale=1000.0))"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(path)])
    ranks = wait_for(lambda: ranks_of(process.pid), count=plan.cluster.num_devices)
    process.kill()
    process.wait()
    wait_for(lambda: {pid for pid in ranks if Path(f"/proc/{pid}/cmdline").exists()}, count=0)


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_told_to_end_leaves_no_ranks_and_no_files(
    tmp_path: Path, ending: signal.Signals
) -> None:
    path, temporary = tmp_path / "plan.json", tmp_path / "temporary"
    save_plan(tiny_plan("uniform"), path)
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "spindle_sim", "run", str(path), "--iterations", "100000"],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.DEVNULL,
    )
    ranks = wait_for(lambda: ranks_of(process.pid), count=2)
    process.send_signal(ending)
    assert process.wait(30) == 128 + ending
    wait_for(lambda: {pid for pid in ranks if Path(f"/proc/{pid}/cmdline").exists()}, count=0)
    assert not list(temporary.glob("spindle-*"))


@pytest.mark.parametrize("ends_with", [0, 1])
def test_ranks_leave_nothing_among_the_temporary_files(tmp_path: Path, ends_with: int) -> None:
    folder, temporary = tmp_path / "run", tmp_path / "temporary"
    folder.mkdir()
    temporary.mkdir()
    rank = tmp_path / "rank.py"
    rank.write_text(f"raise SystemExit({ends_with})")
    command = [sys.executable, "-m", "spindle_torch.agent", str(folder), "--standalone"]
    done = subprocess.run(
        [*command, "--local-addr=127.0.0.1", "--nproc-per-node=1", str(rank)],
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode != 0) == (ends_with != 0), done.stderr
    assert list(temporary.iterdir()) == []


def test_a_plan_is_not_run_by_what_only_simulates() -> None:
    with pytest.raises(UsageError, match="backend 'simulator' simulates"):
        find_executor("simulator")
    with pytest.raises(UsageError, match="did you mean 'torch'"):
        find_executor("touch")
