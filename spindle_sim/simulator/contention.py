"""Compute beside collectives: kernels take longer while their device synchronizes."""

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field

import simpy
from simpy.events import Event

__all__ = ["DEFAULT_SLOWDOWN", "Contention"]

# How much longer backward kernels take beside NCCL's, as the planner Galvatron measures and ships
# it (overlap_coefficient.json).
DEFAULT_SLOWDOWN = 1.126


@dataclass(slots=True)
class Contention:
    """Which devices synchronize now, and what computes on them."""

    env: simpy.Environment
    slowdown: float
    _in_flight: dict[int, int] = field(default_factory=dict)
    _changed: dict[int, Event] = field(default_factory=dict)  # of the computation on a device

    def begin(self, devices: Iterable[int]) -> None:
        """Note that a collective of these devices has begun."""
        self._add(devices, 1)

    def end(self, devices: Iterable[int]) -> None:
        """Note that it has ended."""
        self._add(devices, -1)

    def compute(self, devices: tuple[int, ...], work_s: float) -> Generator[Event, object, None]:
        """Compute for `work_s`, and `slowdown` times as long while one of the devices synchronizes.

        The devices of a slice go together: the slowest holds up the others.
        """
        if self.slowdown == 1:
            yield self.env.timeout(work_s)
            return
        while True:
            beside = any(self._in_flight.get(device) for device in devices)
            factor = self.slowdown if beside else 1.0
            started_s, changed = self.env.now, self.env.event()
            self._changed |= dict.fromkeys(devices, changed)
            ended = self.env.timeout(work_s * factor)
            yield ended | changed
            if ended.processed:
                return
            work_s = max(work_s - (self.env.now - started_s) / factor, 0.0)

    def _add(self, devices: Iterable[int], count: int) -> None:
        for device in devices:
            before = self._in_flight.get(device, 0)
            self._in_flight[device] = before + count
            changed = self._changed.get(device)
            if changed and not changed.triggered and not (before and before + count):
                changed.succeed()
