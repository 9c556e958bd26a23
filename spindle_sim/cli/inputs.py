"""From flags to data: which workload, which strategies, which placement."""

from pathlib import Path
from typing import TYPE_CHECKING

from spindle_sim.errors import UsageError, suggestion

if TYPE_CHECKING:
    from spindle_sim.estimate import Profile
    from spindle_sim.workload import Workload

__all__ = ["PLACEMENTS", "check_placement", "read_profile", "read_strategies", "read_workload"]

PLACEMENTS = ("spindle", "sequential")


def read_workload(name: str, tasks: str | None, batch_scale: float) -> "Workload":
    """Give the built-in workload or the one in the file, cut down to `tasks`, its batches scaled.

    Raises:
        UsageError: no workload has that name, or it has no such tasks.
        InputError: the file is wrong.
    """
    from spindle_sim.workload import BUILTIN_WORKLOADS, builtin_workload, load_workload

    if name in BUILTIN_WORKLOADS:
        workload = builtin_workload(name)
    elif Path(name).exists() or "/" in name or Path(name).suffix in {".yaml", ".yml"}:
        workload = load_workload(Path(name))
    else:
        hint = suggestion(name, BUILTIN_WORKLOADS)
        raise UsageError(f"{name!r} is neither a built-in workload nor a file; {hint}")
    if tasks is not None:
        workload = _with_tasks(workload, tasks)
    return workload if batch_scale == 1.0 else workload.with_batch_scale(batch_scale)


def read_profile(path: str | None) -> "Profile | None":
    """Give the profile in the file; None without one, where all times are modelled.

    Raises:
        InputError: the file is wrong.
    """
    if path is None:
        return None
    from spindle_sim.estimate import load_profile

    return load_profile(path)


def read_strategies(text: str | None, option: str = "--strategies") -> tuple[str, ...]:
    """Give the strategies named, in that order; all of them without a name.

    Raises:
        UsageError: a name is no strategy, or is given twice, or there is none.
    """
    from spindle_sim.planner import STRATEGIES

    if text is None:
        return tuple(STRATEGIES)
    names = _names(text, option)
    unknown = [
        f"{option} {text}: no strategy {name!r}; {suggestion(name, STRATEGIES)}"
        for name in names
        if name not in STRATEGIES
    ]
    if unknown:
        raise UsageError(*unknown)
    return names


def check_placement(name: str) -> str:
    """Give the name of the placement back.

    Raises:
        UsageError: there is no such placement.
    """
    if name not in PLACEMENTS:
        raise UsageError(f"--placement {name}: {suggestion(name, PLACEMENTS)}")
    return name


def _with_tasks(workload: "Workload", tasks: str) -> "Workload":
    known = [task.name for task in workload.tasks]
    if tasks.lstrip("+-").isdecimal():
        if not 1 <= int(tasks) <= len(known):
            raise UsageError(f"--tasks {tasks}: {workload.name} has {len(known)} tasks")
        return workload.with_first_tasks(int(tasks))
    names = _names(tasks, "--tasks")
    unknown = [
        f"--tasks {tasks}: {workload.name} has no task {name!r}; {suggestion(name, known)}"
        for name in names
        if name not in known
    ]
    if unknown:
        raise UsageError(*unknown)
    return workload.with_tasks(names)


def _names(text: str, option: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    if "" in names:
        raise UsageError(f"{option} {text!r}: expected names with commas between them")
    if len(set(names)) < len(names):
        raise UsageError(f"{option} {text}: a name is given twice")
    return names
