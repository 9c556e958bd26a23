"""Runs one rank's program: computes, posts messages, waits for what it needs, notes the times.

Messages are posted as soon as their content is there, in the one order of all programs, and waited
for where they are needed. What is sent is kept, untouched, until it is sent. Backward is explicit,
slice by slice: autograd alone would run it in an order of its own on each rank.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from spindle_sim.plan import Plan, Slice
from spindle_sim.timeline import Kind, Phase
from spindle_torch.events import Event, Origin
from spindle_torch.groups import Groups
from spindle_torch.intervals import held_samples
from spindle_torch.program import (
    Await,
    Batch,
    Beside,
    Clip,
    Compute,
    Copy,
    Instruction,
    Message,
    Program,
    Step,
    Synchronize,
    within_each,
)
from spindle_torch.recorder import Recorder
from spindle_torch.synchronization import Synchronization, Within
from spindle_torch.work import GathersWithin, Work

__all__ = ["Engine"]

_Key = tuple[str, bool, int]  # a slice, whether it is its backward, and the micro-batch


@dataclass(slots=True)
class _Arrivals:
    """What has come or will come to an operation: rows by flow, and what they wait for."""

    rows: dict[int, torch.Tensor] = field(default_factory=dict)
    pending: list[dist.Work] = field(default_factory=list)
    origins: dict[Origin, None] = field(default_factory=dict)
    size_bytes: float = 0.0


@dataclass(slots=True)
class _Sent:
    """Messages on their way out; the tensors must live until they are gone."""

    pending: list[dist.Work] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)


@dataclass(slots=True)
class Engine:
    """One rank of a run. `current` is the instruction being run, `is_waiting` whether for others.

    `clock_s` gives seconds on a clock that all ranks share, `clip_norm` is the largest norm that
    the gradients may have if the program clips them. Nothing is noted without `tracing`.
    """

    plan: Plan
    program: Program
    work: Work
    groups: Groups
    clock_s: Callable[[], float]
    clip_norm: float = math.inf
    tracing: bool = True
    current: Instruction | None = None
    _recorder: Recorder = field(init=False)
    _synchronization: Synchronization = field(init=False)
    _output: dict[int, torch.Tensor] = field(default_factory=dict)
    _arrivals: dict[_Key, _Arrivals] = field(default_factory=dict)
    _sent: dict[_Key, _Sent] = field(default_factory=dict)
    _slices: dict[str, Slice] = field(init=False)
    _flows_out: dict[str, list[int]] = field(init=False)
    _batches: dict[str, int] = field(init=False)
    _unmoved: dict[tuple[str, bool], list[int]] = field(init=False)
    _within: dict[int, tuple[Beside, ...]] = field(init=False)

    def __post_init__(self) -> None:
        """Look up slices, their batches and their flows once."""
        self._recorder = Recorder(self.clock_s, self.work.device, enabled=self.tracing)
        self._synchronization = Synchronization(
            work=self.work,
            groups=self.groups,
            recorder=self._recorder,
            clip_norm=self.clip_norm,
            in_turn=self.plan.shard_gradients,
        )
        self._slices = self.plan.slice_by_id()
        metaops = self.plan.metaop_by_id()
        self._batches = {
            item.id: metaops[item.metaop].batch // self.plan.micro_batches(item.round)
            for item in self.plan.slices
        }
        self._flows_out = {name: [] for name in self._slices}
        for index, flow in enumerate(self.plan.flows):
            self._flows_out[flow.source_slice].append(index)
        self._unmoved = self._flows_without_samples()
        self._within = within_each(self.program.instructions)

    @property
    def is_waiting(self) -> bool:
        """Whether this rank waits for others."""
        return self._recorder.is_waiting

    @is_waiting.setter
    def is_waiting(self, value: bool) -> None:
        self._recorder.is_waiting = value

    def run_iteration(self, step: int) -> tuple[float, Sequence[Event]]:
        """Run the whole program once; give when it began and what happened."""
        self.work.prepare(step)
        self.current, self.is_waiting = None, True
        self.work.synchronize_device()  # so that ranks begin together, not behind their data
        dist.barrier()
        self.is_waiting = False
        start_s = self._recorder.begin()
        instructions = self.program.instructions
        for position, instruction in enumerate(instructions):
            self.current = instruction
            self._run(instruction, position)
        self.is_waiting = True
        for key in list(self._sent):
            self._finish_sends(key)
        self.work.synchronize_device()
        self.is_waiting = False
        return start_s, self._recorder.events()

    def _run(self, instruction: Instruction, position: int) -> None:
        match instruction:
            case Compute():
                self._compute(instruction, self._within.get(position, ()))
            case Copy():
                self._copy(instruction.message)
            case Batch():
                self._post(instruction)
            case Step():
                start = self._recorder.mark()
                self.work.step()
                self._recorder.note(Kind.OPTIMIZER, Phase.STEP, start)
            case Await():
                self._synchronization.finish(instruction)
            case Synchronize():
                self._synchronization.synchronize(instruction)
            case Clip():
                self._synchronization.clip()
            case _ if not instruction.within:  # else the slice before it has done it
                self._synchronization.run(instruction)

    def _compute(self, instruction: Compute, within: Sequence[Beside]) -> None:
        item, micro_batch = self._slices[instruction.slice], instruction.micro_batch
        rows = self._await_arrivals(instruction)
        if instruction.backward:
            # What it sent ahead has arrived long ago: its gradient came back.
            self._finish_sends((item.id, False, micro_batch))
        start = self._recorder.mark()
        beside = Within(synchronization=self._synchronization, waiting=[*within])
        if self.plan.shard_parameters and isinstance(self.work, GathersWithin):
            self.work.gather_with(beside.come_to)
        if instruction.backward:
            self._output = dict(self.work.backward(item, rows, micro_batch, beside.watched))
        else:
            output = self.work.forward(item, rows, micro_batch)
            self._output = (
                {} if output is None else dict.fromkeys(self._flows_out[item.id], output.detach())
            )
        self._recorder.note(
            Kind.COMPUTE,
            _phase(instruction.backward),
            start,
            slice_id=item.id,
            micro_batch=micro_batch,
        )
        beside.come_to(None)

    def _await_arrivals(self, instruction: Compute) -> Mapping[int, torch.Tensor]:
        key = instruction.slice, instruction.backward, instruction.micro_batch
        arrivals = self._arrivals.pop(key, _Arrivals())
        if arrivals.pending:
            start = self._recorder.mark()
            self._wait(arrivals.pending)
            origins = tuple(arrivals.origins)
            self._recorder.note(
                Kind.RECEIVE,
                _phase(instruction.backward),
                start,
                slice_id=instruction.slice,
                micro_batch=instruction.micro_batch,
                size_bytes=arrivals.size_bytes,
                awaits=origins,
                peers=tuple({origin.rank: None for origin in origins}),
            )
        for flow in self._unmoved.get((instruction.slice, instruction.backward), ()):
            arrivals.rows[flow] = self._rows(flow, 0)
        return arrivals.rows

    def _flows_without_samples(self) -> dict[tuple[str, bool], list[int]]:
        """Give what nothing is sent of where this rank has no samples of a slice."""
        found: dict[tuple[str, bool], list[int]] = {}
        rank = self.program.rank
        for index, flow in enumerate(self.plan.flows):
            for name, backward in ((flow.target_slice, False), (flow.source_slice, True)):
                item = self._slices[name]
                if rank in item.devices and (flow.gradient or not backward):
                    first, last = held_samples(item, rank, self._batches[name])
                    if first == last:
                        found.setdefault((name, backward), []).append(index)
        return found

    def _copy(self, message: Message) -> None:
        """Hand on what stays here: as it is where that is all, else into its place among others."""
        start = self._recorder.mark()
        rows = self._outgoing(message)
        arrivals = self._arrivals_of(message)
        begin, end = self._span(message, target=True)
        if (begin, end) == (message.piece.first, message.piece.last):
            arrivals.rows[message.flow] = rows
            return
        self._incoming(message).copy_(rows)
        self._recorder.note(
            Kind.COPY,
            _phase(message.backward),
            start,
            slice_id=self._end(message, target=True).id,
            size_bytes=float(rows.numel() * rows.element_size()),
            micro_batch=message.micro_batch,
        )

    def _post(self, batch: Batch) -> None:
        start = self._recorder.mark()
        key, world = (batch.slice, batch.backward, batch.micro_batch), self.groups.world
        # Without numbers there is no message, as both sides know: NCCL may or may not send nothing.
        sends = [(item, self._outgoing(item).contiguous()) for item in batch.sends]
        sends = [(item, rows) for item, rows in sends if rows.numel()]
        receives = [(item, self._incoming(item)) for item in batch.receives]
        receives = [(item, rows) for item, rows in receives if rows.numel()]
        operations = [
            *(dist.P2POp(dist.isend, rows, item.piece.target, world) for item, rows in sends),
            *(dist.P2POp(dist.irecv, rows, item.piece.source, world) for item, rows in receives),
        ]
        self.is_waiting = True
        works: list[dist.Work] = dist.batch_isend_irecv(operations) if operations else []
        self.is_waiting = False
        one_each = len(works) == len(operations)  # NCCL gives one for the whole batch
        for index, (message, rows) in enumerate(receives, start=len(sends)):
            arrivals = self._arrivals_of(message)
            arrivals.pending += [works[index]] if one_each else works
            arrivals.size_bytes += rows.numel() * rows.element_size()
            origin = Origin(
                slice=batch.slice,
                backward=batch.backward,
                rank=message.piece.source,
                micro_batch=batch.micro_batch,
            )
            arrivals.origins[origin] = None
        if sends:
            sent = _Sent(
                pending=works[: len(sends)] if one_each else works,
                tensors=[rows for _, rows in sends],
            )
            self._sent[key] = sent
            self._recorder.note(
                Kind.SEND,
                _phase(batch.backward),
                start,
                slice_id=batch.slice,
                size_bytes=float(sum(t.numel() * t.element_size() for t in sent.tensors)),
                peers=tuple({message.piece.target: None for message, _ in sends}),
                micro_batch=batch.micro_batch,
            )
        elif receives:
            # Posting alone may take milliseconds, where it meets what is already on its way.
            self._recorder.note(
                Kind.RECEIVE,
                _phase(batch.backward),
                start,
                slice_id=self._end(receives[0][0], target=True).id,
                micro_batch=batch.micro_batch,
            )

    def _finish_sends(self, key: _Key) -> None:
        sent = self._sent.pop(key, None)
        if sent is not None:
            self._wait(sent.pending)

    def _wait(self, pending: Sequence[dist.Work]) -> None:
        self.is_waiting = True
        for work in dict.fromkeys(pending):
            work.wait()
        self.is_waiting = False

    def _end(self, message: Message, *, target: bool) -> Slice:
        """Give the slice at one end of a message; gradients go from target to source."""
        flow = self.plan.flows[message.flow]
        name = flow.target_slice if target != message.backward else flow.source_slice
        return self._slices[name]

    def _span(self, message: Message, *, target: bool) -> tuple[int, int]:
        """Give the samples that this rank holds at one end of a message."""
        item = self._end(message, target=target)
        return held_samples(item, self.program.rank, self._batches[item.id])

    def _outgoing(self, message: Message) -> torch.Tensor:
        begin, _ = self._span(message, target=False)
        return self._output[message.flow][message.piece.first - begin : message.piece.last - begin]

    def _arrivals_of(self, message: Message) -> _Arrivals:
        key = self._end(message, target=True).id, message.backward, message.micro_batch
        return self._arrivals.setdefault(key, _Arrivals())

    def _incoming(self, message: Message) -> torch.Tensor:
        """Give the place of a message's rows among those of its flow."""
        arrivals = self._arrivals_of(message)
        begin, end = self._span(message, target=True)
        if message.flow not in arrivals.rows:
            arrivals.rows[message.flow] = self._rows(message.flow, end - begin)
        return arrivals.rows[message.flow][message.piece.first - begin : message.piece.last - begin]

    def _rows(self, flow: int, count: int) -> torch.Tensor:
        return torch.empty(
            (count, self.work.elements(flow)), dtype=self.work.row_dtype, device=self.work.device
        )


def _phase(backward: bool) -> Phase:  # noqa: FBT001  (what an instruction is, handed on)
    return Phase.BACKWARD if backward else Phase.FORWARD
