"""How a placed plan plays out, roughly, as time goes on: for the forecast.

As `plan.schedule`, but with transfers: each takes what it takes alone, behind those that began
before it on the same NICs. Computing beside synchronization is slowed, as the simulator has it.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

from spindle_sim.plan import Plan
from spindle_sim.plan.cuts import token_shards
from spindle_sim.plan.schedule import Operation, operation_order
from spindle_sim.planner.affinity import Affinity, Crossing, Group

__all__ = ["Course", "Gives", "Played", "Span", "crossings"]

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


class _Way(NamedTuple):
    """A transfer: what it takes alone, and for how long it fills NICs, each way, and the fabric."""

    takes_s: float
    loads: tuple[tuple[tuple[int, bool], float], ...]

    @classmethod
    def of(cls, crossing: Crossing, *, reverse: bool) -> "_Way":
        """Take a crossing, or the same one backwards."""
        loads = [((nic, into != reverse), s) for (nic, into), s in crossing.nics.items()]
        if crossing.fabric_s:
            loads.append(((-1, False), crossing.fabric_s))
        return cls(crossing.takes_s, tuple(loads))

    def after(self, start_s: float, full_s: dict[tuple[int, bool], float]) -> float:
        """Give when it arrives if it begins at `start_s`, behind those before it.

        `full_s` tells until when each link is full, as transfers begin in turn.
        """
        end_s = start_s + self.takes_s
        for link, seconds in self.loads:
            until_s = max(full_s.get(link, 0.0), start_s) + seconds
            full_s[link] = until_s
            end_s = max(end_s, until_s)
        return end_s


_Handover = tuple[int, _Way]


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What a plan's operations wait for and hand on: found once, to be played several times."""

    plan: Plan
    order: Sequence[Operation]
    waits: Sequence[int]  # by operation: how many others it waits for
    following: Sequence[Sequence[int]]  # those behind it on a device of it
    hands: Sequence[Sequence[_Handover]]  # those that take its output

    @classmethod
    def of(cls, plan: Plan) -> "Course":
        """Count what each operation waits for, on its devices and of its inputs."""
        order, gives = operation_order(plan), crossings(plan)
        place: dict[tuple[int, bool, int], int] = {op: at for at, op in enumerate(order)}
        ways = tuple(
            [
                [(other, _Way.of(crossing, reverse=back)) for other, crossing in own]
                for own in all_own
            ]
            for back, all_own in zip((False, True), gives, strict=True)
        )
        waits = [0] * len(order)
        following: list[list[int]] = [[] for _ in order]
        hands: list[list[_Handover]] = []
        last: dict[int, int] = {}
        for at, (index, back, number) in enumerate(order):
            devices = plan.slices[index].devices
            for before in {last[d] for d in devices if d in last}:
                following[before].append(at)
                waits[at] += 1
            last.update(dict.fromkeys(devices, at))
            reached = [(place.get((other, back, number)), way) for other, way in ways[back][index]]
            hands.append([(target, way) for target, way in reached if target is not None])
            for target, _ in hands[-1]:
                waits[target] += 1
        return cls(plan=plan, order=order, waits=waits, following=following, hands=hands)

    def play(self, spans: Iterable[Span] = ()) -> Played:
        """Play the plan as time goes on; what computes during `spans` on its devices is slower."""
        slices, order = self.plan.slices, self.order
        slowed, full_s = _Slowed.of(spans), dict[tuple[int, bool], float]()
        masks = [_mask(item.devices) for item in slices] if slowed.spans else [0] * len(slices)
        waits, ready_s, ends_s = list(self.waits), [0.0] * len(order), [0.0] * len(order)
        backwards = [(0.0, 0.0)] * len(slices)
        running: list[tuple[float, int]] = []  # when operations end

        def start(at: int) -> None:
            index, back, _ = order[at]
            item = slices[index]
            takes_s = item.backward_s if back else item.forward_s
            end_s = slowed.after(ready_s[at], takes_s, masks[index])
            if back:
                backwards[index] = ready_s[at], end_s
            heappush(running, (end_s, at))

        for at, count in enumerate(waits):
            if not count:
                start(at)
        while running:
            end_s, at = heappop(running)
            ends_s[at] = end_s
            reached = [(following, end_s) for following in self.following[at]]
            reached += [(target, way.after(end_s, full_s)) for target, way in self.hands[at]]
            for target, time_s in reached:
                ready_s[target] = max(ready_s[target], time_s)
                waits[target] -= 1
                if not waits[target]:
                    start(target)
        free = [0.0] * self.plan.cluster.num_devices
        for (index, _, _), end_s in zip(order, ends_s, strict=True):
            for device in slices[index].devices:
                free[device] = end_s  # in the order of the device
        return Played(free, backwards)


def crossings(plan: Plan) -> Gives:
    """Give what each slice hands to which others, forward and backward."""
    affinity = Affinity(plan.cluster)
    groups = [Group(item.devices, item.tp) for item in plan.slices]
    index_of = {item.id: index for index, item in enumerate(plan.slices)}
    shards = token_shards(plan)
    forward: list[list[tuple[int, Crossing]]] = [[] for _ in plan.slices]
    backward: list[list[tuple[int, Crossing]]] = [[] for _ in plan.slices]
    for flow in plan.flows:
        source, target = index_of[flow.source_slice], index_of[flow.target_slice]
        cuts = plan.micro_batches(plan.slices[source].round)
        cuts *= shards.get((flow.source_slice, flow.target_slice), 1)
        size_bytes = flow.bytes / cuts
        crossing = affinity.crossing(groups[source], groups[target], size_bytes)
        forward[source].append((target, crossing))
        if flow.gradient:
            backward[target].append((source, crossing))
    return forward, backward


@dataclass(frozen=True, slots=True)
class _Slowed:
    """When which devices synchronize, as bits, and so compute more slowly; by start."""

    starts: list[float]
    spans: list[tuple[float, float, int]]
    longest_s: float

    @classmethod
    def of(cls, spans: Iterable[Span]) -> "_Slowed":
        """Order the spans."""
        masks: dict[tuple[int, ...], int] = {}
        found: list[tuple[float, float, int]] = []
        for start_s, end_s, devices in spans:
            if devices not in masks:
                masks[devices] = _mask(devices)
            found.append((start_s, end_s, masks[devices]))
        found.sort()
        longest_s = max((end_s - start_s for start_s, end_s, _ in found), default=0.0)
        return cls([start_s for start_s, _, _ in found], found, longest_s)

    def after(self, start_s: float, takes_s: float, mask: int) -> float:
        """Give when computing ends that takes so long where nothing synchronizes."""
        now_s, left_s = start_s, takes_s
        if not self.spans:
            return now_s + left_s
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
