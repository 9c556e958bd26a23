"""Random plans run to their end, and pipelines with buckets in which a rank fails: in seconds."""

import json
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from spindle_sim import parse_cluster
from spindle_sim.backend import ExecutionOptions
from spindle_sim.errors import ExecutionError
from spindle_sim.plan import Order, Plan
from spindle_sim.planner.strategies.parallel import ParallelConfig, parallel_plan
from spindle_torch.compilation import compile_plan
from spindle_torch.launch import launch
from spindle_torch.program import Launch
from spindle_torch.requirements import overlap_of
from tests.spindle_torch.processes import marked
from tests.spindle_torch.test_micro_batches import text_model

ROOT = Path(__file__).parents[2]
FAULTY = str(Path(__file__).parent / "faulty.py")
ENDS_WITHIN_S = 40  # seconds on an idle machine, most of them for starting


@pytest.mark.slow
def test_a_dozen_random_plans_run_to_their_end_on_four_ranks() -> None:
    command = [sys.executable, "-m", "benchmarks.runtime_no_hang", "--plans", "12", "--json"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["ended"], document["plans"]) == (12, 12)


def pipeline() -> Plan:
    """Give a language model in two stages, four micro-batches of which are in flight by turns."""
    config = ParallelConfig(tp=1, pp=2, dp=1, micro_batch=4)
    return parallel_plan(text_model(4), parse_cluster("a800:1x2"), {"t": config})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", r"^rank 1: ArithmeticError in forward of .+: planted \(faulty.py:\d+\)$"),
        ("die", r"^rank 1: was killed by SIGKILL$"),
        ("other-plan", r"^rank 1 has another plan than rank 0; give all the same$"),
    ],
)
def test_a_pipeline_with_buckets_in_which_a_rank_fails_ends_in_seconds_with_the_cause(
    fault: str, message: str
) -> None:
    plan = pipeline()
    options = ExecutionOptions(iterations=2, timeout_s=5, overlap_sync=True, bucket_mb=0.001)
    assert [(item.micro_batches, item.order) for item in plan.rounds] == [
        (4, Order.ONE_FORWARD_ONE_BACKWARD)
    ]
    programs = compile_plan(plan, overlap=overlap_of(plan, options))
    assert all(any(isinstance(item, Launch) for item in own.instructions) for own in programs)
    mark, begun_s = f"mark-{uuid.uuid4()}", time.monotonic()
    with pytest.raises(ExecutionError, match=message):
        launch(plan, options, (FAULTY, fault, mark))
    assert time.monotonic() - begun_s < ENDS_WITHIN_S
    assert not marked(mark), "a rank is left"
