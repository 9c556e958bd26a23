"""One rank of a validation: parts and plans are measured in turns, so that drift hits both alike.

`python -m spindle_torch.turns FOLDER` forks the ranks. In each round all ranks run every probe
at once, then the optimizer steps, messages and collectives, then an iteration of each plan. The
first round warms up and isn't counted.
"""

import gc
import random
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from spindle_sim.backend import Execution, Validation
from spindle_sim.plan import Plan
from spindle_torch.clocks import shared_clock
from spindle_torch.emulation import Emulation
from spindle_torch.engine import Engine
from spindle_torch.events import Event, to_timeline
from spindle_torch.forking import run_forked
from spindle_torch.groups import make_groups
from spindle_torch.parts import Parts, Times, make_parts, of_round, profiling
from spindle_torch.process import end_with_parent, wake_in_time
from spindle_torch.program import Program
from spindle_torch.requirements import check_requirements
from spindle_torch.telling import gather_json
from spindle_torch.training import make_training
from spindle_torch.validation import Task, read_task, write_result

__all__ = ["main"]

_WARM_UP = 0.05  # of the time for which emulated computing is waited for
_Notes = list[list[tuple[float, tuple[Event, ...]]]]  # of each round and plan: start and events


@dataclass(slots=True, kw_only=True)
class _Turns:
    """What one rank does in a round."""

    parts: Parts
    engines: list[Engine]
    notes: _Notes = field(default_factory=list)

    def round(self, number: int) -> None:
        """Measure everything, and run an iteration of each plan, each round in another order.

        The first one comes behind the links, with other things in the caches.
        """
        gc.collect()
        self.parts.round(number)
        order = list(range(len(self.engines)))
        random.Random(number).shuffle(order)
        noted: dict[int, tuple[float, tuple[Event, ...]]] = {}
        for place in order:
            start_s, events = self.engines[place].run_iteration(number)
            noted[place] = start_s, tuple(events)
        self.notes.append([noted[place] for place in range(len(self.engines))])

    def warm_up(self) -> None:
        """Do everything once, emulated computing in less time, and forget what it took."""
        works = [engine.work for engine in self.engines]
        emulated = [work for work in works if isinstance(work, Emulation)]
        for work in emulated:
            work.time_scale *= _WARM_UP
        self.round(0)
        for work in emulated:
            work.time_scale /= _WARM_UP
        self.parts.times.clear()
        self.notes.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What one rank tells rank 0 at the end; JSON has no keys such as those of `Times`."""

    times: tuple[tuple[tuple[object, ...], list[float]], ...]
    notes: _Notes


def main(arguments: Sequence[str]) -> int:
    """Fork the ranks, and wait for them; rank 0 writes the result."""
    end_with_parent(signal.SIGTERM)
    folder = Path(arguments[0])
    task = read_task(folder)
    # Once for all ranks, which then share them.
    programs = [check_requirements(plan, task.options, {}) for plan in task.plans]

    def run(rank: int, store: Store) -> None:
        _be_rank(folder, task, [each[rank] for each in programs], rank, store)

    return run_forked(folder, task.num_ranks, run)


def _be_rank(
    folder: Path, task: Task, programs: Sequence[Program], rank: int, store: Store
) -> None:
    begun_s = time.monotonic()
    wake_in_time()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=store,
        rank=rank,
        world_size=task.num_ranks,
        timeout=timedelta(seconds=task.options.timeout_s),
    )
    device, dtype = torch.device("cpu"), getattr(torch, task.options.dtype)
    turns = _Turns(
        parts=make_parts(task, device, dtype), engines=_engines(task, programs, device, dtype)
    )
    turns.warm_up()
    for number in range(1, task.options.iterations + 1):
        turns.round(number)
    own = _Found(times=tuple(turns.parts.times.items()), notes=turns.notes)
    gathered = gather_json(own, _Found)
    if gathered is not None:
        ranks = [(dict(found.times), found.notes) for found in gathered]
        elapsed_s = time.monotonic() - begun_s
        write_result(folder, _validation(task, turns.parts, ranks, elapsed_s))
    dist.barrier()
    dist.destroy_process_group()


def _engines(
    task: Task, programs: Sequence[Program], device: torch.device, dtype: torch.dtype
) -> list[Engine]:
    rank, options = dist.get_rank(), task.options
    clock_s = shared_clock(rank)
    made: dict[tuple[int, ...], dist.ProcessGroup] = {}
    engines: list[Engine] = []
    for plan, program, scale in zip(task.plans, programs, task.time_scales, strict=True):
        groups = make_groups(plan, rank, device, options.timeout_s, made)
        work = (
            Emulation(plan=plan, rank=rank, time_scale=scale, device=device)
            if options.emulate
            else make_training(plan, rank, groups, seed=options.seed, dtype=dtype, device=device)
        )
        engine = Engine(plan=plan, program=program, work=work, groups=groups, clock_s=clock_s)
        engines.append(engine)
    return engines


def _validation(
    task: Task, parts: Parts, ranks: Sequence[tuple[Times, _Notes]], elapsed_s: float
) -> Validation:
    """Give what was found, from the times and the notes of each rank."""
    executions = tuple(
        _execution(plan, [[each[place] for each in notes] for _, notes in ranks])
        for place, plan in enumerate(task.plans)
    )
    if not task.probes:
        return Validation(executions=executions)
    everyone = [times for times, _ in ranks]
    count = task.options.iterations
    rounds = [[of_round(times, number, count) for times in everyone] for number in range(count)]
    return Validation(
        executions=executions,
        profiling=profiling(parts, everyone, everyone, elapsed_s),
        rounds=tuple(
            tuple(profiling(parts, [times], together, 0.0) for times in together)
            for together in rounds
        ),
    )


def _execution(plan: Plan, ranks: Sequence[Sequence[tuple[float, tuple[Event, ...]]]]) -> Execution:
    """Give one plan's iterations, from what each rank noted of each of them."""
    timelines = [
        to_timeline(plan, "torch-gloo", [n[1] for n in iteration], [n[0] for n in iteration])
        for iteration in zip(*ranks, strict=True)
    ]
    middle_s = statistics.median_low(timeline.iteration_s for timeline in timelines)
    return Execution(
        timeline=next(item for item in timelines if item.iteration_s == middle_s),
        iterations_s=tuple(timeline.iteration_s for timeline in timelines),
        losses=(),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
