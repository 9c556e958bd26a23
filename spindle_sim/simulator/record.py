"""Writing down what happened: spans as they end, laid on streams when all is over."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from spindle_sim.plan import MetaOp, Slice
from spindle_sim.timeline import Kind, Phase, Span

__all__ = ["Record"]


@dataclass(slots=True)
class Record:
    """The spans so far."""

    compute: list[Span] = field(default_factory=list)
    communication: list[Span] = field(default_factory=list)

    def operation(
        self, item: Slice, metaop: MetaOp, phase: Phase, start_s: float, *, end_s: float
    ) -> None:
        """Note that every device of a slice computed."""
        for device in item.devices:
            self.compute.append(
                Span(
                    device=device,
                    start_s=start_s,
                    end_s=end_s,
                    kind=Kind.COMPUTE,
                    phase=phase,
                    metaop=metaop.id,
                    task=metaop.task,
                    slice=item.id,
                )
            )

    def optimizer(self, device: int, start_s: float, end_s: float) -> None:
        """Note that a device stepped its optimizer."""
        self.compute.append(
            Span(device=device, start_s=start_s, end_s=end_s, kind=Kind.OPTIMIZER, phase=Phase.STEP)
        )

    def sync(self, devices: Iterable[int], start_s: float, end_s: float, size_bytes: float) -> None:
        """Note that devices all-reduced `size_bytes` each."""
        self.communication += [
            Span(
                device=device,
                start_s=start_s,
                end_s=end_s,
                kind=Kind.SYNC,
                phase=Phase.SYNC,
                stream=1,
                bytes=size_bytes,
            )
            for device in devices
        ]

    def spans(self) -> tuple[Span, ...]:
        """Give all spans by device, stream and start, none overlapping on a stream.

        Streams of communication are handed out greedily: a span takes the lowest one that is free.
        """
        communication = sorted(
            self.communication,
            key=lambda span: (span.device, span.start_s, span.end_s, span.kind, span.slice),
        )
        laid: list[Span] = []
        device = -1
        free: list[int] = []
        busy: list[tuple[float, int]] = []
        opened = 0
        for span in communication:
            if span.device != device:
                device, free, busy, opened = span.device, [], [], 0
            while busy and busy[0][0] <= span.start_s:
                heappush(free, heappop(busy)[1])
            if free:
                stream = heappop(free)
            else:
                opened += 1
                stream = opened
            heappush(busy, (span.end_s, stream))
            laid.append(span if span.stream == stream else replace(span, stream=stream))
        laid += self.compute
        laid.sort(key=lambda span: (span.device, span.stream, span.start_s, span.end_s))
        return tuple(laid)
