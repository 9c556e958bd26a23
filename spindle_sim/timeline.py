"""WHAT HAPPENED: the spans of one iteration, pure data, made by every backend alike."""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Kind", "MemorySample", "Phase", "Span", "Timeline"]


class Kind(StrEnum):
    """What a device does during a span."""

    COMPUTE = "compute"
    SEND = "send"
    RECEIVE = "receive"
    COPY = "copy"  # stays on the device
    SYNC = "sync"  # gradient all-reduce (or reduce-scatter and all-gather)
    OPTIMIZER = "optimizer"


class Phase(StrEnum):
    """The part of the training step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    SYNC = "sync"
    STEP = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One device doing one thing from `start_s` to `end_s`, seconds since the iteration began.

    `stream` is 0 for compute and 1 for communication: spans of one device and stream never
    overlap. Sends and receives of one device at one time are merged into streams 1, 2, ...
    `slice`, `metaop` and `task` are empty where they don't apply (sync, optimizer).
    """

    device: int
    start_s: float
    end_s: float
    kind: Kind
    phase: Phase
    metaop: str = ""
    task: str = ""
    slice: str = ""
    stream: int = 0
    bytes: float = 0.0
    peer: int | None = None  # of a send or receive
    wait_s: float = 0.0  # part of it spent waiting for the peer, or for parameters (ZeRO-3)
    micro_batch: int = 0  # of a compute span or transfer, where a round has several

    @property
    def duration_s(self) -> float:
        """Seconds from start to end."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySample:
    """The bytes that a device holds from `time_s` on, until its next sample."""

    device: int
    time_s: float
    bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One iteration as it ran (simulated or executed)."""

    backend: str  # "simulator", "torch-gloo", "torch-nccl"
    num_devices: int
    spans: tuple[Span, ...]
    memory: tuple[MemorySample, ...] = ()

    @property
    def iteration_s(self) -> float:
        """End of the last span."""
        return max((span.end_s for span in self.spans), default=0.0)
