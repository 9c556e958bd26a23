"""The seam between plans and what runs them: a plan in, a timeline out.

Backends are found through the entry point group `spindle_sim.backends`, so that nothing here
depends on what they need.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Protocol, runtime_checkable

from spindle_sim.errors import UsageError, suggestion
from spindle_sim.estimate.probe import Probe, Profiling, StepProbe
from spindle_sim.plan import Plan
from spindle_sim.timeline import Timeline

__all__ = [
    "Backend",
    "CheckpointOptions",
    "Execution",
    "ExecutionOptions",
    "Executor",
    "Profiler",
    "ProfilingOptions",
    "Validation",
    "Validator",
    "find_backend",
    "find_executor",
    "find_profiler",
    "find_validator",
]

_GROUP = "spindle_sim.backends"
_PROFILERS = "spindle_sim.profilers"


class Backend(Protocol):
    """Runs a valid plan for one iteration."""

    name: str

    def run(self, plan: Plan) -> Timeline:
        """Give what happened."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOptions:
    """Where training is saved to and goes on from; paths to folders.

    Into `folder` at the end, after `every` so many steps too, of which the latest `keep` stay (all
    if None). `resume` is such a folder or one checkpoint in it. `until_step` ends the run after
    that step, counted from the very first, whatever `iterations` are.
    """

    folder: str | None = None
    every: int | None = None
    keep: int | None = None
    resume: str | None = None
    until_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionOptions:
    """How a plan is executed on real devices.

    With `emulate` each slice's computation is replaced by waiting for `time_scale` times its
    planned time; messages and groups are real. With `autocast` ("bf16") layers compute, and
    activations travel, in that precision; parameters keep `dtype`. Gradients whose norm over all
    ranks is above `clip_norm` are scaled to it. With `overlap_sync` they are synchronized in
    buckets of `bucket_mb` megabytes while the backward still runs. No message or collective may
    take `timeout_s`.
    """

    iterations: int = 3
    emulate: bool = False
    time_scale: float = 1.0
    dtype: str = "float32"
    autocast: str | None = None
    seed: int = 0
    clip_norm: float | None = None
    overlap_sync: bool = False
    bucket_mb: float = 100.0
    timeout_s: float = 120.0
    checkpoints: CheckpointOptions = CheckpointOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What came of it: the iteration of median duration, all durations, losses by task.

    The first iteration, which warms up, is no candidate where there are others. Emulated runs have
    no losses. `first_step` is how many steps earlier runs had done.
    """

    timeline: Timeline
    iterations_s: tuple[float, ...]
    losses: tuple[dict[str, float], ...]
    first_step: int = 0


@runtime_checkable
class Executor(Protocol):
    """A backend that runs plans on real devices, a process for each."""

    name: str

    def execute(self, plan: Plan, options: ExecutionOptions) -> Execution:
        """Run some iterations of a valid plan.

        Raises:
            ExecutionError: a process failed; it says which one and why.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """What plans took, and what their parts took beside them, over all rounds and in each.

    `rounds` are what each rank measured in each round; of what ranks do together all have the same.
    Without probes there is no profiling. Executions have no losses.
    """

    executions: tuple[Execution, ...]
    profiling: Profiling | None = None
    rounds: tuple[tuple[Profiling, ...], ...] = ()


@runtime_checkable
class Validator(Protocol):
    """A backend that measures plans and their parts in turns, in the same processes."""

    name: str

    def validate(
        self,
        plans: Sequence[Plan],
        probes: Sequence[Probe],
        steps: Sequence[StepProbe],
        options: ExecutionOptions,
        *,
        num_processes: int,
        time_scales: Sequence[float] = (),
    ) -> Validation:
        """Measure each probe, step and link, then an iteration of each plan, `iterations` times.

        One more round before that warms up. All ranks measure a probe at once, as they compute at
        once in a run. Emulated plans have no probes; `time_scales` are those of each of them, where
        they aren't all `options.time_scale`.

        Raises:
            UsageError, InputError, ExecutionError: as `Executor.execute`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilingOptions:
    """How operators are measured: on what, how long in all, and links between how many processes.

    `num_processes` of 1 leaves links out.
    """

    device: str = "cpu"
    dtype: str = "float32"
    budget_s: float = 300.0
    num_processes: int = 1


class Profiler(Protocol):
    """Measures operators on the device at hand; registered in `spindle_sim.profilers`."""

    name: str

    def profile(
        self,
        probes: Sequence[Probe],
        options: ProfilingOptions,
        advance: Callable[[str], None],
        steps: Sequence[StepProbe] = (),
    ) -> Profiling:
        """Measure steps and probes, which come smallest first; `advance` is told each one's name.

        Raises:
            UsageError: what it needs isn't installed, or there is no such device or dtype.
            ExecutionError: the processes that measure links failed.
        """
        ...


def find_profiler(name: str) -> Profiler:
    """Give the profiler that is registered under a name.

    Raises:
        UsageError: there is none of that name.
    """
    found = entry_points(group=_PROFILERS)
    if name not in found.names:
        raise UsageError(f"no profiler {name!r} is installed; {suggestion(name, found.names)}")
    profiler: Profiler = found[name].load()()
    return profiler


def find_backend(name: str) -> Backend:
    """Give the backend that is registered under a name.

    Raises:
        UsageError: there is none of that name.
    """
    found = entry_points(group=_GROUP)
    if name not in found.names:
        raise UsageError(f"no backend {name!r} is installed; {suggestion(name, found.names)}")
    backend: Backend = found[name].load()()
    return backend


def find_executor(name: str) -> Executor:
    """Give the backend that is registered under a name.

    Raises:
        UsageError: there is none of that name, or it doesn't execute plans.
    """
    backend: object = find_backend(name)
    if not isinstance(backend, Executor):
        raise UsageError(f"backend {name!r} simulates: it has no processes to run a plan on")
    return backend


def find_validator(name: str) -> Validator:
    """Give the backend that is registered under a name, if it can measure plans and parts in turns.

    Raises:
        UsageError: there is none of that name, or it can't.
    """
    backend: object = find_executor(name)
    if not isinstance(backend, Validator):
        raise UsageError(f"backend {name!r} executes plans, but doesn't measure their parts")
    return backend
