"""From flags to data: which workload, which strategies, which placement."""

from pathlib import Path
from typing import TYPE_CHECKING

from spindle_sim.errors import InputError, UsageError, suggestion

if TYPE_CHECKING:
    from spindle_sim.estimate import Profile
    from spindle_sim.workload import Workload

__all__ = [
    "PLACEMENTS",
    "check_placement",
    "exists",
    "read_profile",
    "read_strategies",
    "read_workload",
]

_MAX_DIGITS = 30
_BEGIN_BYTES = 1000
PLACEMENTS = ("spindle", "sequential")


def read_workload(
    name: str, tasks: str | None, batch_scale: float, *, tiny: bool = False
) -> "Workload":
    """Give the built-in workload or the one in the file, cut down to `tasks`, its batches scaled.

    `tiny` shrinks it until it trains on a laptop.

    Raises:
        UsageError: no workload has that name, or it has no such tasks.
        InputError: the file is wrong.
    """
    from spindle_sim.workload import BUILTIN_WORKLOADS, builtin_workload, load_workload

    if name in BUILTIN_WORKLOADS:
        workload = builtin_workload(name)
    elif not name.strip():
        raise UsageError(f"workload {name!r}: expected a built-in workload or a file")
    elif exists(name) or "/" in name or Path(name).suffix in {".yaml", ".yml"}:
        _refuse_plan(name)
        workload = load_workload(Path(name))
    else:
        hint = suggestion(name, BUILTIN_WORKLOADS)
        raise UsageError(f"{name[:200]!r} is neither a built-in workload nor a file; {hint}")
    if tasks is not None:
        workload = _with_tasks(workload, tasks)
    if batch_scale != 1.0:
        workload = _with_batch_scale(workload, batch_scale)
    if not tiny:
        return workload
    from spindle_sim.workload.tiny import tiny as shrunk

    return shrunk(workload)


def _refuse_plan(path: str) -> None:
    """Point whoever gives a plan for a workload to what takes plans.

    Raises:
        InputError: the file is a plan, by its first lines.
    """
    try:
        with Path(path).open("rb") as stream:
            begin = stream.read(_BEGIN_BYTES)
    except (OSError, ValueError):
        return  # whoever reads it says so
    if begin.lstrip().startswith(b"{") and b'"strategy"' in begin and b'"inputs"' in begin:
        raise InputError(f"{path:.200}: is a plan, not a workload: give it to `spindle simulate`")


def exists(path: str) -> bool:
    """Tell whether there is a file of that name; of one that can't be, there is none."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


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


def _with_batch_scale(workload: "Workload", scale: float) -> "Workload":
    try:
        return workload.with_batch_scale(scale)
    except InputError as error:  # the workload was right: it is the flag that isn't
        raise UsageError(f"--batch-scale: {error}") from error


def _with_tasks(workload: "Workload", tasks: str) -> "Workload":
    from spindle_sim.units import counted

    known = [task.name for task in workload.tasks]
    digits = tasks.lstrip("+-")
    if digits.isdecimal():
        if len(digits) > _MAX_DIGITS or not 1 <= int(tasks) <= len(known):
            raise UsageError(
                f"--tasks {tasks:.40}: {workload.name} has {counted(len(known), 'task')}"
            )
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
