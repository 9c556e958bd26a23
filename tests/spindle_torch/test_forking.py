"""Ranks that are forks: they meet, and one that fails or dies is named and ends the others."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from spindle_torch.outcome import FailureKind, first_cause, read_failures
from tests.spindle_torch.processes import commands

PROGRAM = Path(__file__).with_name("forked.py")
SOON_S = 60.0  # importing torch on a busy host, and five seconds for the others to end


def run(folder: Path, fault: str) -> int:
    command = [sys.executable, str(PROGRAM), str(folder), fault]
    return subprocess.run(command, timeout=SOON_S, capture_output=True, check=False).returncode


def left_over(folder: Path) -> list[int]:
    name = str(folder).encode()
    return [pid for pid, (_, command) in commands().items() if name in command]


def test_forked_ranks_meet_and_end(tmp_path: Path) -> None:
    assert run(tmp_path, "none") == 0
    assert [(tmp_path / f"sum-{rank}").read_text() for rank in range(3)] == ["9"] * 3
    assert read_failures(tmp_path) == ()


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        ("raises", FailureKind.RAISED, "the second rank is wrong"),
        ("dies", FailureKind.DIED, "was killed by SIGKILL"),
    ],
)
def test_a_forked_rank_that_fails_is_the_cause(
    tmp_path: Path, fault: str, kind: FailureKind, said: str
) -> None:
    assert run(tmp_path, fault) == 5
    cause = first_cause(read_failures(tmp_path))
    assert cause is not None
    assert (cause.rank, cause.kind, cause.message) == (1, kind, said)
    assert left_over(tmp_path) == []


def test_forked_ranks_end_with_their_parent(tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), str(tmp_path), "none"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as parent:
        until_s = time.monotonic() + SOON_S
        while len(left_over(tmp_path)) < 4 and parent.poll() is None:
            assert time.monotonic() < until_s, "no ranks"
            time.sleep(0.001)
        parent.terminate()
        parent.wait(SOON_S)
    until_s = time.monotonic() + SOON_S
    while left_over(tmp_path):
        assert time.monotonic() < until_s, "ranks are left"
        time.sleep(0.05)
