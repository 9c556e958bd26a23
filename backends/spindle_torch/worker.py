"""One rank of a run: joins the others, checks that all hold the same plan, runs iterations.

`python -m spindle_torch` is this, under the project's launcher or a user's own torchrun.
"""

import hashlib
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist

from spindle_sim.backend import Execution, ExecutionOptions
from spindle_sim.errors import ExecutionError, PlanError, UsageError
from spindle_sim.plan import Plan, dump_plan, load_plan, validate_plan
from spindle_sim.plan.atomic import write_atomically
from spindle_sim.timeline import Timeline
from spindle_torch.buckets import parameter_buckets
from spindle_torch.checkpoint import Saver, begin
from spindle_torch.clocks import shared_clock
from spindle_torch.emulation import Emulation
from spindle_torch.engine import Engine
from spindle_torch.events import Event, to_timeline
from spindle_torch.groups import Groups, make_groups
from spindle_torch.joining import Joined, join
from spindle_torch.model import Brought, CustomOperator
from spindle_torch.outcome import execution_to_json
from spindle_torch.progress import step_teller
from spindle_torch.requirements import AUTOCASTS, check_requirements, overlap_of
from spindle_torch.telling import all_gather_json, gather_json
from spindle_torch.training import Training, make_training
from spindle_torch.work import Work

__all__ = ["Situation", "WorkerOptions", "run_worker"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What every rank is told alike; `custom` by parameter set ("module/block").

    With `brought` the model is a user's own, and `custom` isn't looked at.
    """

    plan: Path
    execution: ExecutionOptions
    output: Path | None = None
    device: str = "auto"
    custom: Mapping[str, CustomOperator] = field(default_factory=dict)
    brought: Brought | None = None


@dataclass(slots=True)
class Situation:
    """Where a rank is, for whoever has to say why it failed."""

    rank: int = -1
    engine: Engine | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for others: before and between iterations, or within an instruction."""
        return self.engine is None or self.engine.is_waiting

    def __str__(self) -> str:
        if self.engine is None:
            return "the setup"
        return str(self.engine.current or "the begin of an iteration")


def run_worker(
    options: WorkerOptions,
    situation: Situation,
    wrap: Callable[[Work], Work] = lambda work: work,
    tell: Callable[[str], None] = lambda note: None,
) -> Execution | None:
    """Run this rank's part; rank 0 gives the result and writes it to `options.output`.

    `wrap` may put something around the work, such as a probe. `tell` gets what a user wants to know
    meanwhile, on rank 0.

    Raises:
        SpindleError: the plan or the options are wrong, or ranks don't agree.
    """
    plan = _read_plan(options.plan)
    shapes = None
    if options.brought is None:
        shapes = {name: item.shape for name, item in options.custom.items()}
    programs = check_requirements(plan, options.execution, shapes)
    joined = _join(options)
    device, situation.rank = joined.device, dist.get_rank()
    _check_ranks(plan, options)
    if joined.note and situation.rank == 0:
        tell(joined.note)
    groups = make_groups(plan, situation.rank, device, options.execution.timeout_s)
    work = _work(plan, groups, options, device)
    saver = None
    if isinstance(work, Training):
        saver = begin(work, options.execution, tell if situation.rank == 0 else lambda note: None)
    engine = Engine(
        plan=plan,
        program=programs[situation.rank],
        work=wrap(work),
        groups=groups,
        clock_s=shared_clock(situation.rank),
        clip_norm=math.inf if options.execution.clip_norm is None else options.execution.clip_norm,
    )
    situation.engine = engine
    execution = _iterate(plan, engine, options.execution, saver, tell)
    if execution is not None and options.output is not None:
        write_atomically(options.output, execution_to_json(execution).encode())
    dist.barrier()
    dist.destroy_process_group()
    return execution


def _read_plan(path: Path) -> Plan:
    plan = load_plan(path)
    violations = validate_plan(plan)
    if violations:
        raise PlanError(*(f"{path}: {item.rule}: {item.message}" for item in violations))
    return plan


def _join(options: WorkerOptions) -> Joined:
    emulates = options.execution.emulate
    if emulates and options.device == "cuda":
        raise UsageError(
            "--device cuda: an emulated run computes nothing, and its ranks wait as CPUs; leave one"
            " out"
        )
    return join("cpu" if emulates else options.device, options.execution.timeout_s)


def _check_ranks(plan: Plan, options: WorkerOptions) -> None:
    ranks, devices = dist.get_world_size(), plan.cluster.num_devices
    if ranks != devices:
        raise UsageError(
            f"the plan is for {devices} devices, {ranks} processes are running; start one for each"
            " device, or plan for another cluster"
        )
    own = (
        hashlib.sha256(dump_plan(plan).encode()).hexdigest(),
        torch.__version__,
        str(sorted(asdict(options.execution).items())),
    )
    held = all_gather_json(own, tuple[str, str, str])
    for place, what in enumerate(("plan", "version of torch", "set of options")):
        others = [str(rank) for rank, item in enumerate(held) if item[place] != held[0][place]]
        if others:
            raise ExecutionError(
                f"rank {', '.join(others)} has another {what} than rank 0; give all the same"
            )


def _work(plan: Plan, groups: Groups, options: WorkerOptions, device: torch.device) -> Work:
    execution = options.execution
    pool = tuple(item.group for item in parameter_buckets(plan, overlap_of(plan, execution)))
    if execution.emulate:
        return Emulation(
            plan=plan,
            rank=groups.rank,
            time_scale=execution.time_scale,
            pool=pool,
            device=device,
        )
    return make_training(
        plan,
        groups.rank,
        groups,
        seed=execution.seed,
        dtype=getattr(torch, execution.dtype),
        device=device,
        custom=options.custom,
        brought=options.brought,
        pool=pool,
        autocast=None
        if execution.autocast is None
        else getattr(torch, AUTOCASTS[execution.autocast]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Notes:
    """What one rank tells rank 0 of an iteration."""

    start_s: float
    events: tuple[Event, ...]
    losses: dict[str, float]


def _iterate(
    plan: Plan,
    engine: Engine,
    options: ExecutionOptions,
    saver: Saver | None,
    tell: Callable[[str], None],
) -> Execution | None:
    """Run the iterations; rank 0 gives what came of them."""
    backend = f"torch-{'nccl' if engine.work.device.type == 'cuda' else 'gloo'}"
    steps = range(options.iterations)
    if saver is not None:
        steps = range(saver.first_step, saver.last_step)
    after = step_teller(tell, steps, time.monotonic)
    timelines: list[Timeline] = []
    losses: list[dict[str, float]] = []
    for step in steps:
        start_s, events = engine.run_iteration(step)
        own = _Notes(start_s=start_s, events=tuple(events), losses=engine.work.losses())
        engine.is_waiting = True
        notes = gather_json(own, _Notes)
        if saver is not None:
            saver.after_step(step + 1)
        engine.is_waiting = False
        if notes is not None:
            timelines.append(
                to_timeline(
                    plan, backend, [item.events for item in notes], [n.start_s for n in notes]
                )
            )
            losses.append(_total(plan, [item.losses for item in notes]))
            after(step + 1, losses[-1])
    if not timelines:
        return None
    return Execution(
        timeline=_median(timelines),
        iterations_s=tuple(timeline.iteration_s for timeline in timelines),
        losses=tuple(losses),
        first_step=steps.start,
    )


def _total(plan: Plan, parts: list[dict[str, float]]) -> dict[str, float]:
    tasks = [task.name for task in plan.workload.tasks]
    known = {name for part in parts for name in part}
    return {name: sum(part.get(name, 0.0) for part in parts) for name in tasks if name in known}


def _median(timelines: list[Timeline]) -> Timeline:
    """Give the iteration of median duration; the first one warms up."""
    candidates = timelines[1:] or timelines
    middle_s = statistics.median_low(timeline.iteration_s for timeline in candidates)
    return next(timeline for timeline in candidates if timeline.iteration_s == middle_s)
