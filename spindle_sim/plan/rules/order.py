"""Time and order: no device in two slices at once, nothing before its inputs, rounds one by one."""

from collections.abc import Iterator

from spindle_sim.plan.model import Order, Plan, Slice
from spindle_sim.plan.rules.subject import RELATIVE_TOLERANCE, Subject
from spindle_sim.plan.rules.violation import Violation

__all__ = ["check_devices", "check_precedence"]


def check_devices(subject: Subject) -> Iterator[Violation]:
    """Give the pairs of slices that hold one device at one time."""
    told: set[tuple[str, str]] = set()
    pipelined = {
        item.round for item in subject.plan.rounds if item.order is Order.ONE_FORWARD_ONE_BACKWARD
    }
    for device, slices in subject.on_device.items():
        for holder, item, free_s in _successions(subject.plan, slices):
            side_by_side = item.round not in pipelined
            message = _conflict(device, holder, item, free_s, side_by_side=side_by_side)
            if message and (holder.id, item.id) not in told:
                told.add((holder.id, item.id))  # once, however many devices they share
                yield Violation(rule="device", ids=(holder.id, item.id), message=message)


def _successions(plan: Plan, slices: tuple[Slice, ...]) -> Iterator[tuple[Slice, Slice, float]]:
    """Give for each slice of a device which one holds it last before, and until when."""
    holder, free_s, backward_s, round_s = slices[0], 0.0, 0.0, slices[0].start_s
    for position, item in enumerate(slices):
        if item.round != holder.round:
            # The next round begins on this device when the backward of this one is done there.
            # Of further micro-batches at least their work is to be done in between.
            count = plan.micro_batches(holder.round)
            if count > 1:
                free_s = max(free_s, round_s)
            else:
                free_s += backward_s
            backward_s, round_s = 0.0, item.start_s
        round_s += plan.micro_batches(item.round) * (item.forward_s + item.backward_s)
        if position:
            yield holder, item, free_s
        end_s = item.start_s + item.forward_s
        if end_s >= free_s or item.round != holder.round:
            holder = item
        free_s = max(free_s, end_s)
        backward_s += item.backward_s


def _conflict(device: int, holder: Slice, item: Slice, free_s: float, *, side_by_side: bool) -> str:
    if side_by_side and (holder.round, holder.stage) == (item.round, item.stage):
        return (
            f"device {device}: slices {holder.id} and {item.id} share stage {item.stage} of round"
            f" {item.round}; slices of one stage run side by side"
        )
    if _before(item.start_s, free_s):
        what = "" if item.round == holder.round else ", backward included"
        return (
            f"device {device}: slice {item.id} starts at {item.start_s} s, but slice {holder.id}"
            f" holds the device until {free_s} s{what}"
        )
    return ""


def check_precedence(subject: Subject) -> Iterator[Violation]:
    """Give the consumers that start or stand before their producers, or in another round."""
    for source, target, _, _ in subject.joined_slices():
        end_s = source.start_s + source.forward_s
        if source.round != target.round:
            message = (
                f"slice {target.id}: is in round {target.round}, its producer {source.id} in round"
                f" {source.round}; a flow never crosses rounds"
            )
        elif target.stage < source.stage:
            message = (
                f"slice {target.id}: is in stage {target.stage}, before its producer {source.id}"
                f" in stage {source.stage}"
            )
        elif _before(target.start_s, end_s):
            message = (
                f"slice {target.id}: starts at {target.start_s} s, before its producer"
                f" {source.id} ends at {end_s} s"
            )
        else:
            continue
        yield Violation(rule="precedence", ids=(target.id, source.id), message=message)


def _before(start_s: float, end_s: float) -> bool:
    return start_s < end_s - RELATIVE_TOLERANCE * max(1e-6, abs(end_s))
