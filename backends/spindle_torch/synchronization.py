"""The end of an iteration on one rank: gradients summed over groups, clipped, parameters gathered.

Sums may be launched while the backward still runs, and are awaited at the end: all of it in the
order of the program, which is the same on every rank. In ZeRO-3 parameters are gathered ahead of
the operators that need them.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist

from spindle_sim.timeline import Kind, Phase
from spindle_torch.collectives import begin_all_gather, begin_all_reduce, begin_reduce_scatter
from spindle_torch.groups import Groups
from spindle_torch.program import (
    Await,
    Beside,
    Drop,
    Gather,
    Launch,
    Synchronize,
    Take,
    Visit,
)
from spindle_torch.recorder import Mark, Recorder
from spindle_torch.work import Work

__all__ = ["Synchronization", "Within"]

_NORM_EPSILON = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sum:
    """A sum on its way; `whole` must live until it is there."""

    pending: dist.Work
    whole: torch.Tensor
    own: torch.Tensor

    @property
    def size_bytes(self) -> float:
        """What is summed."""
        return float(self.whole.numel() * self.whole.element_size())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gathering:
    """One on its way; `own` must live until it is there."""

    pending: dist.Work
    own: torch.Tensor
    size_bytes: float


@dataclass(slots=True, kw_only=True)
class Within:
    """What a slice gathers and launches while it computes: in order, the same on every rank."""

    synchronization: "Synchronization"
    waiting: list[Beside]
    complete: set[int] = field(default_factory=set)

    @property
    def watched(self) -> Mapping[int, Callable[[], None]]:
        """Give what to call when the gradients of a bucket are complete, if that decides.

        Each is launched then, or as soon as those before it are. Where the slice tells which
        operator it comes to, gradients leave then.
        """
        if any(isinstance(item, Visit) for item in self.waiting):
            return {}
        groups = [item.group for item in self.waiting if isinstance(item, Launch)]
        return {group: partial(self._finish, group) for group in groups}

    def come_to(self, number: int | None) -> None:
        """Do all that comes before an operator computes, of the next one nothing; of None all."""
        while self.waiting:
            first = self.waiting[0]
            if number is not None and isinstance(first, Visit) and first.number > number:
                return
            self.synchronization.run(self.waiting.pop(0))

    def _finish(self, group: int) -> None:
        self.complete.add(group)
        while self.waiting:
            first = self.waiting[0]
            assert isinstance(first, Launch), "whoever gathers isn't watched"
            if first.group not in self.complete:
                return
            self.synchronization.launch(first)
            self.waiting.pop(0)


@dataclass(slots=True, kw_only=True)
class Synchronization:
    """Runs the instructions of one rank that concern gradients and parameter groups."""

    work: Work
    groups: Groups
    recorder: Recorder
    clip_norm: float = math.inf
    in_turn: bool = False  # from ZeRO-2 on: no more than one whole gradient waits to leave
    _launched: dict[int, list[_Sum | None]] = field(default_factory=dict)
    _gathered: dict[int, _Gathering] = field(default_factory=dict)

    def run(self, instruction: Beside) -> None:
        """Do one of those that may be within a slice."""
        match instruction:
            case Launch():
                self.launch(instruction)
            case Gather():
                self.gather(instruction)
            case Take():
                self.take(instruction)
            case Drop():
                self.work.drop(instruction.group)
            case Visit():
                pass

    def synchronize(self, instruction: Synchronize) -> None:
        """Sum a group's gradients, and wait for them."""
        whole = self.work.gradient(instruction.group)
        start = self.recorder.mark()
        total = self._begin(instruction, whole)
        self._finish(total)
        self.recorder.note(
            Kind.SYNC,
            Phase.SYNC,
            start,
            size_bytes=total.size_bytes,
            group=instruction.group,
        )
        self.work.take_gradient(instruction.group, total.own)

    def launch(self, instruction: Launch) -> None:
        """Begin to sum a bucket's gradients."""
        if self.in_turn:
            for group, totals in self._launched.items():
                for total in totals:
                    self._end(group, total)
                self._launched[group] = [None] * len(totals)
        whole = self.work.gradient(instruction.group)
        start = self.recorder.mark()
        total = self._begin(instruction, whole)
        self._launched.setdefault(instruction.group, []).append(total)
        self.recorder.note(Kind.SYNC, Phase.SYNC, start, group=instruction.group, launches=True)

    def finish(self, instruction: Await) -> None:
        """Wait for a bucket that was launched, its first launch first, unless it was waited for."""
        self._end(instruction.group, self._launched[instruction.group].pop(0))

    def clip(self) -> None:
        """Scale the gradients of all ranks to a norm of `clip_norm`, if theirs is larger."""
        total = self.work.squared_norm()
        start = self.recorder.mark()
        self.recorder.is_waiting = True
        dist.all_reduce(total, group=self.groups.world)
        squared_norm = total.item()  # it is here that the host waits where it runs ahead of a GPU
        self.recorder.is_waiting = False
        # As torch does: with something added, so that a norm of 0 divides nothing by nothing.
        factor = self.clip_norm / (math.sqrt(squared_norm) + _NORM_EPSILON)
        if factor < 1:
            self.work.scale_gradients(factor)
        size_bytes = float(total.numel() * total.element_size())
        self.recorder.note(Kind.SYNC, Phase.SYNC, start, size_bytes=size_bytes)

    def gather(self, instruction: Gather) -> None:
        """Begin to take from each rank of a group the range of parameters that it stepped.

        And wait for it, if it is to last.
        """
        members = self.groups.members(instruction.devices)
        assert members is not None, "a group of one has nothing to gather"
        group = instruction.group
        assert group not in self._gathered, "a group's parameters have one place"
        start = self.recorder.mark()
        whole, own = self.work.gathering(group)
        self.recorder.is_waiting = True
        pending = begin_all_gather(whole, own, members)
        self.recorder.is_waiting = False
        size_bytes = float(whole.numel() * whole.element_size())
        self._gathered[group] = _Gathering(pending=pending, own=own, size_bytes=size_bytes)
        if instruction.lasts:
            self._take(group, start)
            return
        self.recorder.note(Kind.SYNC, Phase.SYNC, start, group=_meeting(group), launches=True)

    def take(self, instruction: Take) -> None:
        """Wait for a group's parameters, whose gathering was begun."""
        self._take(instruction.group, self.recorder.mark())

    def _take(self, group: int, start: Mark) -> None:
        gathering = self._gathered.pop(group)
        self.recorder.is_waiting = True
        gathering.pending.wait()
        self.recorder.is_waiting = False
        self.recorder.note(
            Kind.SYNC,
            Phase.SYNC,
            start,
            size_bytes=gathering.size_bytes,
            group=_meeting(group),
        )
        self.work.gathered(group)

    def _end(self, group: int, total: _Sum | None) -> None:
        if total is None:
            return
        start = self.recorder.mark()
        self._finish(total)
        self.recorder.note(Kind.SYNC, Phase.SYNC, start, size_bytes=total.size_bytes, group=group)
        self.work.take_gradient(group, total.own)

    def _begin(self, instruction: Synchronize | Launch, whole: torch.Tensor) -> _Sum:
        members = self.groups.members(instruction.devices)
        assert members is not None, "a group of one has nothing to synchronize"
        self.recorder.is_waiting = True
        own = whole
        if instruction.scatter:
            own = whole.new_empty(len(whole) // len(members.ranks))
            pending = begin_reduce_scatter(own, whole, members)
        else:
            pending = begin_all_reduce(whole, members)
        self.recorder.is_waiting = False
        return _Sum(pending=pending, whole=whole, own=own)

    def _finish(self, total: _Sum) -> None:
        self.recorder.is_waiting = True
        total.pending.wait()
        self.recorder.is_waiting = False


def _meeting(group: int) -> int:
    """Give another meeting for gathering than for the group's sum, which has its index."""
    return -2 - group
