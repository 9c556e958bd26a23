"""The end of an iteration on one rank: gradients summed over groups, clipped, parameters gathered.

Sums may be launched while the backward still runs, and are awaited at the end: all of it in the
order of the program, which is the same on every rank.
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
from spindle_torch.program import Await, Gather, Launch, Synchronize
from spindle_torch.recorder import Recorder
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


@dataclass(slots=True, kw_only=True)
class Within:
    """What a slice gathers and launches while it computes: in order, the same on every rank."""

    synchronization: "Synchronization"
    waiting: list[Gather | Launch]
    complete: set[int] = field(default_factory=set)

    @property
    def watched(self) -> Mapping[int, Callable[[], None]]:
        """Give what to call when the gradients of a bucket are complete, if that decides.

        Each is launched then, or as soon as those before it are. Where parameters are gathered,
        gradients leave when the operator before is come to.
        """
        if any(isinstance(item, Gather) for item in self.waiting):
            return {}
        return {item.group: partial(self._finish, item.group) for item in self.waiting}

    def come_to(self, group: int | None) -> None:
        """Do what comes before a group's parameters, and gather them; with None do all."""
        while self.waiting:
            instruction = self.waiting.pop(0)
            if isinstance(instruction, Launch):
                self.synchronization.launch(instruction)
                continue
            self.synchronization.gather(instruction)
            if instruction.group == group:
                return

    def _finish(self, group: int) -> None:
        self.complete.add(group)
        while self.waiting and self.waiting[0].group in self.complete:
            launch = self.waiting.pop(0)
            assert isinstance(launch, Launch), "whoever gathers isn't watched"
            self.synchronization.launch(launch)


@dataclass(slots=True, kw_only=True)
class Synchronization:
    """Runs the instructions of one rank that concern gradients and parameter groups."""

    work: Work
    groups: Groups
    recorder: Recorder
    clip_norm: float = math.inf
    in_turn: bool = False  # from ZeRO-2 on: no more than one whole gradient waits to leave
    _launched: dict[int, list[_Sum | None]] = field(default_factory=dict)

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
        """Take from each rank of a group the range of parameters that it stepped."""
        members = self.groups.members(instruction.devices)
        assert members is not None, "a group of one has nothing to gather"
        whole, own = self.work.gathering(instruction.group)
        start = self.recorder.mark()
        self.recorder.is_waiting = True
        begin_all_gather(whole, own, members).wait()
        self.recorder.is_waiting = False
        # Another meeting than the group's synchronization, which has its index.
        meeting = -2 - instruction.group
        size_bytes = float(whole.numel() * whole.element_size())
        self.recorder.note(Kind.SYNC, Phase.SYNC, start, size_bytes=size_bytes, group=meeting)
        self.work.gathered(instruction.group)
        if not (instruction.lasts or instruction.within):
            whole.untyped_storage().resize_(0)  # it was others who needed it

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
