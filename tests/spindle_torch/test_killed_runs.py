"""Runs in which a rank is killed end at once, and go on from their last whole checkpoint."""

import os
import random
import re
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spindle_sim.backend import CheckpointOptions, Execution, ExecutionOptions
from spindle_sim.errors import ExecutionError
from spindle_torch.checkpoint_folder import find_checkpoint, steps_in
from spindle_torch.launch import launch
from tests.spindle_torch.plans import tiny_plan
from tests.spindle_torch.processes import commands, ranks_of
from tests.spindle_torch.saving import whole_tensors

RANKS = 2
CALLS_OF_THREE_STEPS = 250  # about: so that no run comes far
KILLED = re.compile(r"rank \d+: was killed by SIGKILL; (.+ is whole: go on with --resume .+|no .+)")
ENDS_WITHIN_S = 60  # after the kill, on a busy machine
FOR_EVER = 10**6
ENTRY = ("-m", "spindle_torch")


def go_on(folder: Path, until_step: int, entry: Sequence[str] = ENTRY) -> Execution:
    """Run from the last whole checkpoint, if there is one; save after each step."""
    options = ExecutionOptions(
        dtype="float64",
        timeout_s=60,
        checkpoints=CheckpointOptions(
            folder=str(folder),
            every=1,
            resume=str(folder) if steps_in(folder) else None,
            until_step=until_step,
        ),
    )
    return launch(tiny_plan("uniform", RANKS), options, entry, tell=lambda note: None)


def of_folder(folder: Path) -> set[int]:
    """Give the processes that a run in this folder started."""
    return {pid for pid, (_, line) in commands().items() if str(folder).encode() in line}


def kill_by_hook(folder: Path, rng: random.Random, where: str) -> None:
    """Have a random rank kill itself at a random call."""
    last = rng.randint(1, CALLS_OF_THREE_STEPS if where == "work" else 5)
    killing = str(Path(__file__).parent / "killing.py")
    with pytest.raises(ExecutionError, match=KILLED):
        go_on(folder, FOR_EVER, (killing, str(rng.randrange(RANKS)), where, str(last)))


def kill_by_clock(folder: Path, rng: random.Random) -> None:
    """Kill a random rank a random time after it was started."""
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(go_on, folder, FOR_EVER)
        while len(ranks := sorted(ranks_of(os.getpid()))) < RANKS:
            assert not run.done(), run.exception()
            time.sleep(0.05)
        time.sleep(rng.uniform(0, 8))
        os.kill(rng.choice(ranks), signal.SIGKILL)
        killed_s = time.monotonic()
        error = run.exception(timeout=120)
    assert isinstance(error, ExecutionError), error
    assert KILLED.fullmatch(str(error)), error
    assert time.monotonic() - killed_s < ENDS_WITHIN_S


@pytest.mark.slow
def test_a_run_killed_at_ten_random_moments_reaches_what_an_unbroken_one_does(
    tmp_path: Path,
) -> None:
    broken, unbroken = tmp_path / "broken", tmp_path / "unbroken"
    rng = random.Random(20)
    moments = ["work"] * 3 + ["disk"] * 4 + ["clock"] * 3
    rng.shuffle(moments)
    for where in moments:
        if where == "clock":
            kill_by_clock(broken, rng)
        else:
            kill_by_hook(broken, rng, where)
        assert not of_folder(broken), "a process of the killed run is still there"
    reached = find_checkpoint(broken).index.progress.step
    last = go_on(broken, reached + 2)
    straight = go_on(unbroken, reached + 2)
    assert (last.first_step, straight.first_step) == (reached, 0)
    assert last.losses == straight.losses[reached:]
    ours, theirs = (whole_tensors(each / f"step-{reached + 2}") for each in (broken, unbroken))
    assert ours.keys() == theirs.keys()
    assert all(ours[key].equal(theirs[key]) for key in ours)
