"""Starts the ranks that measure plans and their parts in turns; no torch in this process."""

import sys
import tempfile
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from spindle_sim.backend import ExecutionOptions, Validation
from spindle_sim.errors import ExecutionError, UsageError
from spindle_sim.estimate.probe import Probe, StepProbe
from spindle_sim.plan import Plan, load_plan, save_plan
from spindle_sim.plan.atomic import write_atomically
from spindle_torch.child import STEADY_MEMORY, run_child, tidy_end
from spindle_torch.encoding import from_json, to_json
from spindle_torch.outcome import first_cause, read_failures
from spindle_torch.requirements import check_requirements

__all__ = ["Task", "launch_turns", "read_task", "write_result"]

_TASK_NAME, _RESULT_NAME = "task", "result"
_MOST_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What all ranks are told alike, in files of the launcher's."""

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
    for plan in task.plans:
        check_requirements(plan, task.options, {})  # before anything starts
    with tidy_end(), tempfile.TemporaryDirectory(prefix="spindle-turns-") as name:
        folder = Path(name)
        _write_task(folder, task)
        command = [
            *STEADY_MEMORY,
            sys.executable,
            "-m",
            "spindle_torch.turns",
            str(folder),
        ]
        said = run_child(command, timeout_s=_MOST_S)
        result = folder / _RESULT_NAME
        if not result.exists():
            cause = first_cause(read_failures(folder))
            raise ExecutionError(f"the ranks couldn't be run: {cause or said}")
        return from_json(result.read_bytes(), Validation)


def read_task(folder: Path) -> Task:
    """Give the task that the launcher wrote.

    Raises:
        PlanError: a plan's file isn't what was written.
    """
    task = from_json((folder / _TASK_NAME).read_bytes(), Task)
    count = len(task.time_scales)
    return replace(task, plans=tuple(load_plan(_plan_file(folder, k)) for k in range(count)))


def write_result(folder: Path, found: Validation) -> None:
    """Leave the result where the launcher looks for it."""
    write_atomically(folder / _RESULT_NAME, to_json(found))


def _write_task(folder: Path, task: Task) -> None:
    for number, plan in enumerate(task.plans):
        save_plan(plan, _plan_file(folder, number))
    (folder / _TASK_NAME).write_bytes(to_json(replace(task, plans=())))


def _plan_file(folder: Path, number: int) -> Path:
    return folder / f"plan-{number}"
