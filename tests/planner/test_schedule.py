"""Alg. 1: stages of one MetaLevel."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spindle_sim.planner.allocate import Malleable, optimum
from spindle_sim.planner.lanes import Costs, Lanes, Run
from spindle_sim.planner.schedule import schedule_level


def power_of_two_curve(work_s: float, overhead_s: float, largest: int) -> dict[int, float]:
    return {n: overhead_s + work_s / n for n in (1, 2, 4, 8, 16, 32, 64) if n <= largest}


@st.composite
def levels(draw: st.DrawFn) -> list[Malleable]:
    level = []
    for index in range(draw(st.integers(1, 6))):
        curve = power_of_two_curve(
            draw(st.floats(0.1, 10.0)), draw(st.floats(0.0, 0.2)), draw(st.sampled_from([1, 4, 64]))
        )
        level.append(
            Malleable(
                id=f"m{index}",
                num_ops=draw(st.integers(1, 40)),
                allocations=tuple(curve),
                times_s=tuple(curve.values()),
            )
        )
    return level


def play(level: list[Malleable], runs: tuple[Run, ...], num_devices: int) -> float:
    times = {m.id: dict(zip(m.allocations, m.times_s, strict=True)) for m in level}
    return Lanes.idle(num_devices).after(runs, Costs(times_s=times)).makespan_s


@given(levels(), st.integers(1, 64))
def test_every_operator_is_scheduled_once_on_valid_allocations_that_fit(
    level: list[Malleable], num_devices: int
) -> None:
    fitting = [
        Malleable(
            id=m.id,
            num_ops=m.num_ops,
            allocations=tuple(n for n in m.allocations if n <= num_devices),
            times_s=tuple(
                t for n, t in zip(m.allocations, m.times_s, strict=True) if n <= num_devices
            ),
        )
        for m in level
    ]
    for runs in schedule_level(fitting, num_devices):
        done: dict[str, int] = defaultdict(int)
        used: dict[int, int] = defaultdict(int)
        seen = set()
        for run in runs:
            assert (run.id, run.stage) not in seen
            seen.add((run.id, run.stage))
            done[run.id] += run.num_ops
            used[run.stage] += run.num_devices
        assert done == {m.id: m.num_ops for m in fitting}
        assert max(used.values()) <= num_devices
        for run in runs:
            assert run.num_devices in next(m for m in fitting if m.id == run.id).allocations


@given(levels())
def test_no_schedule_beats_the_optimum(level: list[Malleable]) -> None:
    for runs in schedule_level(level, 64):
        assert play(level, runs, 64) >= optimum(level, 64) * (1 - 1e-6)


def test_two_equal_metaops_share_the_devices_and_end_together() -> None:
    curve = power_of_two_curve(8.0, 0.5, 8)
    level = [
        Malleable(id=m, num_ops=10, allocations=tuple(curve), times_s=tuple(curve.values()))
        for m in "ab"
    ]
    runs = schedule_level(level, 8)[0]

    assert {(run.id, run.num_devices) for run in runs} == {("a", 4), ("b", 4)}
    assert play(level, runs, 8) == pytest.approx(10 * (0.5 + 8.0 / 4))


def test_devices_that_would_idle_extend_the_longest_metaop() -> None:
    level = [
        Malleable(id="flat", num_ops=4, allocations=(1,), times_s=(1.0,)),
        Malleable(id="wide", num_ops=16, allocations=(1, 2, 4), times_s=(1.0, 0.5, 0.25)),
    ]
    runs = schedule_level(level, 5)[0]

    assert max(run.num_devices for run in runs if run.id == "wide") == 4
    assert play(level, runs, 5) == pytest.approx(4.0)


@pytest.mark.parametrize("num_devices", [8, 16, 64])
def test_a_heterogeneous_level_comes_within_7_percent_of_the_optimum(num_devices: int) -> None:
    level = []
    for index, work_s in enumerate((40.0, 25.0, 12.0, 6.0, 5.0, 3.0, 1.0, 0.5)):
        curve = power_of_two_curve(work_s, 0.01, 64)
        curve = {n: t for n, t in curve.items() if n <= num_devices}
        level.append(
            Malleable(
                id=f"m{index}",
                num_ops=(32, 24, 12)[index % 3],
                allocations=tuple(curve),
                times_s=tuple(curve.values()),
            )
        )
    best = min(play(level, runs, num_devices) for runs in schedule_level(level, num_devices))

    assert best <= 1.07 * optimum(level, num_devices)
