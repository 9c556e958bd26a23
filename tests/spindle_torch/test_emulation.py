"""Emulated computing on a clock of our own: what is slept too long doesn't add up."""

from dataclasses import dataclass

import pytest

pytest.importorskip("torch")

from spindle_sim import make_plan, parse_cluster
from spindle_sim.workload import builtin_workload
from spindle_sim.workload.tiny import tiny
from spindle_torch import emulation
from spindle_torch.emulation import Emulation

LATE_S = 0.3
PLAN = make_plan(tiny(builtin_workload("ofasys")).with_first_tasks(2), parse_cluster("a800:1x1"))


@dataclass(slots=True)
class Clock:
    """A clock that only sleeping moves, always too far."""

    now_s: float = 100.0

    def perf_counter(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds + LATE_S


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(emulation, "time", made)
    return made


def emulated(clock: Clock, *pauses_s: float) -> tuple[float, float]:
    """Give how long some forwards take, with these pauses between them, and how long is planned."""
    item = PLAN.slices[0]
    scale = 1.0 / item.forward_s
    work = Emulation(plan=PLAN, rank=0, time_scale=scale)
    begun_s = clock.now_s
    for pause_s in (0.0, *pauses_s):
        clock.now_s += pause_s
        work.forward(item, {}, 0)
    return clock.now_s - begun_s, 1.0 + len(pauses_s)


def test_lateness_does_not_add_up_over_slices(clock: Clock) -> None:
    took_s, planned_s = emulated(clock, 0.0, 0.0, 0.0)
    assert took_s == pytest.approx(planned_s + LATE_S)


def test_what_was_slept_too_long_before_waiting_for_others_stays_lost(clock: Clock) -> None:
    """Others may have been late themselves: their message comes when it comes."""
    took_s, planned_s = emulated(clock, 5.0)
    assert took_s == pytest.approx(planned_s + LATE_S + 5.0 + LATE_S)


def test_time_between_slices_is_never_taken_off(clock: Clock) -> None:
    took_s, planned_s = emulated(clock, 0.1, 0.1)
    assert took_s >= planned_s + 0.2 + LATE_S
    assert took_s == pytest.approx(planned_s + 2 * 0.2 + LATE_S)
