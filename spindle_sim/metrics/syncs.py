"""Which parameter group each synchronization of a timeline was of, and what it had to wait for.

A span of synchronization doesn't name its group: it is recognized by devices, start and bytes.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spindle_sim.plan import ParameterGroup, Plan
from spindle_sim.timeline import Kind, Phase, Span

__all__ = ["Sync", "Syncs"]

_ROUNDING_S = 1e-9
_DIGITS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """One all-reduce on all of its devices; `group` is None where no group of the plan fits."""

    spans: Mapping[int, Span]  # by device
    group: ParameterGroup | None
    start_s: float  # when the last of them was there
    end_s: float  # when the last of them left

    @property
    def devices(self) -> Iterable[int]:
        """Those that take part."""
        return self.spans.keys()


class Syncs:
    """All synchronizations of a timeline, by device and start; spans begin once all are there."""

    def __init__(self, plan: Plan, by_device: Mapping[int, Sequence[Span]]) -> None:
        """Recognize the group of every span."""
        found = list(_recognized(plan, by_device))
        self._sets = {metaop.id: metaop.parameter_set for metaop in plan.metaops}
        self._by_start = {
            (device, span.start_s): sync for sync in found for device, span in sync.spans.items()
        }
        self._ends: dict[int, list[tuple[float, Sync]]] = {}  # of each device, in order
        for sync in sorted(found, key=lambda one: (one.end_s, one.start_s, min(one.devices))):
            for device in sync.devices:
                self._ends.setdefault(device, []).append((sync.end_s, sync))
        self._compute = {
            device: [span for span in spans if span.kind is Kind.COMPUTE]
            for device, spans in by_device.items()
        }
        self._ready_s: dict[int, float] = {}  # by the identity of what is in `_by_start`

    def of(self, span: Span) -> Sync:
        """Give the synchronization that a device's span is part of."""
        return self._by_start[span.device, span.start_s]

    def ready_s(self, sync: Sync) -> float:
        """Give when the last of its devices had computed what it synchronizes.

        Where all devices have ended all their computing by its start, that is the last end; where
        some compute meanwhile, it is that of the slices whose parameters it synchronizes.
        """
        if id(sync) not in self._ready_s:
            self._ready_s[id(sync)] = self._last_computed_s(sync)
        return self._ready_s[id(sync)]

    def blockers(self, sync: Sync, begin_s: float) -> Iterable[tuple[Sync, float]]:
        """Give what kept a synchronization's devices from it since `begin_s`, with the seconds.

        The last synchronization to end on one of its devices, and before that one's start whatever
        kept that one from starting, and so on back in time.
        """
        end_s = sync.start_s
        last = None
        while end_s > begin_s:
            before = self._before(sync)
            if before is None or before.end_s <= begin_s:
                break
            start_s = max(begin_s, min(before.start_s, end_s))
            yield before, end_s - start_s
            last, sync, end_s = before, before, start_s
        if last is not None and end_s > begin_s:
            yield last, end_s - begin_s  # until it could begin

    def _before(self, sync: Sync) -> Sync | None:
        latest: Sync | None = None
        for device in sync.devices:
            ends = self._ends[device]
            limit_s = sync.start_s + _ROUNDING_S
            index = bisect_right(ends, limit_s, key=lambda entry: entry[0]) - 1
            while index >= 0 and ends[index][1].start_s >= sync.start_s:
                index -= 1  # itself, or another that took no time
            if index >= 0 and (latest is None or ends[index][0] > latest.end_s):
                latest = ends[index][1]
        return latest

    def _last_computed_s(self, sync: Sync) -> float:
        computed = [span for device in sync.devices for span in self._compute.get(device, ())]
        last_s = max((span.end_s for span in computed), default=0.0)
        if last_s <= sync.start_s + _ROUNDING_S:
            return last_s
        sets = _parameter_sets(sync.group)
        return max(
            (
                min(span.end_s, sync.start_s)
                for span in computed
                if span.phase is Phase.BACKWARD
                and span.start_s < sync.start_s
                and self._sets[span.metaop] in sets
            ),
            default=0.0,
        )


def _parameter_sets(group: ParameterGroup | None) -> frozenset[str]:
    if group is None:
        return frozenset()
    return frozenset(part.parameter_set for part in group.parameter_sets)


def _recognized(plan: Plan, by_device: Mapping[int, Sequence[Span]]) -> Iterable[Sync]:
    """Give the synchronizations; one that fits no group is of the devices that run it at once."""
    together: dict[tuple[float, float], dict[int, Span]] = {}
    for device, spans in by_device.items():
        for span in spans:
            if span.kind is Kind.SYNC:
                # Clocks of devices agree to a rounding; each may leave at another time.
                key = round(span.start_s, _DIGITS), span.bytes
                together.setdefault(key, {})[device] = span
    of_device: dict[int, list[ParameterGroup]] = {}
    for group in plan.parameter_groups:
        for device in group.devices:
            of_device.setdefault(device, []).append(group)
    whole: set[int] = set()  # groups that have synchronized all of their bytes, by their identity
    for (_, size_bytes), left in sorted(together.items(), key=lambda entry: entry[0]):
        while left:
            known = of_device.get(min(left), ())
            fitting = [group for group in known if left.keys() >= set(group.devices)]
            chosen = _best_fit(fitting, size_bytes, whole)
            if chosen is not None and _is_close(chosen.bytes, size_bytes):
                whole.add(id(chosen))
            # What isn't in the plan goes together, without a name.
            devices = chosen.devices if chosen else tuple(sorted(left))
            parts = {device: left.pop(device) for device in devices}
            yield Sync(
                spans=parts,
                group=chosen,
                start_s=max(span.start_s for span in parts.values()),
                end_s=max(span.end_s for span in parts.values()),
            )


def _best_fit(
    groups: Sequence[ParameterGroup], size_bytes: float, whole: set[int]
) -> ParameterGroup | None:
    """Give the group of these very bytes, else the smallest with more: this is its bucket."""
    left = [g for g in groups if id(g) not in whole and g.bytes >= size_bytes * (1 - 1e-9)]
    exact = [g for g in left if _is_close(g.bytes, size_bytes)]
    return min(exact or left, key=lambda g: (g.bytes, -len(g.devices)), default=None)


def _is_close(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-9 * max(one, other)
