"""What one rank does in an iteration, as a list of instructions; pure data, no torch.

The simulator's replay, the static check (`deadlock.py`) and the engine read the same programs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from spindle_torch.intervals import Piece

__all__ = [
    "Await",
    "Batch",
    "Beside",
    "Clip",
    "Compute",
    "Copy",
    "Drop",
    "Gather",
    "Instruction",
    "Launch",
    "Message",
    "Program",
    "Step",
    "Synchronize",
    "Take",
    "Visit",
    "within_each",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """The forward or the backward of a slice, for one micro-batch of its round.

    `collectives` are the device groups within which the slice's ranks meet while they compute:
    tensor-parallel ranks, and data-parallel ranks where a loss couples the batch.
    """

    slice: str
    backward: bool
    collectives: tuple[tuple[int, ...], ...] = ()
    micro_batch: int = 0

    def __str__(self) -> str:
        return (
            f"{'backward' if self.backward else 'forward'} of {self.slice}"
            f"{_numbered(self.micro_batch)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A piece of a flow's activations, or of their gradient where `backward`.

    Samples of the piece count from the first of the micro-batch.
    """

    flow: int  # its index in the plan
    backward: bool
    piece: Piece
    micro_batch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A piece that stays on the device."""

    message: Message

    def __str__(self) -> str:
        return f"copy of flow {self.message.flow}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Everything that one operation's output sends to or receives from others on this rank.

    All of it is posted at once. Messages between two ranks match by their order alone.
    """

    slice: str  # whose output is moved
    backward: bool
    sends: tuple[Message, ...] = ()
    receives: tuple[Message, ...] = ()
    micro_batch: int = 0

    def __str__(self) -> str:
        peers = [f"to {m.piece.target}" for m in self.sends]
        peers += [f"from {m.piece.source}" for m in self.receives]
        what = "gradient" if self.backward else "output"
        return (
            f"messages with the {what} of {self.slice}{_numbered(self.micro_batch)}"
            f" ({', '.join(peers)})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Synchronize:
    """The sum of a parameter group's gradients over its devices; `group` indexes the pool.

    With `scatter` (ZeRO-1) each device gets the sum of its own range alone.
    """

    group: int
    devices: tuple[int, ...]
    scatter: bool = False

    def __str__(self) -> str:
        return f"synchronization of parameter group {self.group}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The begin of a synchronization that runs beside what follows; `group` indexes the buckets.

    One that is `within` the backward before it may begin while that runs, once its gradients are
    complete. Whoever of its devices don't run that backward begin where it stands. From ZeRO-2 on
    there is one behind every backward that adds to the gradients.
    """

    group: int
    devices: tuple[int, ...]
    scatter: bool = False
    within: bool = False

    def __str__(self) -> str:
        return f"launch of bucket {self.group}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Await:
    """The end of a synchronization that this rank has launched."""

    group: int

    def __str__(self) -> str:
        return f"end of bucket {self.group}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """The norm of all gradients over these devices, and their scaling where it is too large."""

    devices: tuple[int, ...]

    def __str__(self) -> str:
        return "gradient clipping"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The optimizer's step on this rank's parameters."""

    def __str__(self) -> str:
        return "optimizer step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather:
    """With ZeRO each device of a parameter group gives the others the range that it holds.

    After the step (stages 1 and 2) it is waited for. In stage 3 nothing of it `lasts`: it only
    begins here, an operator ahead of the one that needs it, and goes on beside what follows until
    the group is taken. It is `within` a forward or backward on the devices that compute meanwhile.
    Whoever of the devices don't need the group give their ranges all the same.
    """

    group: int
    devices: tuple[int, ...]
    within: bool = False
    lasts: bool = True

    def __str__(self) -> str:
        return f"gathering of parameter group {self.group}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """The slice before comes to an operator of its own (ZeRO-3): those before it are done.

    `number` counts in the order in which they are come to, in a backward from the last operator
    on. After them all comes one more, the end.
    """

    number: int
    within: bool = True

    def __str__(self) -> str:
        return f"operator {self.number} of the slice, as it goes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """The end of a group's gathering that this rank has begun (ZeRO-3)."""

    group: int
    within: bool = False

    def __str__(self) -> str:
        return f"end of the gathering of parameter group {self.group}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Giving up what others hold of a group (ZeRO-3)."""

    group: int
    within: bool = False

    def __str__(self) -> str:
        return f"giving up parameter group {self.group}"


Beside = Launch | Gather | Visit | Take | Drop
Instruction = Compute | Copy | Batch | Synchronize | Await | Clip | Step | Beside


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The instructions of one rank, in order."""

    rank: int
    instructions: tuple[Instruction, ...]


def within_each(instructions: Sequence[Instruction]) -> dict[int, tuple[Beside, ...]]:
    """Give what is behind each computing, by its place, and may run within it."""
    found: dict[int, list[Beside]] = {}
    leader = 0
    for position, instruction in enumerate(instructions):
        if not isinstance(instruction, Beside):
            leader = position
        elif instruction.within:
            found.setdefault(leader, []).append(instruction)
    return {position: tuple(beside) for position, beside in found.items()}


def _numbered(micro_batch: int) -> str:
    return f", micro-batch {micro_batch}" if micro_batch else ""
