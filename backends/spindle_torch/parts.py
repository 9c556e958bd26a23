"""The parts of plans, measured on all ranks at once as they compute at once in a run.

A run meets a slice after much else: its weights, and in its backward what its forward kept, are out
of the caches; its operators meet each other's leavings. So operators are measured one behind the
other as in a slice, in another order in each round, behind something that takes the caches; what
the slice gets from the one before it is put back.
"""

import random
import statistics
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from spindle_sim.estimate.probe import Probe, ProbeResult, Profiling
from spindle_sim.estimate.profile import LinkPoint, OperatorPoint, OptimizerPoint
from spindle_sim.plan import Backward
from spindle_torch.bench import Bench, make_bench, make_step, num_stepped, step_s
from spindle_torch.measuring import device_name, relative_spread
from spindle_torch.validation import Task

__all__ = ["Parts", "Times", "make_parts", "of_round", "profiling"]

_LINK_SIZES_BYTES = tuple(4**power * 1024 for power in range(8))  # 1 KiB to 16 MiB
_PIECES = 4  # that an all-reduce's buffer is made of
_ROUND_OF_LINKS = 2  # runs of each link point in a round: the first meets a peer that may be late
_BUSY_S = 6e-3  # for which a sender goes on computing
_BUSY_SIZE = 256
_CACHES_BYTES = 2**24

Times = dict[tuple[object, ...], list[float]]  # by what was measured, in order


@dataclass(slots=True, kw_only=True)
class Parts:
    """One rank's measuring; `kinds` are the backwards that are measured, of those there are."""

    benches: Sequence[tuple[Probe, Bench]]
    optimizers: Sequence[torch.optim.Optimizer]
    kinds: Collection[Backward]
    device: torch.device
    dtype: torch.dtype
    times: Times = field(default_factory=dict)
    _gradients: dict[int, torch.Tensor] = field(default_factory=dict)
    _others: torch.Tensor = field(init=False)
    _square: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        """Make what takes the caches, and what keeps a sender busy."""
        self._square = torch.zeros(_BUSY_SIZE, _BUSY_SIZE, dtype=self.dtype)
        self._others = torch.zeros(_CACHES_BYTES // self.dtype.itemsize, dtype=self.dtype)

    def round(self, number: int) -> None:
        """Measure everything; all ranks in one order."""
        if not self.benches:
            return
        order = list(range(len(self.benches)))
        random.Random(number).shuffle(order)
        dist.barrier()
        for index in order:
            for kind in self.measured(index):
                self._probe(index, kind)
        for index, optimizer in enumerate(self.optimizers):
            self._note(("step", index), step_s(optimizer))
        if dist.get_world_size() > 1:
            self._links()

    def measured(self, index: int) -> tuple[Backward, ...]:
        """Give the kinds of backward that are measured of a probe: all if none was asked for."""
        there = self.benches[index][1].backwards
        return tuple(kind for kind in there if kind in self.kinds) or there

    def _probe(self, index: int, kind: Backward) -> None:
        bench = self.benches[index][1]
        bench.want(kind)
        if index not in self._gradients:  # in a run it comes from the next operator
            self._gradients[index] = torch.ones_like(bench.forward())
        gradient = self._gradients[index]
        self._forget_all_but(bench.inputs)
        begun_s = time.perf_counter()
        output = bench.forward()
        forward_s = time.perf_counter() - begun_s
        self._forget_all_but((gradient,))
        begun_s = time.perf_counter()
        torch.autograd.backward(output, gradient)
        backward_s = time.perf_counter() - begun_s
        bench.forget()
        self._note(("forward", index, kind), forward_s / bench.length)
        self._note(("backward", index, kind), backward_s / bench.length)

    def _forget_all_but(self, tensors: Sequence[torch.Tensor]) -> None:
        """Take the caches, then put some tensors back into them."""
        with torch.no_grad():
            self._others.sum()
            for tensor in tensors:
                tensor.sum()

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
                for source in (0, 1):
                    dist.barrier()
                    if rank in (0, 1):
                        self._message(tensor, size_bytes, sends=rank == source)

    def _message(self, tensor: torch.Tensor, size_bytes: int, *, sends: bool) -> None:
        """Send one way, as the engine does: the receiver waits, the sender goes on computing.

        What moves a message on the sender's side is then a thread without a core of its own: it
        takes several times as long as between two ranks that both wait.
        """
        operation = dist.P2POp(dist.isend if sends else dist.irecv, tensor, 1 - dist.get_rank())
        begun_s = time.perf_counter()
        works = dist.batch_isend_irecv([operation])
        if sends:
            self._compute_for(_BUSY_S)
        for work in works:
            work.wait()
        if not sends:
            self._note(("transfer", size_bytes), time.perf_counter() - begun_s)

    def _compute_for(self, seconds: float) -> None:
        begun_s = time.perf_counter()
        while time.perf_counter() - begun_s < seconds:
            torch.mm(self._square, self._square)

    def _note(self, key: tuple[object, ...], seconds: float) -> None:
        self.times.setdefault(key, []).append(seconds)


def make_parts(task: Task, device: torch.device, dtype: torch.dtype) -> Parts:
    """Make one rank's modules and optimizers, with the backwards that the plans have."""
    steps = [make_step(probe, dtype, device) for probe in task.steps]
    return Parts(
        benches=[(probe, make_bench(probe, dtype, device)) for probe in task.probes],
        optimizers=[optimizer for optimizer in steps if optimizer is not None],
        kinds={metaop.backward for plan in task.plans for metaop in plan.metaops},
        device=device,
        dtype=dtype,
    )


def of_round(times: Times, number: int, count: int) -> Times:
    """Give what one of `count` rounds measured."""
    return {
        key: found[number * len(found) // count : (number + 1) * len(found) // count]
        for key, found in times.items()
    }


def profiling(
    parts: Parts, ranks: Sequence[Times], everyone: Sequence[Times], elapsed_s: float
) -> Profiling:
    """Give medians of some ranks' times; of what all do together the slowest of all counts."""
    times: Times = {}
    for own in ranks:
        for key, found in own.items():
            times.setdefault(key, []).extend(found)
    return Profiling(
        device=device_name(parts.device),
        method=f"medians in one thread, on {len(everyone)} ranks at once, in turns with iterations",
        tool=f"torch {torch.__version__}",
        elapsed_s=elapsed_s,
        results=tuple(_result(parts, index, times) for index in range(len(parts.benches))),
        links=tuple(_link_points(everyone)),
        optimizer=tuple(
            OptimizerPoint(
                parameters=float(num_stepped(optimizer)),
                time_s=statistics.median(times["step", index]),
            )
            for index, optimizer in enumerate(parts.optimizers)
        ),
        element_bytes=float(parts.dtype.itemsize),
    )


def _result(parts: Parts, index: int, times: Times) -> ProbeResult:
    probe, kinds = parts.benches[index][0], parts.measured(index)
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


def _link_points(ranks: Sequence[Times]) -> list[LinkPoint]:
    found: list[LinkPoint] = []
    for operation in ("transfer", "all_reduce", "all_gather"):
        members = ranks[:2] if operation == "transfer" else ranks
        for size_bytes in _LINK_SIZES_BYTES:
            runs = [times[operation, size_bytes] for times in members if len(ranks) > 1]
            if runs:
                found.append(
                    LinkPoint(
                        operation=operation,
                        reach="island",
                        ranks=len(members),
                        size_bytes=float(size_bytes),
                        time_s=_typical_s(operation, runs),
                    )
                )
    return found


def _typical_s(operation: str, runs: Sequence[Sequence[float]]) -> float:
    """Give what a message takes in the mean over both ways, a collective in the median.

    Messages take now 0.2, now 5 ms, and an iteration has a dozen, which add up to their mean. Of a
    collective the slowest rank counts.
    """
    if operation == "transfer":
        return statistics.fmean(time_s for times in runs for time_s in times)
    slowest_s: list[float] = [max(each) for each in zip(*runs, strict=True)]
    return statistics.median(slowest_s)
