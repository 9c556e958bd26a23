"""Idle time before synchronization: imbalance of computing, or the turn of other groups."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings

from spindle_sim.estimate import Estimator
from spindle_sim.metrics import IdleKind, IdleReason, idle_reasons
from spindle_sim.plan import Plan
from spindle_sim.simulator import simulate
from spindle_sim.timeline import Kind, Timeline
from tests.builders import Part, make_cluster, make_plan, make_workload
from tests.random_plans import plans

PARAMETERS = 100_000_000


def two_groups() -> Plan:
    """Give "a" on devices 0 and 1, "b" on 1 and 2: forwards a, b, then backwards b, a."""
    workload = make_workload({"t": ("a",), "u": ("b",)}, parameters=PARAMETERS)
    parts = [
        Part(metaop="t/a/x", devices=(0, 1), stage=0),
        Part(metaop="u/b/x", devices=(1, 2), stage=1),
    ]
    return make_plan(workload, make_cluster(1, 3), parts)


def chain_of_groups() -> Plan:
    """Give "a" on devices 0 and 1, "b" on 1 and 2, "c" on 2 and 3, all computed after 6 seconds."""
    tasks = {"t0": "a", "t1": "a", "u1": "b", "u2": "b", "v2": "c", "v3": "c"}
    workload = make_workload(
        {task: (module,) for task, module in tasks.items()}, parameters=PARAMETERS
    )
    parts = [
        Part(metaop="t0/a/x", devices=(0,), stage=0, forward_s=2.0, backward_s=4.0),
        Part(metaop="t1/a/x", devices=(1,), stage=0),
        Part(metaop="u1/b/x", devices=(1,), stage=1),
        Part(metaop="u2/b/x", devices=(2,), stage=0),
        Part(metaop="v2/c/x", devices=(2,), stage=1),
        Part(metaop="v3/c/x", devices=(3,), stage=0, forward_s=2.0, backward_s=4.0),
    ]
    return make_plan(workload, make_cluster(1, 4), parts)


def sync_s(plan: Plan, devices: Sequence[int]) -> float:
    return Estimator(plan.cluster).all_reduce_s(2.0 * PARAMETERS, devices)


def reasons_of(plan: Plan, timeline: Timeline) -> dict[IdleKind, list[IdleReason]]:
    found: dict[IdleKind, list[IdleReason]] = {}
    for reason in idle_reasons(plan, timeline, top=100):
        found.setdefault(reason.kind, []).append(reason)
    return found


def test_imbalance_ends_when_the_group_has_computed_and_the_rest_is_another_groups_turn() -> None:
    plan = two_groups()
    timeline = simulate(plan)
    found = reasons_of(plan, timeline)
    # Device 2 computes until 4 s; device 1, of its group, until 6 s; then "a" goes first.
    (imbalance,), (turn,) = found[IdleKind.IMBALANCE], found[IdleKind.SYNC]
    assert imbalance.device_seconds == pytest.approx(2.0)
    assert imbalance.share == pytest.approx(2.0 / (3 * timeline.iteration_s))
    assert turn.device_seconds == pytest.approx(sync_s(plan, (0, 1)))
    assert turn.share == pytest.approx(sync_s(plan, (0, 1)) / (3 * timeline.iteration_s))
    assert (turn.parameter_sets, turn.group_devices) == (("a/x",), (0, 1))
    assert turn.text == (
        "synchronization waits its turn: that of other parameter groups goes first, most for a/x on"
        " 2 devices (0-1)"
    )
    # Device 0, and 2 while device 1 is busy: 3 + 1 seconds.
    assert sum(r.device_seconds for r in found[IdleKind.GROUP]) == pytest.approx(4.0)


def test_a_wait_is_followed_back_to_the_group_that_synchronizes() -> None:
    plan = chain_of_groups()
    found = reasons_of(plan, simulate(plan))
    # "b" on device 2 waits for "a"; "c" on device 3 waits for "b", and before that for "a".
    (turn,) = found[IdleKind.SYNC]
    assert IdleKind.IMBALANCE not in found
    assert turn.device_seconds == pytest.approx(2 * sync_s(plan, (0, 1)) + sync_s(plan, (1, 2)))
    assert (turn.parameter_sets, turn.group_devices) == (("a/x",), (0, 1))


def test_a_synchronization_of_no_group_in_the_plan_is_explained_without_a_name() -> None:
    plan = two_groups()
    timeline = simulate(plan)
    spans = tuple(
        replace(span, bytes=1e15) if span.kind is Kind.SYNC else span for span in timeline.spans
    )
    (turn,) = reasons_of(plan, replace(timeline, spans=spans))[IdleKind.SYNC]
    assert turn.device_seconds == pytest.approx(sync_s(plan, (0, 1)))
    assert turn.group_devices == ()
    assert turn.text.endswith("goes first")


def test_an_optimizer_that_starts_late_for_no_reason_is_told() -> None:
    plan = two_groups()
    timeline = simulate(plan)
    spans = tuple(
        replace(span, start_s=span.start_s + 0.5, end_s=span.end_s + 0.5)
        if span.kind is Kind.OPTIMIZER
        else span
        for span in timeline.spans
    )
    (late,) = reasons_of(plan, replace(timeline, spans=spans))[IdleKind.OTHER]
    assert late.device_seconds == pytest.approx(3 * 0.5)
    assert late.text.startswith("the optimizer starts late")


@given(plans())
@settings(max_examples=40, deadline=None)
def test_imbalance_is_at_most_what_devices_finish_before_the_last_one(plan: Plan) -> None:
    timeline = simulate(plan)
    ends = dict.fromkeys(range(timeline.num_devices), 0.0)
    for span in timeline.spans:
        if span.kind is Kind.COMPUTE:
            ends[span.device] = max(ends[span.device], span.end_s)
    most_s = sum(max(ends.values()) - end_s for end_s in ends.values())
    for reason in reasons_of(plan, timeline).get(IdleKind.IMBALANCE, ()):
        assert reason.device_seconds <= most_s + 1e-9
