"""What a rank notes: in order, on its clock, and nothing where it isn't asked to."""

import json
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest
import torch

from spindle_sim.timeline import Kind, Phase
from spindle_torch.recorder import Recorder

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")


def ticking() -> Recorder:
    """A recorder whose clock goes on by a second each time it is read."""
    ticks = count(10)
    return Recorder(lambda: float(next(ticks)), CPU)


def test_a_span_lasts_from_its_mark_to_its_note() -> None:
    recorder = ticking()
    assert recorder.begin() == 10.0
    start = recorder.mark()
    recorder.note(Kind.COMPUTE, Phase.FORWARD, start, slice_id="s0", micro_batch=2)
    (event,) = recorder.events()
    assert (event.start_s, event.end_s, event.slice, event.micro_batch) == (11.0, 12.0, "s0", 2)


def test_a_new_iteration_forgets_the_last_one() -> None:
    recorder = ticking()
    recorder.begin()
    recorder.note(Kind.OPTIMIZER, Phase.STEP, recorder.mark())
    recorder.begin()
    assert recorder.events() == ()


def test_nothing_is_noted_without_tracing_and_the_clock_is_read_at_the_begin_alone() -> None:
    recorder = ticking()
    recorder.enabled = False
    assert recorder.begin() == 10.0
    recorder.note(Kind.COMPUTE, Phase.FORWARD, recorder.mark())
    assert recorder.events() == ()
    assert recorder.begin() == 11.0


@pytest.mark.slow
def test_the_overhead_benchmark_prints_shares_and_what_tracing_costs() -> None:
    command = [sys.executable, "-m", "benchmarks.runtime_overhead", "--json", "--iterations=3"]
    command += ["--workloads=multitask-clip", "--strategies=spindle", "--widths=2", "--tokens=2"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [case["ranks"] for case in document["cases"]] == [1, 2]
    for case in document["cases"]:
        assert 0 < case["engine_share"] < 0.5
        assert 0 < case["slice_s"] < case["iteration_s"]
        assert case["tracing"] > 0
    assert document["largest_engine_share"] >= document["median_engine_share"]
