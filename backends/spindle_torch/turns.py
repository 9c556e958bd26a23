"""One rank of a validation: parts and plans are measured in turns, so that drift hits both alike.

`python -m spindle_torch.turns FOLDER` forks the ranks. In each round all ranks run every probe
at once, then the optimizer steps, messages and collectives, then an iteration of each plan. The
first round warms up and isn't counted.
"""

import gc
import pickle
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
from spindle_sim.estimate.probe import Probe, ProbeResult, Profiling
from spindle_sim.estimate.profile import LinkPoint, OperatorPoint, OptimizerPoint
from spindle_sim.plan import Backward, Plan
from spindle_sim.plan.atomic import write_atomically
from spindle_torch.bench import Bench, make_bench, make_step, num_stepped, step_s
from spindle_torch.clocks import shared_clock
from spindle_torch.emulation import Emulation
from spindle_torch.engine import Engine
from spindle_torch.events import Event, to_timeline
from spindle_torch.forking import run_forked
from spindle_torch.groups import make_groups
from spindle_torch.measuring import device_name, relative_spread
from spindle_torch.process import end_with_parent, wake_in_time
from spindle_torch.program import Program
from spindle_torch.requirements import check_requirements
from spindle_torch.training import make_training
from spindle_torch.validation import Task

__all__ = ["main"]

_LINK_SIZES_BYTES = tuple(4**power * 1024 for power in range(8))  # 1 KiB to 16 MiB
_PIECES = 4  # that an all-reduce's buffer is made of
_ROUND_OF_LINKS = 2  # runs of each link point in a round: the first meets a peer that may be late
_WARM_UP = 0.05  # of the time for which emulated computing is waited for
_Times = dict[tuple[object, ...], list[float]]


@dataclass(slots=True, kw_only=True)
class _Turns:
    """One rank's measuring; times by what was measured."""

    task: Task
    device: torch.device
    dtype: torch.dtype
    benches: list[tuple[Probe, Bench]]
    optimizers: list[torch.optim.Optimizer]
    engines: list[tuple[Plan, Engine]]
    gradients: dict[int, torch.Tensor] = field(default_factory=dict)
    times: _Times = field(default_factory=dict)
    notes: list[list[tuple[float, tuple[Event, ...]]]] = field(default_factory=list)

    def round(self, number: int) -> None:
        """Measure everything once."""
        gc.collect()
        if self.benches:
            dist.barrier()
            for index, (_, bench) in enumerate(self.benches):
                for kind in bench.backwards:
                    self._probe(index, bench, kind)
        for index, optimizer in enumerate(self.optimizers):
            self._note(("step", index), step_s(optimizer))
        if self.benches and dist.get_world_size() > 1:
            self._links()
        self.notes.append([])
        for _, engine in self.engines:
            start_s, events = engine.run_iteration(number)
            self.notes[-1].append((start_s, tuple(events)))

    def warm_up(self) -> None:
        """Do everything once, emulated computing in less time, and forget what it took."""
        works = [engine.work for _, engine in self.engines]
        emulated = [work for work in works if isinstance(work, Emulation)]
        for work in emulated:
            work.time_scale *= _WARM_UP
        self.round(0)
        for work in emulated:
            work.time_scale /= _WARM_UP
        self.times.clear()
        self.notes.clear()

    def _probe(self, index: int, bench: Bench, kind: Backward) -> None:
        bench.want(kind)
        if index not in self.gradients:  # in a run it comes from the next operator
            self.gradients[index] = torch.ones_like(bench.forward())
        gradient = self.gradients[index]
        begun_s = time.perf_counter()
        output = bench.forward()
        between_s = time.perf_counter()
        torch.autograd.backward(output, gradient)
        ended_s = time.perf_counter()
        bench.forget()
        self._note(("forward", index, kind), between_s - begun_s)
        self._note(("backward", index, kind), ended_s - between_s)

    def _links(self) -> None:
        world, rank = dist.get_world_size(), dist.get_rank()
        for size_bytes in _LINK_SIZES_BYTES:
            tensor = torch.zeros(size_bytes // self.dtype.itemsize, dtype=self.dtype)
            pieces = tensor.chunk(_PIECES)
            parts = list(torch.zeros_like(tensor).chunk(world))
            own = torch.zeros_like(parts[rank])
            for _ in range(_ROUND_OF_LINKS):
                dist.barrier()
                begun_s = time.perf_counter()
                # Put into one buffer before, as gradients are.
                dist.all_reduce(torch.cat(pieces))
                self._note(("all_reduce", size_bytes), time.perf_counter() - begun_s)
                dist.barrier()
                begun_s = time.perf_counter()
                dist.all_gather(parts, own)
                self._note(("all_gather", size_bytes), time.perf_counter() - begun_s)
                dist.barrier()
                if rank in (0, 1):
                    self._message(tensor, size_bytes)

    def _message(self, tensor: torch.Tensor, size_bytes: int) -> None:
        """Send there and back, as the engine does: posted, then waited for."""
        first = dist.get_rank() == 0
        begun_s = time.perf_counter()
        for sends in (first, not first):
            peer = 1 if first else 0
            operation = dist.P2POp(dist.isend if sends else dist.irecv, tensor, peer)
            for work in dist.batch_isend_irecv([operation]):
                work.wait()
        self._note(("transfer", size_bytes), (time.perf_counter() - begun_s) / 2)

    def _note(self, key: tuple[object, ...], seconds: float) -> None:
        self.times.setdefault(key, []).append(seconds)


def main(arguments: Sequence[str]) -> int:
    """Fork the ranks, and wait for them; rank 0 writes the result."""
    end_with_parent(signal.SIGTERM)
    folder = Path(arguments[0])
    task: Task = pickle.loads((folder / "task").read_bytes())  # our own launcher's
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
    turns = _turns(task, programs)
    turns.warm_up()
    for number in range(1, task.options.iterations + 1):
        turns.round(number)
    own = turns.times, turns.notes
    gathered: list[tuple[_Times, list[list[tuple[float, tuple[Event, ...]]]]]] | None = None
    if rank == 0:
        gathered = [own] * task.num_ranks
    dist.gather_object(own, gathered)
    if gathered is not None:
        notes = [item for _, item in gathered]
        executions = tuple(
            _execution(plan, [[rounds[place] for rounds in rank] for rank in notes])
            for place, plan in enumerate(task.plans)
        )
        found = Validation(executions=executions)
        if task.probes:
            times, elapsed_s = [item for item, _ in gathered], time.monotonic() - begun_s
            count = task.options.iterations
            found = Validation(
                executions=executions,
                profiling=_profiling(turns, times, elapsed_s),
                rounds=tuple(
                    _profiling(turns, [_of_round(item, number, count) for item in times], 0.0)
                    for number in range(count)
                ),
            )
        write_atomically(folder / "result", pickle.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def _turns(task: Task, programs: Sequence[Program]) -> _Turns:
    device, dtype = torch.device("cpu"), getattr(torch, task.options.dtype)
    benches = [(probe, make_bench(probe, dtype, device)) for probe in task.probes]
    return _Turns(
        task=task,
        device=device,
        dtype=dtype,
        benches=benches,
        optimizers=[
            optimizer
            for probe in task.steps
            if (optimizer := make_step(probe, dtype, device)) is not None
        ],
        engines=_engines(task, programs, device, dtype),
    )


def _engines(
    task: Task, programs: Sequence[Program], device: torch.device, dtype: torch.dtype
) -> list[tuple[Plan, Engine]]:
    rank, options = dist.get_rank(), task.options
    clock_s = shared_clock(rank, device)
    made: dict[tuple[int, ...], dist.ProcessGroup] = {}
    engines: list[tuple[Plan, Engine]] = []
    for plan, program, scale in zip(task.plans, programs, task.time_scales, strict=True):
        groups = make_groups(plan, rank, device, options.timeout_s, made)
        work = (
            Emulation(plan=plan, rank=rank, time_scale=scale, device=device)
            if options.emulate
            else make_training(plan, rank, groups, seed=options.seed, dtype=dtype, device=device)
        )
        engine = Engine(plan=plan, program=program, work=work, groups=groups, clock_s=clock_s)
        engines.append((plan, engine))
    return engines


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


def _profiling(turns: _Turns, ranks: Sequence[_Times], elapsed_s: float) -> Profiling:
    """Give medians over rounds and ranks; of what ranks do together the slowest rank counts."""
    alone: _Times = {}
    for times in ranks:
        for key, found in times.items():
            alone.setdefault(key, []).extend(found)
    return Profiling(
        device=device_name(turns.device),
        method=(
            f"medians of {turns.task.options.iterations} rounds in {turns.task.options.dtype}, one"
            f" thread, on {len(ranks)} ranks at once, in turns with iterations"
        ),
        tool=f"torch {torch.__version__}",
        elapsed_s=elapsed_s,
        results=tuple(
            _result(index, probe, bench, alone)
            for index, (probe, bench) in enumerate(turns.benches)
        ),
        links=tuple(_link_points(ranks)),
        optimizer=tuple(
            OptimizerPoint(
                parameters=float(num_stepped(optimizer)),
                time_s=statistics.median(alone["step", index]),
            )
            for index, optimizer in enumerate(turns.optimizers)
        ),
        element_bytes=float(turns.dtype.itemsize),
    )


def _of_round(times: _Times, number: int, count: int) -> _Times:
    """Give what one round measured."""
    return {
        key: found[number * len(found) // count : (number + 1) * len(found) // count]
        for key, found in times.items()
    }


def _result(index: int, probe: Probe, bench: Bench, times: _Times) -> ProbeResult:
    kinds = bench.backwards
    backward_s = {kind: statistics.median(times["backward", index, kind]) for kind in kinds}
    both = [times[phase, index, kinds[0]] for phase in ("forward", "backward")]
    return ProbeResult(
        probe=probe,
        point=OperatorPoint(
            samples=float(probe.samples),
            forward_s=statistics.median(both[0]),
            backward_s=backward_s[kinds[0]],
            input_backward_s=backward_s.get(Backward.INPUT_ONLY),
            weight_backward_s=backward_s.get(Backward.WEIGHT_ONLY),
        ),
        spread=max(relative_spread(found) if len(found) > 1 else 0.0 for found in both),
        repeats=len(both[0]),
    )


def _link_points(ranks: Sequence[_Times]) -> list[LinkPoint]:
    found: list[LinkPoint] = []
    for operation in ("transfer", "all_reduce", "all_gather"):
        members = ranks[:2] if operation == "transfer" else ranks
        for size_bytes in _LINK_SIZES_BYTES:
            runs = [times[operation, size_bytes] for times in members if len(ranks) > 1]
            if runs:
                slowest = [max(each) for each in zip(*runs, strict=True)]
                found.append(
                    LinkPoint(
                        operation=operation,
                        reach="island",
                        ranks=len(members),
                        size_bytes=float(size_bytes),
                        time_s=statistics.median(slowest),
                    )
                )
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
