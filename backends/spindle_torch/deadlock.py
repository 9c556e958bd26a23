"""A proof that programs end, made before anything starts: they are run with rendezvous semantics.

Nothing is buffered here: a batch of messages is over once each message met its match in the peer's
batch, a collective once all of its ranks are there, and one that is launched to run beside others,
or gathers ahead (ZeRO-3), holds its rank up, too. What ends under these rules ends under any amount
of buffering. No torch here.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from spindle_sim.errors import PlanError
from spindle_torch.program import (
    Await,
    Batch,
    Clip,
    Compute,
    Gather,
    Instruction,
    Launch,
    Message,
    Program,
    Synchronize,
    Take,
)

__all__ = ["Stuck", "check_programs", "find_stuck"]

_Pair = tuple[int, int]  # source rank, target rank
_Meeting = tuple[tuple[int, ...], int]  # a device group and how often it met before


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """An instruction that never ends, and why."""

    rank: int
    position: int
    instruction: str
    reason: str

    def __str__(self) -> str:
        return f"rank {self.rank}, instruction {self.position}: {self.instruction}: {self.reason}"


def check_programs(programs: Sequence[Program]) -> None:
    """Pass programs that end.

    Raises:
        PlanError: they don't; every instruction that would wait for ever is named.
    """
    stuck = find_stuck(programs)
    if stuck:
        raise PlanError(*(f"the programs would deadlock: {item}" for item in stuck))


def find_stuck(programs: Sequence[Program]) -> tuple[Stuck, ...]:
    """Give the instruction at which each rank waits for ever; nothing if all ranks end.

    What ends doesn't depend on which rank is advanced first: a rank only ever waits for others to
    arrive, and an arrival is never taken back.
    """
    run = _Run(programs={program.rank: program for program in programs})
    waiting = dict.fromkeys(run.programs)
    while waiting:
        waiting = {peer: None for rank in waiting for peer in run.advance(rank)}
    return tuple(run.stuck())


@dataclass(slots=True)
class _Run:
    """How far each rank has come, and what it has posted on the way."""

    programs: dict[int, Program]
    position: dict[int, int] = field(default_factory=dict)
    arrived_at: dict[int, int] = field(default_factory=dict)  # instruction whose messages are out
    sent: dict[_Pair, list[Message]] = field(default_factory=dict)
    received: dict[_Pair, list[Message]] = field(default_factory=dict)
    meetings: dict[_Meeting, dict[int, str]] = field(default_factory=dict)
    met: dict[tuple[int, tuple[int, ...]], int] = field(default_factory=dict)
    launched: Counter[tuple[int, int]] = field(default_factory=Counter)  # by rank and bucket
    gathered: Counter[tuple[int, int]] = field(default_factory=Counter)

    def advance(self, rank: int) -> Iterator[int]:
        """Run a rank as far as it comes; give the ranks that may go on because of it."""
        instructions = self.programs[rank].instructions
        while (position := self.position.get(rank, 0)) < len(instructions):
            instruction = instructions[position]
            if self.arrived_at.get(rank) != position:
                self.arrived_at[rank] = position
                self._arrive(rank, instruction)
                yield from self._partners(rank, instruction)
            if self._reason(rank, instruction):
                return
            for group in _groups(rank, instruction):
                self.met[rank, group] = self.met.get((rank, group), 0) + 1
            if isinstance(instruction, Launch):
                self.launched[rank, instruction.group] += 1
            if isinstance(instruction, Await):
                self.launched[rank, instruction.group] -= 1
            if isinstance(instruction, Gather):
                self.gathered[rank, instruction.group] += not instruction.lasts
            if isinstance(instruction, Take):
                self.gathered[rank, instruction.group] -= 1
            self.position[rank] = position + 1

    def stuck(self) -> Iterator[Stuck]:
        """Give the ranks that haven't ended."""
        for rank, program in sorted(self.programs.items()):
            position = self.position.get(rank, 0)
            if position < len(program.instructions):
                instruction = program.instructions[position]
                yield Stuck(
                    rank=rank,
                    position=position,
                    instruction=str(instruction),
                    reason=self._reason(rank, instruction),
                )

    def _arrive(self, rank: int, instruction: Instruction) -> None:
        if isinstance(instruction, Batch):
            for message in instruction.sends:
                self.sent.setdefault((rank, message.piece.target), []).append(message)
            for message in instruction.receives:
                self.received.setdefault((message.piece.source, rank), []).append(message)
        for group in _groups(rank, instruction):
            key = group, self.met.get((rank, group), 0)
            self.meetings.setdefault(key, {})[rank] = str(instruction)

    def _partners(self, rank: int, instruction: Instruction) -> Iterator[int]:
        if isinstance(instruction, Batch):
            yield from (message.piece.target for message in instruction.sends)
            yield from (message.piece.source for message in instruction.receives)
        for group in _groups(rank, instruction):
            yield from group

    def _reason(self, rank: int, instruction: Instruction) -> str:
        """Say what an instruction at which the rank has arrived waits for; "" if for nothing."""
        if isinstance(instruction, Await) and not self.launched[rank, instruction.group]:
            return "it was never launched"
        if isinstance(instruction, Take) and not self.gathered[rank, instruction.group]:
            return "it was never begun"
        if isinstance(instruction, Batch):
            reason = self._batch_reason(rank, instruction)
            if reason:
                return reason
        for group in _groups(rank, instruction):
            present = self.meetings[group, self.met.get((rank, group), 0)]
            missing = [str(other) for other in group if other not in present]
            if missing:
                return f"rank {', '.join(missing)} of its group never comes"
            others = sorted({what for what in present.values() if what != str(instruction)})
            if others:
                return f"others of its group come for the {others[0]}"
        return ""

    def _batch_reason(self, rank: int, batch: Batch) -> str:
        for message in batch.sends:
            pair = rank, message.piece.target
            reason = _unmatched(message, self.sent[pair], self.received.get(pair, []))
            if reason:
                return f"rank {pair[1]} {reason}"
        for message in batch.receives:
            pair = message.piece.source, rank
            reason = _unmatched(message, self.received[pair], self.sent.get(pair, []))
            if reason:
                return f"rank {pair[0]} {reason}"
        return ""


def _groups(rank: int, instruction: Instruction) -> tuple[tuple[int, ...], ...]:
    if isinstance(instruction, Synchronize | Launch | Clip | Gather):
        return (instruction.devices,)
    if isinstance(instruction, Compute):
        return tuple(group for group in instruction.collectives if rank in group)
    return ()


def _unmatched(message: Message, own: list[Message], others: list[Message]) -> str:
    """Say why a message isn't matched by the peer's one of the same place in the pair's order."""
    place = next(index for index, item in enumerate(own) if item is message)
    if place >= len(others):
        return "never posts its side"
    if others[place] != message:
        return f"posts flow {others[place].flow} where flow {message.flow} is due"
    return ""
