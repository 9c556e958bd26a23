"""The example script trains, by itself and under a torchrun of the user's."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "examples" / "train_two_tasks.py"


def losses(*command: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, *command, str(SCRIPT)],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"simulated on A800s \d+\.\d ms", done.stdout)
    return [line for line in done.stdout.split("\n") if line.startswith("step ")]


@pytest.mark.slow
def test_the_example_trains_two_tasks_that_share_a_module() -> None:
    lines = losses()
    assert len(lines) == 5
    first, last = (
        [float(number) for number in re.findall(r"\d+\.\d+", line)]
        for line in (lines[0], lines[-1])
    )
    assert all(after < before for before, after in zip(first, last, strict=True))
    assert losses("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2") == lines


def test_the_example_is_about_thirty_lines() -> None:
    lines = SCRIPT.read_text(encoding="utf-8").split("\n")
    code = [line for line in lines if line.strip() and not line.strip().startswith('"""')]
    assert len(code) <= 35


@pytest.mark.slow
def test_ranks_that_begin_with_other_parameters_are_told(tmp_path: Path) -> None:
    script = tmp_path / "unseeded.py"
    text = SCRIPT.read_text(encoding="utf-8")
    script.write_text(text.replace("torch.manual_seed(0)", "torch.seed()"), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode
    assert "the model begins with other parameters than on rank 0" in done.stderr
