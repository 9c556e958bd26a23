"""Who gathers which parameters when, and gives them up, in ZeRO-3; pure, no torch.

All devices of a group come to its gathering, those that need it and those that only give their
ranges, each where it stands in the one order of all programs. Before an operator computes, what the
next one needs is on its way: that of the same slice, or the first of those whose devices come to
them next. A rank never has more than two groups whole, those on their way counted, unless one
operator alone needs more: what has no room is gathered when it is come to. What the next operator
uses, too, stays.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from spindle_sim.plan import Plan
from spindle_sim.plan.schedule import Operation
from spindle_torch.buckets import Bucket
from spindle_torch.program import Beside, Drop, Gather, Launch, Take, Visit
from spindle_torch.sharding import ShardedSlice

__all__ = ["Gatherings", "Placed"]

_MOST_WHOLE = 2  # of a rank's groups: what a plan's memory counts
_START = -1


class Placed(NamedTuple):
    """An instruction of several devices, at one place in the order of all."""

    devices: tuple[int, ...]
    instruction: Beside


@dataclass(slots=True)
class _Held:
    """What a rank has whole, or on its way: groups that it uses now or next, and others' ones."""

    used: set[int] = field(default_factory=set)
    next: set[int] = field(default_factory=set)
    passing: dict[int, None] = field(default_factory=dict)  # the oldest first
    on_way: set[int] = field(default_factory=set)

    @property
    def own(self) -> set[int]:
        return self.used | self.next

    @property
    def whole(self) -> set[int]:
        return self.own.union(self.passing)


@dataclass(slots=True, kw_only=True)
class Gatherings:
    """Places gatherings around the operations of an order, to be asked for one after the other."""

    plan: Plan
    order: Sequence[Operation]
    slices: Mapping[str, ShardedSlice]
    buckets: Sequence[Bucket]
    _held: list[_Held] = field(init=False)
    _following: dict[int, list[int]] = field(init=False)

    def __post_init__(self) -> None:
        """Find out which operations come next behind each: when the last of their devices does."""
        self._held = [_Held() for _ in range(self.plan.cluster.num_devices)]
        self._following = {}
        latest: dict[int, int] = {}
        for position, operation in enumerate(self.order):
            devices = self.plan.slices[operation.slice_index].devices
            before = max(latest.get(device, _START) for device in devices)
            self._following.setdefault(before, []).append(position)
            latest |= dict.fromkeys(devices, position)

    def start(self) -> Iterator[Placed]:
        """Give what comes before all operations."""
        yield from self._ahead_of_operations(_START)

    def within(self, position: int) -> Iterator[Placed]:
        """Give what belongs to an operation, on its own devices while they compute."""
        operation = self.order[position]
        item = self.plan.slices[operation.slice_index]
        visits = self._visits(position)
        leaving = self.slices[item.id].leaving[::-1] if operation.backward else ()
        for number, needed in enumerate(visits):
            yield Placed(item.devices, Visit(number=number))
            yield from self._turn(item.devices)
            if number and operation.backward:
                yield from self._scattered(leaving[number - 1])
            yield from self._come(item.devices, needed)
            if number + 1 < len(visits):
                yield from self._ahead(item.devices, visits[number + 1], most=_MOST_WHOLE)
            else:
                yield from self._ahead_of_operations(position)
        yield Placed(item.devices, Visit(number=len(visits)))
        yield from self._leave(item.devices)
        if operation.backward:
            yield from self._scattered(leaving[-1])

    def end(self) -> Iterator[Placed]:
        """Give what comes behind all operations."""
        for device, held in enumerate(self._held):
            assert not held.own, f"device {device} has groups that nothing uses any more"
            yield from self._make_room(device, most=0)

    def _visits(self, position: int) -> tuple[tuple[int, ...], ...]:
        """Give what an operation's operators need, in the order in which they are come to."""
        operation = self.order[position]
        used = self.slices[self.plan.slices[operation.slice_index].id].used
        return used[::-1] if operation.backward else used

    def _ahead_of_operations(self, position: int) -> Iterator[Placed]:
        for following in self._following.get(position, ()):
            devices = self.plan.slices[self.order[following].slice_index].devices
            # One only: another that is gathered for others meanwhile must have room, too.
            yield from self._ahead(devices, self._visits(following)[0], most=_MOST_WHOLE - 1)

    def _turn(self, devices: Iterable[int]) -> Iterator[Placed]:
        """Go on to the next operator on its devices."""
        yield from self._leave(devices)
        for device in devices:
            held = self._held[device]
            held.used, held.next = held.next, set()

    def _leave(self, devices: Iterable[int]) -> Iterator[Placed]:
        for device in devices:
            held = self._held[device]
            for group in sorted(held.used - held.next):
                yield Placed((device,), Drop(group=group))
            held.used = set()

    def _scattered(self, groups: Iterable[int]) -> Iterator[Placed]:
        for group in groups:
            devices = self.buckets[group].group.devices
            yield Placed(devices, Launch(group=group, devices=devices, scatter=True, within=True))

    def _come(self, crew: Sequence[int], needed: Sequence[int]) -> Iterator[Placed]:
        """Have there what an operator needs, gathering what isn't on its way."""
        counts = {
            device: sum(device in self._devices(group) for group in needed) for device in crew
        }
        for group in needed:
            users = self._users(group, crew)
            if not all(group in self._held[user].whole for user in users):
                for device in self._devices(group):
                    yield from self._make_room(device, most=_MOST_WHOLE - 1, but=group)
                yield from self._gathered(group)
            for user in users:
                self._held[user].used.add(group)
                self._held[user].passing.pop(group, None)
            for device in self._devices(group):
                most = max(_MOST_WHOLE, counts.get(device, 0))
                assert len(self._held[device].whole) <= most, f"device {device} has too many whole"
        for group in needed:
            for user in self._users(group, crew):
                yield from self._taken(user, group)

    def _ahead(self, crew: Sequence[int], needed: Sequence[int], *, most: int) -> Iterator[Placed]:
        """Begin to gather what these devices need next, if all of a group's devices have room.

        No more than `most` of it.
        """
        for group in needed:
            users = self._users(group, crew)
            if any(len(self._held[user].next | {group}) > most for user in users):
                continue
            if not all(group in self._held[user].whole for user in users):
                if not all(self._has_room(device, group) for device in self._devices(group)):
                    continue
                for device in self._devices(group):
                    yield from self._make_room(device, most=_MOST_WHOLE - 1, but=group)
                yield from self._gathered(group)
            for user in users:
                self._held[user].next.add(group)
                self._held[user].passing.pop(group, None)

    def _has_room(self, device: int, group: int) -> bool:
        own = self._held[device].own
        return group not in own and len(own) < _MOST_WHOLE

    def _make_room(self, device: int, *, most: int, but: int | None = None) -> Iterator[Placed]:
        """Give up what only others needed until no more than `most` are whole besides `but`."""
        held = self._held[device]
        for group in [one for one in held.passing if one != but]:
            if len(held.whole - {but}) <= most:
                return
            yield from self._taken(device, group)
            yield Placed((device,), Drop(group=group))
            del held.passing[group]

    def _gathered(self, group: int) -> Iterator[Placed]:
        devices = self._devices(group)
        for device in devices:
            held = self._held[device]
            yield from self._taken(device, group)  # its place may be filled once at a time
            held.on_way.add(group)
            if group not in held.own:
                held.passing[group] = None
        yield Placed(devices, Gather(group=group, devices=devices, within=True, lasts=False))

    def _taken(self, device: int, group: int) -> Iterator[Placed]:
        held = self._held[device]
        if group in held.on_way:
            held.on_way.remove(group)
            yield Placed((device,), Take(group=group))

    def _devices(self, group: int) -> tuple[int, ...]:
        return self.buckets[group].group.devices

    def _users(self, group: int, crew: Sequence[int]) -> list[int]:
        return [device for device in crew if device in self._devices(group)]
