"""How a placed plan plays out, roughly, as time goes on: for the forecast.

As `plan.schedule`, but with transfers: each takes what it takes alone, behind those that began
before it on the same NICs. Computing beside synchronization is slowed, as the simulator has it.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from spindle_sim.plan import Plan
from spindle_sim.plan.schedule import Operation, operation_order
from spindle_sim.planner.affinity import Affinity, Crossing, Group

__all__ = ["Gives", "Played", "Span", "crossings", "play"]

Gives = tuple[list[list[tuple[int, Crossing]]], ...]  # forward, backward: by slice

# How much longer computing beside synchronization takes: what the simulator takes where it isn't
# told otherwise.
SLOWDOWN = 1.126


class Span(NamedTuple):
    """When some devices synchronize."""

    start_s: float
    end_s: float
    devices: tuple[int, ...]


class Played(NamedTuple):
    """When each device has done its last backward, and each slice's last backward's times."""

    free: list[float]
    backwards: list[tuple[float, float]]


def play(plan: Plan, gives: Gives, spans: Iterable[Span] = ()) -> Played:
    """Play the plan as time goes on; what computes during `spans` on its devices is slower."""
    links, slowed = _Links(), _Slowed.of(spans)
    masks = [_mask(item.devices) for item in plan.slices]
    order = operation_order(plan)
    place = {operation: at for at, operation in enumerate(order)}
    queue = _Queue.of(plan, order, gives, place)
    free = [0.0] * plan.cluster.num_devices
    backwards = [(0.0, 0.0)] * len(plan.slices)
    running: list[tuple[float, int]] = []  # when operations end

    def start(at: int) -> None:
        index, back, _ = order[at]
        item = plan.slices[index]
        takes_s = item.backward_s if back else item.forward_s
        end_s = slowed.after(queue.ready_s[at], takes_s, masks[index])
        if back:
            backwards[index] = queue.ready_s[at], end_s
        heappush(running, (end_s, at))

    for at in queue.begun():
        start(at)
    while running:
        end_s, at = heappop(running)
        index, back, number = order[at]
        for device in plan.slices[index].devices:
            free[device] = end_s
        reached = [(following, end_s) for following in queue.following[at]]
        for other, crossing in gives[back][index]:
            target = place.get(Operation(other, back, number))
            if target is not None:
                reached.append((target, links.after(end_s, crossing, reverse=back)))
        for following, time_s in reached:
            if queue.reached(following, time_s):
                start(following)
    return Played(free, backwards)


def crossings(plan: Plan) -> Gives:
    """Give what each slice hands to which others, forward and backward."""
    affinity = Affinity(plan.cluster)
    groups = [Group(item.devices, item.tp) for item in plan.slices]
    index_of = {item.id: index for index, item in enumerate(plan.slices)}
    forward: list[list[tuple[int, Crossing]]] = [[] for _ in plan.slices]
    backward: list[list[tuple[int, Crossing]]] = [[] for _ in plan.slices]
    for flow in plan.flows:
        source, target = index_of[flow.source_slice], index_of[flow.target_slice]
        size_bytes = flow.bytes / plan.micro_batches(plan.slices[source].round)
        crossing = affinity.crossing(groups[source], groups[target], size_bytes)
        forward[source].append((target, crossing))
        if flow.gradient:
            backward[target].append((source, crossing))
    return forward, backward


@dataclass(slots=True)
class _Links:
    """NICs, each way, and the fabric: until when each is full, as transfers begin in turn."""

    full_s: dict[tuple[int, bool], float] = field(default_factory=dict)

    def after(self, start_s: float, crossing: Crossing, *, reverse: bool) -> float:
        """Give when a transfer arrives that begins at `start_s`, behind those before it."""
        loads = [((nic, into != reverse), s) for (nic, into), s in crossing.nics.items()]
        if crossing.fabric_s:
            loads.append(((-1, False), crossing.fabric_s))
        end_s = start_s + crossing.takes_s
        for link, seconds in loads:
            self.full_s[link] = max(self.full_s.get(link, 0.0), start_s) + seconds
            end_s = max(end_s, self.full_s[link])
        return end_s


@dataclass(slots=True)
class _Queue:
    """What operations wait for: those before them on their devices, and their inputs."""

    ready_s: list[float]
    waits: list[int]
    following: list[list[int]]  # on a device of it

    @classmethod
    def of(
        cls,
        plan: Plan,
        order: Sequence[Operation],
        gives: Gives,
        place: Mapping[Operation, int],
    ) -> "_Queue":
        """Count what each operation waits for."""
        waits = [0] * len(order)
        following: list[list[int]] = [[] for _ in order]
        last: dict[int, int] = {}
        for at, (index, back, number) in enumerate(order):
            devices = plan.slices[index].devices
            for before in {last[d] for d in devices if d in last}:
                following[before].append(at)
                waits[at] += 1
            last |= dict.fromkeys(devices, at)
            for other, _ in gives[back][index]:
                target = place.get(Operation(other, back, number))
                if target is not None:
                    waits[target] += 1
        return cls([0.0] * len(order), waits, following)

    def begun(self) -> list[int]:
        """Give the operations that wait for nothing."""
        return [at for at, count in enumerate(self.waits) if not count]

    def reached(self, at: int, time_s: float) -> bool:
        """Note that something an operation waits for is there; tell whether all is."""
        self.ready_s[at] = max(self.ready_s[at], time_s)
        self.waits[at] -= 1
        return not self.waits[at]


@dataclass(frozen=True, slots=True)
class _Slowed:
    """When which devices synchronize, as bits, and so compute more slowly; by start."""

    starts: list[float]
    spans: list[tuple[float, float, int]]
    longest_s: float

    @classmethod
    def of(cls, spans: Iterable[Span]) -> "_Slowed":
        """Order the spans."""
        found = sorted((span.start_s, span.end_s, _mask(span.devices)) for span in spans)
        longest_s = max((end_s - start_s for start_s, end_s, _ in found), default=0.0)
        return cls([start_s for start_s, _, _ in found], found, longest_s)

    def after(self, start_s: float, takes_s: float, mask: int) -> float:
        """Give when computing ends that takes so long where nothing synchronizes."""
        now_s, left_s = start_s, takes_s
        for index in range(bisect_left(self.starts, start_s - self.longest_s), len(self.spans)):
            since_s, until_s, devices = self.spans[index]
            if since_s >= now_s + left_s:
                break
            if until_s <= now_s or not devices & mask:
                continue
            before_s = max(0.0, since_s - now_s)
            done_s = (until_s - max(since_s, now_s)) / SLOWDOWN
            if before_s + done_s >= left_s:
                return now_s + before_s + (left_s - before_s) * SLOWDOWN
            now_s, left_s = until_s, left_s - before_s - done_s
        return now_s + left_s


def _mask(devices: Iterable[int]) -> int:
    return sum(1 << device for device in devices)
