"""Runs one rank's program: computes, posts messages, waits for what it needs, notes the times.

Messages are posted as soon as their content is there, in the one order of all programs, and waited
for where they are needed. What is sent is kept, untouched, until it is sent. Backward is explicit,
slice by slice: autograd alone would run it in an order of its own on each rank.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from spindle_sim.plan import Plan, Slice
from spindle_sim.timeline import Kind, Phase
from spindle_torch.events import Event, Origin
from spindle_torch.groups import Groups
from spindle_torch.intervals import held_samples
from spindle_torch.program import (
    Batch,
    Clip,
    Compute,
    Copy,
    Gather,
    Instruction,
    Message,
    Program,
    Step,
    Synchronize,
)
from spindle_torch.work import Work

__all__ = ["Engine"]

_NORM_EPSILON = 1e-6
_Key = tuple[str, bool]  # a slice and whether it is its backward


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
    the gradients may have if the program clips them.
    """

    plan: Plan
    program: Program
    work: Work
    groups: Groups
    clock_s: Callable[[], float]
    clip_norm: float = math.inf
    current: Instruction | None = None
    is_waiting: bool = False
    _events: list[Event] = field(default_factory=list)
    _output: dict[int, torch.Tensor] = field(default_factory=dict)
    _arrivals: dict[_Key, _Arrivals] = field(default_factory=dict)
    _sent: dict[_Key, _Sent] = field(default_factory=dict)
    _slices: dict[str, Slice] = field(init=False)
    _flows_out: dict[str, list[int]] = field(init=False)
    _batches: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        """Look up slices, their batches and their flows once."""
        self._slices = self.plan.slice_by_id()
        metaops = self.plan.metaop_by_id()
        self._batches = {item.id: metaops[item.metaop].batch for item in self.plan.slices}
        self._flows_out = {name: [] for name in self._slices}
        for index, flow in enumerate(self.plan.flows):
            self._flows_out[flow.source_slice].append(index)

    def run_iteration(self, step: int) -> tuple[float, Sequence[Event]]:
        """Run the whole program once; give when it began and what happened."""
        self._events = []
        self.work.prepare(step)
        self.current, self.is_waiting = None, True
        dist.barrier()
        self.is_waiting = False
        start_s = self.clock_s()
        for instruction in self.program.instructions:
            self.current = instruction
            self._run(instruction)
        self.is_waiting = True
        for key in list(self._sent):
            self._finish_sends(key)
        self.is_waiting = False
        return start_s, self._events

    def _run(self, instruction: Instruction) -> None:
        match instruction:
            case Compute():
                self._compute(self._slices[instruction.slice], backward=instruction.backward)
            case Copy():
                self._copy(instruction.message)
            case Batch():
                self._post(instruction)
            case Synchronize():
                self._synchronize(instruction)
            case Clip():
                self._clip()
            case Step():
                start_s = self.clock_s()
                self.work.step()
                self._note(Kind.OPTIMIZER, Phase.STEP, start_s)
            case Gather():
                self._gather(instruction)

    def _compute(self, item: Slice, *, backward: bool) -> None:
        phase = Phase.BACKWARD if backward else Phase.FORWARD
        rows = self._await_arrivals(item, phase)
        start_s = self.clock_s()
        if backward:
            # What it sent ahead has arrived long ago: its gradient came back.
            self._finish_sends((item.id, False))
            self._output = dict(self.work.backward(item, rows))
        else:
            output = self.work.forward(item, rows)
            self._output = (
                {} if output is None else dict.fromkeys(self._flows_out[item.id], output.detach())
            )
        self._note(Kind.COMPUTE, phase, start_s, slice_id=item.id)

    def _await_arrivals(self, item: Slice, phase: Phase) -> dict[int, torch.Tensor]:
        arrivals = self._arrivals.pop((item.id, phase is Phase.BACKWARD), _Arrivals())
        if arrivals.pending:
            start_s = self.clock_s()
            self._wait(arrivals.pending)
            origins = tuple(arrivals.origins)
            self._events.append(
                Event(
                    kind=Kind.RECEIVE,
                    phase=phase,
                    start_s=start_s,
                    end_s=self.clock_s(),
                    slice=item.id,
                    size_bytes=arrivals.size_bytes,
                    awaits=origins,
                    peers=tuple({origin.rank: None for origin in origins}),
                )
            )
        return arrivals.rows

    def _copy(self, message: Message) -> None:
        """Hand on what stays here: as it is where that is all, else into its place among others."""
        start_s = self.clock_s()
        rows = self._outgoing(message)
        arrivals = self._arrivals_of(message)
        begin, end = self._span(message, target=True)
        if (begin, end) == (message.piece.first, message.piece.last):
            arrivals.rows[message.flow] = rows
            return
        self._incoming(message).copy_(rows)
        phase = Phase.BACKWARD if message.backward else Phase.FORWARD
        size_bytes = float(rows.numel() * rows.element_size())
        target = self._end(message, target=True).id
        self._note(Kind.COPY, phase, start_s, slice_id=target, size_bytes=size_bytes)

    def _post(self, batch: Batch) -> None:
        start_s = self.clock_s()
        key = (batch.slice, batch.backward)
        operations: list[dist.P2POp] = []
        sent = _Sent(tensors=[self._outgoing(message).contiguous() for message in batch.sends])
        for message, tensor in zip(batch.sends, sent.tensors, strict=True):
            operations.append(dist.P2POp(dist.isend, tensor, message.piece.target))
        for message in batch.receives:
            rows = self._incoming(message)
            operations.append(dist.P2POp(dist.irecv, rows, message.piece.source))
            arrivals = self._arrivals_of(message)
            arrivals.size_bytes += rows.numel() * rows.element_size()
            origin = Origin(slice=batch.slice, backward=batch.backward, rank=message.piece.source)
            arrivals.origins[origin] = None
        self.is_waiting = True
        works: list[dist.Work] = dist.batch_isend_irecv(operations)
        self.is_waiting = False
        one_each = len(works) == len(operations)  # NCCL gives one for the whole batch
        for index, message in enumerate(batch.receives, start=len(batch.sends)):
            self._arrivals_of(message).pending += [works[index]] if one_each else works
        if batch.sends:
            sent.pending = works[: len(batch.sends)] if one_each else works
            self._sent[key] = sent
            phase = Phase.BACKWARD if batch.backward else Phase.FORWARD
            size_bytes = float(sum(t.numel() * t.element_size() for t in sent.tensors))
            peers = tuple({message.piece.target: None for message in batch.sends})
            self._note(
                Kind.SEND, phase, start_s, slice_id=batch.slice, size_bytes=size_bytes, peers=peers
            )

    def _synchronize(self, instruction: Synchronize) -> None:
        members = self.groups.members(instruction.devices)
        assert members is not None, "a group of one has nothing to synchronize"
        total = self.work.gradient(instruction.group)
        start_s = self.clock_s()
        self.is_waiting = True
        dist.all_reduce(total, group=members.group)
        self.work.synchronize_device()
        self.is_waiting = False
        self._events.append(
            Event(
                kind=Kind.SYNC,
                phase=Phase.SYNC,
                start_s=start_s,
                end_s=self.clock_s(),
                size_bytes=float(total.numel() * total.element_size()),
                group=instruction.group,
            )
        )
        self.work.take_gradient(instruction.group, total)

    def _clip(self) -> None:
        """Scale the gradients of all ranks to a norm of `clip_norm`, if theirs is larger."""
        total = self.work.squared_norm()
        start_s = self.clock_s()
        self.is_waiting = True
        dist.all_reduce(total)
        self.is_waiting = False
        # As torch does: with something added, so that a norm of 0 divides nothing by nothing.
        factor = self.clip_norm / (math.sqrt(total.item()) + _NORM_EPSILON)
        if factor < 1:
            self.work.scale_gradients(factor)
        size_bytes = float(total.numel() * total.element_size())
        self._note(Kind.SYNC, Phase.SYNC, start_s, size_bytes=size_bytes)

    def _gather(self, instruction: Gather) -> None:
        """Take from each rank of a group the range of parameters that it stepped."""
        members = self.groups.members(instruction.devices)
        assert members is not None, "a group of one has nothing to gather"
        whole, own = self.work.gathering(instruction.group)
        start_s = self.clock_s()
        self.is_waiting = True
        dist.all_gather(list(whole.chunk(len(members.ranks))), own, group=members.group)
        self.is_waiting = False
        # Another meeting than the group's synchronization, which has its index.
        meeting = -2 - instruction.group
        size_bytes = float(whole.numel() * whole.element_size())
        self._note(Kind.SYNC, Phase.SYNC, start_s, size_bytes=size_bytes, group=meeting)
        self.work.gathered(instruction.group)

    def _finish_sends(self, key: _Key) -> None:
        sent = self._sent.pop(key, None)
        if sent is not None:
            self._wait(sent.pending)

    def _wait(self, pending: Sequence[dist.Work]) -> None:
        self.is_waiting = True
        for work in dict.fromkeys(pending):
            work.wait()
        self.work.synchronize_device()
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
        key = self._end(message, target=True).id, message.backward
        return self._arrivals.setdefault(key, _Arrivals())

    def _incoming(self, message: Message) -> torch.Tensor:
        """Give the place of a message's rows among those of its flow."""
        arrivals = self._arrivals_of(message)
        begin, end = self._span(message, target=True)
        if message.flow not in arrivals.rows:
            arrivals.rows[message.flow] = torch.empty(
                (end - begin, self.work.elements(message.flow)),
                dtype=self.work.dtype,
                device=self.work.device,
            )
        return arrivals.rows[message.flow][message.piece.first - begin : message.piece.last - begin]

    def _note(
        self,
        kind: Kind,
        phase: Phase,
        start_s: float,
        *,
        slice_id: str = "",
        size_bytes: float = 0.0,
        peers: tuple[int, ...] = (),
        group: int = -1,
    ) -> None:
        self.work.synchronize_device()
        self._events.append(
            Event(
                kind=kind,
                phase=phase,
                start_s=start_s,
                end_s=self.clock_s(),
                slice=slice_id,
                size_bytes=size_bytes,
                peers=peers,
                group=group,
            )
        )
