"""Random plans run to their end on real processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_dozen_random_plans_run_to_their_end_on_four_ranks() -> None:
    command = [sys.executable, "-m", "benchmarks.runtime_no_hang", "--plans", "12", "--json"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["ended"], document["plans"]) == (12, 12)
