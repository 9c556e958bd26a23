"""Theorem 1, appendix B and the bi-point conditions (10a), (10b)."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spindle_sim.planner.allocate import (
    Malleable,
    allocate,
    find_inverse_value,
    optimum,
    optimum_by_equation_11,
)


def malleable(name: str, num_ops: int, curve: dict[int, float]) -> Malleable:
    return Malleable(
        id=name,
        num_ops=num_ops,
        allocations=tuple(curve),
        times_s=tuple(curve.values()),
    )


@st.composite
def malleables(draw: st.DrawFn) -> Malleable:
    """MetaOps with falling, not always convex, curves over a few valid allocations."""
    count = draw(st.integers(1, 5))
    allocations = sorted(draw(st.sets(st.integers(1, 16), min_size=count, max_size=count)))
    time_s = draw(st.floats(0.5, 5.0))
    times = []
    for _ in allocations:
        times.append(time_s)
        time_s *= draw(st.floats(0.3, 0.98))
    name = draw(st.text("abc", min_size=1, max_size=3))
    return malleable(name, draw(st.integers(1, 40)), dict(zip(allocations, times, strict=True)))


levels = st.lists(malleables(), min_size=1, max_size=6)


def test_perfectly_divisible_work_takes_total_work_over_devices() -> None:
    ideal = {n: 1.0 / n for n in (1, 2, 4, 8)}
    level = [malleable("a", 24, ideal), malleable("b", 8, ideal)]

    assert optimum(level, 8) == pytest.approx(32 / 8)
    _, (a, b) = allocate(level, 8)
    assert a.num_devices == pytest.approx(6.0)
    assert b.num_devices == pytest.approx(2.0)


def test_a_metaop_that_dominates_its_level_sets_the_optimum() -> None:
    level = [malleable("long", 10, {1: 2.0, 2: 1.5}), malleable("short", 1, {1: 1.0})]

    assert optimum(level, 64) == pytest.approx(15.0)


def test_one_metaop_gets_its_fastest_allocation() -> None:
    level = [malleable("only", 7, {1: 3.0, 4: 1.0})]

    assert optimum(level, 8) == pytest.approx(7.0)


def test_figure_5s_metaop_2_is_split_between_one_and_two_devices() -> None:
    # The figure splits n* = 1.5, L = 12 into 8.4 operators on 2 devices and 3.6 on 1: more on 2,
    # as half of the time on each gives (8 and 4 where two devices are twice as fast). Equation (11)
    # would give 6 and 6.
    level = [malleable("2", 12, {1: 1.0, 2: 0.5}), malleable("rest", 4, {1: 1.0, 2: 0.5})]
    optimum_s, (allocation, _) = allocate(level, 2)

    assert optimum_s == pytest.approx(8.0)
    assert allocation.num_devices == pytest.approx(1.5)
    assert (allocation.upper.num_devices, allocation.lower.num_devices) == (2, 1)
    assert allocation.upper.num_ops == pytest.approx(8.0)
    assert allocation.lower.num_ops == pytest.approx(4.0)


@given(levels, st.integers(1, 32))
def test_both_bi_point_conditions_hold_before_rounding(
    level: list[Malleable], num_devices: int
) -> None:
    optimum_s, allocations = allocate(level, num_devices)
    for metaop, allocation in zip(level, allocations, strict=True):
        upper, lower = allocation.upper, allocation.lower
        assert lower.num_devices <= allocation.num_devices + 1e-9
        assert allocation.num_devices <= upper.num_devices + 1e-9
        spent_s = upper.num_ops * metaop.time_s(upper.num_devices)
        if lower.num_devices:
            assert upper.num_ops + lower.num_ops == pytest.approx(metaop.num_ops)  # (10a)
            spent_s += lower.num_ops * metaop.time_s(lower.num_devices)
            assert spent_s == pytest.approx(optimum_s, rel=1e-6)  # (10b)
        else:  # a dummy: all operators on the upper tuple, for a share of C*
            assert upper.num_ops == pytest.approx(metaop.num_ops)
            assert spent_s <= optimum_s * (1 + 1e-6)


@given(levels, st.integers(1, 32))
def test_allocations_sum_to_all_devices_unless_one_metaop_dominates(
    level: list[Malleable], num_devices: int
) -> None:
    optimum_s, allocations = allocate(level, num_devices)
    used = sum(allocation.num_devices for allocation in allocations)
    critical_s = max(m.num_ops * m.times_s[-1] for m in level)

    assert used <= num_devices * (1 + 1e-6)
    assert math.isclose(used, num_devices, rel_tol=1e-6) or math.isclose(
        optimum_s, critical_s, rel_tol=1e-9
    )


@given(levels, st.integers(1, 32))
def test_the_optimum_is_never_above_equation_11(level: list[Malleable], num_devices: int) -> None:
    # Equation (11) interpolates the time, which overstates it between valid allocations.
    assert optimum(level, num_devices) <= optimum_by_equation_11(level, num_devices) * (1 + 1e-6)


@given(malleables(), st.floats(0.0, 1.0))
def test_equation_11_inverts_a_piecewise_linear_curve(metaop: Malleable, share: float) -> None:
    for (n0, t0), (n1, t1) in zip(
        zip(metaop.allocations, metaop.times_s, strict=True),
        zip(metaop.allocations[1:], metaop.times_s[1:], strict=True),
        strict=False,
    ):
        time_s = t0 + share * (t1 - t0)
        assert find_inverse_value(metaop, time_s) == pytest.approx(n0 + share * (n1 - n0))


@given(levels, st.integers(1, 16))
def test_more_devices_never_raise_the_optimum(level: list[Malleable], num_devices: int) -> None:
    assert optimum(level, num_devices + 1) <= optimum(level, num_devices) * (1 + 1e-9)
