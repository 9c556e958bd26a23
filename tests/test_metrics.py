from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_sim.metrics import (
    DeviceSummary,
    IdleKind,
    Summary,
    idle_reasons,
    model_flops,
    summarize,
    utilization_over_time,
)
from spindle_sim.plan import Backward, Plan
from spindle_sim.simulator import simulate
from spindle_sim.timeline import Kind
from tests.builders import Part, make_cluster, make_metaops, make_plan, make_workload
from tests.random_plans import plans

PROPERTY = settings(max_examples=40, deadline=None)
STEP = 1e-5  # relative: stepping the optimizer of one parameter takes microseconds
FORWARD_FLOPS = 2.0 * 16 * 256 * 256 * 8  # of the builders' operator, batch 8


def chain() -> Plan:
    """Give "a" on one node, "b" on the other: 1 + 0.1 + 3 + 4 + 0.1 + 2 seconds."""
    workload = make_workload({"t": ("a", "b")}, output_bytes=5e9 / 8, parameters=1)
    parts = [
        Part(metaop="t/a/x", devices=(0,), stage=0, forward_s=1.0, backward_s=2.0),
        Part(metaop="t/b/x", devices=(1,), stage=1, forward_s=3.0, backward_s=4.0),
    ]
    return make_plan(workload, make_cluster(2, 1), parts)


def test_a_chain_on_two_devices_in_figures() -> None:
    summary = summarize(chain(), simulate(chain()))
    assert summary.iteration_s == pytest.approx(10.2)
    assert summary.samples_per_s == pytest.approx(8 / 10.2)
    assert summary.forward_backward_s == pytest.approx((3 + 7) / 2)
    assert summary.send_recv_s == pytest.approx(0.2, rel=STEP)
    assert summary.sync_s == summary.optimizer_s < 1e-5
    assert summary.idle_s == pytest.approx(5.0)
    assert summary.gpu_hours_per_iteration == pytest.approx(2 * 10.2 / 3600)
    assert summary.gpu_hours_per_1000_iterations == pytest.approx(2 * 10.2 / 3.6)
    # "a" needs no gradient of its inputs: twice the forward; "b" thrice.
    flops = 5 * FORWARD_FLOPS
    assert summary.model_flops_per_s == pytest.approx(flops / 10.2)
    assert summary.utilization == pytest.approx(flops / 10.2 / 2 / 3e14)
    assert [d.utilization for d in summary.devices] == pytest.approx(
        [2 * FORWARD_FLOPS / 10.2 / 3e14, 3 * FORWARD_FLOPS / 10.2 / 3e14]
    )
    assert [m.utilization for m in summary.metaops] == pytest.approx(
        [2 * FORWARD_FLOPS / 3 / 3e14, 3 * FORWARD_FLOPS / 7 / 3e14]
    )
    assert [m.device_seconds for m in summary.metaops] == pytest.approx([3.0, 7.0])
    assert summary.peak_memory_bytes == pytest.approx(3 * 5e9)


@pytest.mark.parametrize(
    ("backward", "times"),
    [
        (Backward.FULL, 3),
        (Backward.INPUT_ONLY, 2),
        (Backward.WEIGHT_ONLY, 2),
        (Backward.NONE, 1),
    ],
)
def test_frozen_operators_count_fewer_model_flops(backward: Backward, times: int) -> None:
    (metaop,) = make_metaops(make_workload({"t": ("a",)}))
    assert model_flops(replace(metaop, backward=backward)) == times * metaop.flops


def test_idle_time_names_what_was_waited_for() -> None:
    reasons = idle_reasons(chain(), simulate(chain()))
    found = {(r.kind, r.metaop, r.waiting_metaop): r.device_seconds for r in reasons}
    # Device 1 waits for a's forward (1.0) and its transfer (0.1), and has nothing to do during a's
    # backward (2.1). Device 0 waits for b's forward and backward (0.1 + 3 + 4) and the way back.
    assert found == {
        (IdleKind.PRODUCER, "t/b/x", "t/a/x"): pytest.approx(7.1),
        (IdleKind.END, "", ""): pytest.approx(2.1),
        (IdleKind.PRODUCER, "t/a/x", "t/b/x"): pytest.approx(1.0),
        (IdleKind.TRANSFER, "t/a/x", "t/b/x"): pytest.approx(0.1),
        (IdleKind.TRANSFER, "t/b/x", "t/a/x"): pytest.approx(0.1),
    }
    assert reasons[0].text == "t/a/x waits until t/b/x is computed"
    assert reasons[0].task == "t"
    assert reasons[0].share == pytest.approx(7.1 / 20.4)


def test_idle_time_names_the_group_that_was_busy() -> None:
    workload = make_workload({"t": ("a",), "u": ("b",)}, parameters=1)
    parts = [
        Part(metaop="t/a/x", devices=(0,), stage=0, forward_s=5.0),
        Part(metaop="u/b/x", devices=(0, 1), stage=1, forward_s=1.0),
    ]
    plan = make_plan(workload, make_cluster(1, 2), parts)
    first = idle_reasons(plan, simulate(plan))[0]
    assert (first.kind, first.metaop, first.device_seconds) == (IdleKind.GROUP, "t/a/x", 5.0)
    assert first.text == "u/b/x waits for devices of its group busy with t/a/x"


def test_idle_time_before_synchronization_is_imbalance() -> None:
    workload = make_workload({"t": ("a",), "u": ("a",)})
    parts = [
        Part(metaop="t/a/x", devices=(0,), stage=0, forward_s=1.0),
        Part(metaop="u/a/x", devices=(1,), stage=0, forward_s=4.0),
    ]
    plan = make_plan(workload, make_cluster(1, 2), parts)
    first = idle_reasons(plan, simulate(plan))[0]
    assert first.kind is IdleKind.IMBALANCE
    assert first.text.endswith("devices of the same parameter group compute longer (imbalance)")
    assert first.device_seconds == pytest.approx(3.0)


def test_devices_without_work_are_named() -> None:
    workload = make_workload({"t": ("a",)}, parameters=1)
    plan = make_plan(workload, make_cluster(1, 4), [Part(metaop="t/a/x", devices=(0,))])
    (only,) = idle_reasons(plan, simulate(plan))
    assert (only.kind, only.share) == (IdleKind.UNUSED, 0.75)
    assert only.device_seconds == pytest.approx(9.0, rel=STEP)


def test_utilization_over_time_of_a_single_slice_is_level_in_each_phase() -> None:
    workload = make_workload({"t": ("a",)}, parameters=1)
    plan = make_plan(workload, make_cluster(1, 1), [Part(metaop="t/a/x", devices=(0,))])
    bins = utilization_over_time(plan, simulate(plan), num_bins=3)
    # One second forward, two seconds of a backward that costs as much as the forward.
    assert [middle for middle, _ in bins] == pytest.approx([0.5, 1.5, 2.5], rel=STEP)
    level = FORWARD_FLOPS / 3e14
    assert [value for _, value in bins] == pytest.approx([level, level / 2, level / 2], rel=STEP)


@given(plans(), st.booleans())
@PROPERTY
def test_the_breakdown_adds_up_to_the_iteration(plan: Plan, overlap_sync: bool) -> None:
    summary = summarize(plan, simulate(plan, overlap_sync=overlap_sync))
    parts: list[Summary | DeviceSummary] = [summary, *summary.devices]
    for part in parts:
        total = part.forward_backward_s + part.sync_s + part.send_recv_s + part.idle_s
        assert total == pytest.approx(summary.iteration_s)
        assert min(part.forward_backward_s, part.sync_s, part.send_recv_s) >= 0.0
        assert part.idle_s >= -1e-12


@given(plans(), st.booleans())
@PROPERTY
def test_reasons_account_for_all_time_without_work(plan: Plan, overlap_sync: bool) -> None:
    timeline = simulate(plan, overlap_sync=overlap_sync)
    summary = summarize(plan, timeline)
    reasons = idle_reasons(plan, timeline, top=1000)
    waited = (summary.idle_s + summary.send_recv_s) * timeline.num_devices
    assert sum(reason.device_seconds for reason in reasons) == pytest.approx(waited)
    assert all(reason.kind is not IdleKind.OTHER for reason in reasons)


@given(plans())
@PROPERTY
def test_utilization_over_time_averages_to_that_of_the_iteration(plan: Plan) -> None:
    timeline = simulate(plan)
    bins = utilization_over_time(plan, timeline, num_bins=37)
    mean = sum(value for _, value in bins) / len(bins)
    assert mean == pytest.approx(summarize(plan, timeline).utilization)


@given(plans())
@PROPERTY
def test_peak_memory_is_the_plans(plan: Plan) -> None:
    summary = summarize(plan, simulate(plan))
    for expected in plan.memory:
        peak = summary.devices[expected.device].peak_memory_bytes
        assert peak == pytest.approx(expected.total_bytes)
    without_samples = replace(simulate(plan), memory=())
    assert summarize(plan, without_samples).peak_memory_bytes == pytest.approx(
        summary.peak_memory_bytes
    )


def test_waiting_for_a_peer_is_idling_and_not_communication() -> None:
    plan = chain()
    timeline = simulate(plan)
    waited = tuple(
        replace(span, start_s=0.0, wait_s=span.start_s) if span.kind is Kind.RECEIVE else span
        for span in timeline.spans
    )
    assert waited != timeline.spans
    assert summarize(plan, replace(timeline, spans=waited)) == summarize(plan, timeline)
    assert idle_reasons(plan, replace(timeline, spans=waited)) == idle_reasons(plan, timeline)


def test_a_synchronization_begins_with_its_last_device() -> None:
    workload = make_workload({"t": ("a",), "u": ("a",)})
    parts = [
        Part(metaop="t/a/x", devices=(0,), forward_s=3.0),
        Part(metaop="u/a/x", devices=(1,), forward_s=1.0),
    ]
    plan = make_plan(workload, make_cluster(1, 2), parts)
    timeline = simulate(plan)
    # The device that is done first comes first, as a real one does, and waits 2 s.
    early = tuple(
        replace(span, start_s=span.start_s - 2.0, wait_s=2.0)
        if span.kind is Kind.SYNC and span.device == 1
        else span
        for span in timeline.spans
    )
    assert early != timeline.spans
    assert summarize(plan, replace(timeline, spans=early)) == summarize(plan, timeline)
    assert idle_reasons(plan, replace(timeline, spans=early)) == idle_reasons(plan, timeline)
