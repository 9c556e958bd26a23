"""How long computing takes beside collectives, and when those of ZeRO-2 and -3 end.

As in the simulator: computing slows down while its device has a collective in flight; gradients of
ZeRO-2 are scattered one bucket after the other, and nothing waits for them but the optimizer step,
so that those of one backward may still go while the next forward runs.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from spindle_sim.simulator.contention import DEFAULT_SLOWDOWN

__all__ = ["Exchange", "beside_s", "delay_s", "gathered_s", "scattered_s"]

# Of the time that a collective is in flight, what computing beside it loses.
_LOST = 1 - 1 / DEFAULT_SLOWDOWN
_STEPS = 3  # after so many micro-batches each one adds what the one before did


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What the micro-batches of a task compute and exchange, each of them.

    `scatter_s` for its gradients, in a number of `messages`, and to gather its parameters once;
    `first_s` and `last_s` of it have nothing to hide behind if it comes first or last of all.
    """

    micro_batches: int
    forward_s: float
    backward_s: float
    scatter_s: float
    gather_s: float
    messages: int
    first_s: float
    last_s: float


def delay_s(beside: float) -> float:
    """Give how much longer computing takes if collectives are in flight for `beside` seconds."""
    return _LOST * beside


def beside_s(compute_s: float, exchange_s: float) -> float:
    """Give when both are over, if they begin together."""
    return max(exchange_s, _slowed_s(compute_s, exchange_s))


def scattered_s(exchanges: Iterable[Exchange]) -> float:
    """Give when the last gradient of ZeRO-2 is scattered, task after task."""
    now_s, sent_s = 0.0, 0.0
    for one in exchanges:
        for step in range(one.micro_batches):
            began_s, before_s = now_s, sent_s
            now_s += _slowed_s(one.forward_s, max(0.0, sent_s - now_s))
            ready_s = now_s + one.backward_s / max(1, one.messages)
            ahead_s = max(0.0, sent_s - now_s)
            now_s += _slowed_s(one.backward_s, ahead_s + one.scatter_s)
            sent_s = max(max(sent_s, ready_s) + one.scatter_s, now_s + one.last_s)
            if step + 1 == _STEPS:
                rest = one.micro_batches - _STEPS
                now_s, sent_s = (
                    now_s + rest * (now_s - began_s),
                    sent_s + rest * (sent_s - before_s),
                )
                break
    return max(now_s, sent_s)


def gathered_s(exchanges: Iterable[Exchange]) -> float:
    """Give when all is computed and scattered under ZeRO-3, which gathers before it computes."""
    known = tuple(exchanges)
    total_s = sum(
        one.micro_batches
        * (
            beside_s(one.forward_s, one.gather_s)
            + beside_s(one.backward_s, one.gather_s + one.scatter_s)
        )
        for one in known
    )
    return known[0].first_s + total_s + known[-1].last_s


def _slowed_s(compute_s: float, beside: float) -> float:
    """Give how long computing takes if collectives are in flight from its begin on."""
    return min(DEFAULT_SLOWDOWN * compute_s, compute_s + _LOST * beside)
