"""Trains a split model by a plan, from the user's own script."""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from spindle_sim.backend import Execution, ExecutionOptions
from spindle_sim.errors import UsageError
from spindle_sim.plan import Plan, load_plan, save_plan
from spindle_sim.units import counted
from spindle_torch.api.arguments import kind_of
from spindle_torch.api.assignment import ASSIGNMENT, Assignment
from spindle_torch.api.brought import BroughtModel, check_plan
from spindle_torch.api.splitting import SplitModel
from spindle_torch.launch import launch
from spindle_torch.requirements import check_requirements
from spindle_torch.worker import Situation, WorkerOptions, run_worker

__all__ = ["precision_notes", "train"]


def train(
    split: SplitModel, plan: Plan, *, steps: int, options: ExecutionOptions | None = None
) -> Execution | None:
    """Run `steps` training steps with a process for each device of the plan.

    Under torchrun this process is one of them, and rank 0 alone is given what came of it.
    Otherwise torchrun is started here, with a process for each device: each runs this process's
    script up to this call and no further. So the script must build the same model, with the same
    initial parameters, wherever it runs: seed torch first.

    Raises:
        PlanError: the plan is for another model, divides modules by tensor parallelism, or has what
            is only simulated.
        UsageError: an argument or an option isn't what it must be, or there is no script that ranks
            could run.
        ExecutionError: a rank failed; it says which one and why.
    """
    _check_arguments(split, plan, steps, options)
    options = replace(options or ExecutionOptions(), iterations=steps)
    check_plan(split, plan)
    check_requirements(plan, options, None)
    assignment = ASSIGNMENT.get()
    if assignment is not None:
        _run_assigned(split, assignment)
        sys.exit(0)  # what follows is for the process that started this one
    if dist.is_torchelastic_launched():
        return _own_losses(split, _run_rank(split, plan, options))
    script = getattr(sys.modules["__main__"], "__file__", None)
    if script is None:
        raise UsageError(
            "train() has its ranks run this program's script, and there is none; put the code into"
            " a file and run that"
        )
    for note in precision_notes(split, options.dtype):
        _tell(note)
    # Ranks load torch and build the model for seconds before the first of them says anything.
    ranks = counted(plan.cluster.num_devices, "rank")
    _tell(f"starting {ranks}, each of which runs {Path(script).name} up to train()")
    entry = ("-m", "spindle_torch.api.rank", str(script), *sys.argv[1:], "--")
    return _own_losses(split, launch(plan, options, entry))


def precision_notes(split: SplitModel, dtype: str) -> list[str]:
    """Say which parameters are trained in less precision than they have."""
    exact = [
        name
        for name, item in split.parameters.items()
        if item.requires_grad and item.dtype == torch.float64
    ]
    if dtype == "float64" or not exact:
        return []
    return [
        f"{exact[0]} and others are of float64, and are trained in {dtype}; for float64 give"
        ' options=ExecutionOptions(dtype="float64")'
    ]


def _check_arguments(split: object, plan: object, steps: object, options: object) -> None:
    mistakes: list[str] = []
    if not isinstance(split, SplitModel):
        mistakes.append(f"the model is {kind_of(split)}; give what split_tasks gives")
    if not isinstance(plan, Plan):
        mistakes.append(
            f"the plan is {kind_of(plan)}; give what make_plan gives, or load_plan(file)"
        )
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        mistakes.append(f"steps {steps!r:.60} is no whole number above 0")
    if options is not None and not isinstance(options, ExecutionOptions):
        mistakes.append(f"options are {kind_of(options)}; give ExecutionOptions(...)")
    if mistakes:
        raise UsageError(*(f"train: {mistake}" for mistake in mistakes))


def _run_assigned(split: SplitModel, assignment: Assignment) -> None:
    check_plan(split, load_plan(assignment.options.plan))
    options = replace(assignment.options, brought=BroughtModel(split=split))
    run_worker(options, assignment.situation, assignment.wrap, assignment.tell)


def _run_rank(split: SplitModel, plan: Plan, options: ExecutionOptions) -> Execution | None:
    with tempfile.TemporaryDirectory(prefix="spindle-rank-") as folder:
        path = Path(folder) / "plan"
        save_plan(plan, path)
        brought = BroughtModel(split=split)
        worker = WorkerOptions(plan=path, execution=options, brought=brought)
        return run_worker(worker, Situation(), tell=_tell)


def _tell(note: str) -> None:
    sys.stderr.write(f"note: {note}\n")
    sys.stderr.flush()


def _own_losses(split: SplitModel, execution: Execution | None) -> Execution | None:
    """Give the losses as the tasks have them: not weighted."""
    if execution is None:
        return None
    weights = {task.name: task.loss_weight for task in split.tasks}
    losses = tuple(
        {task: loss / weights[task] if weights[task] else loss for task, loss in step.items()}
        for step in execution.losses
    )
    return replace(execution, losses=losses)
