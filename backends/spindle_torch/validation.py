"""Starts the ranks that measure plans and their parts in turns; no torch in this process."""

import pickle
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from spindle_sim.backend import ExecutionOptions, Validation
from spindle_sim.errors import ExecutionError, UsageError
from spindle_sim.estimate.probe import Probe, StepProbe
from spindle_sim.plan import Plan
from spindle_torch.child import STEADY_MEMORY, run_child, tidy_end
from spindle_torch.outcome import first_cause, read_failures
from spindle_torch.requirements import check_requirements

__all__ = ["Task", "launch_turns"]

_MOST_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What all ranks are told alike, in a file of the launcher's, with their programs."""

    plans: tuple[Plan, ...]
    probes: tuple[Probe, ...]
    steps: tuple[StepProbe, ...]
    options: ExecutionOptions
    num_ranks: int
    time_scales: tuple[float, ...]  # of each plan, if it is emulated


def launch_turns(task: Task) -> Validation:
    """Measure in so many processes of this host.

    Raises:
        UsageError: torch isn't installed.
        InputError: a plan wants what this backend can't do.
        ExecutionError: a rank failed.
    """
    if find_spec("torch") is None:
        raise UsageError("running a plan needs torch: pip install 'spindle-sim[torch]'")
    # Once for all ranks, which then share them.
    programs = [check_requirements(plan, task.options, {}) for plan in task.plans]
    with tidy_end(), tempfile.TemporaryDirectory(prefix="spindle-turns-") as name:
        folder = Path(name)
        (folder / "task").write_bytes(pickle.dumps((task, programs)))
        command = [
            *STEADY_MEMORY,
            sys.executable,
            "-m",
            "spindle_torch.turns",
            str(folder),
        ]
        said = run_child(command, timeout_s=_MOST_S)
        result = folder / "result"
        if not result.exists():
            cause = first_cause(read_failures(folder))
            raise ExecutionError(f"the ranks couldn't be run: {cause or said}")
        found: Validation = pickle.loads(result.read_bytes())  # our own ranks'
        return found
