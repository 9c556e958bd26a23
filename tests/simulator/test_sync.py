"""Overlapped synchronization: buckets in the order of the backward, worked out by hand."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_sim.errors import UsageError
from spindle_sim.estimate import Estimator
from spindle_sim.plan import Plan
from spindle_sim.plan.schedule import Operation, schedule
from spindle_sim.simulator import SimulatorBackend, simulate
from spindle_sim.simulator.sync import sync_steps
from spindle_sim.timeline import Kind, Phase, Timeline
from tests.builders import Part, make_cluster, make_plan, make_workload
from tests.random_plans import plans, seeded_plan
from tests.stated_plans import two_round_plan

PROPERTY = settings(max_examples=40, deadline=None)
PARAMETERS = 10_000_000
OPERATOR_BYTES = 2.0 * PARAMETERS


def two_slices() -> Plan:
    """Give a, then b, on devices 0 and 1: forward to 2 s; backward of b to 4 s, of a to 6 s."""
    workload = make_workload({"t": ("a", "b")}, parameters=PARAMETERS)
    parts = [
        Part(metaop="t/a/x", devices=(0, 1), stage=0),
        Part(metaop="t/b/x", devices=(0, 1), stage=1),
    ]
    return make_plan(workload, make_cluster(1, 2), parts)


def one_long_slice() -> Plan:
    """Give a slice of four operators on devices 0 and 1: forward to 1 s, backward to 3 s."""
    workload = make_workload({"t": ("a",)}, parameters=PARAMETERS, repeat=4)
    part = Part(metaop="t/a/x", devices=(0, 1), num_ops=4)
    return make_plan(workload, make_cluster(1, 2), [part])


def syncs(timeline: Timeline, device: int = 0) -> list[tuple[float, float, float]]:
    return [
        (span.start_s, span.end_s, span.bytes)
        for span in timeline.spans
        if span.kind is Kind.SYNC and span.device == device
    ]


def backward_end_s(timeline: Timeline) -> float:
    return max(span.end_s for span in timeline.spans if span.phase is Phase.BACKWARD)


def test_the_later_part_synchronizes_behind_the_backward_of_the_earlier_part() -> None:
    """One group of two modules: b is all-reduced from 4 s on, and only a after the backward."""
    plan = two_slices()
    estimator = Estimator(plan.cluster)
    sync_s = estimator.all_reduce_s(OPERATOR_BYTES, (0, 1))
    step_s = estimator.optimizer_step_s(2 * PARAMETERS)
    timeline = simulate(plan, overlap_sync=True, bucket_bytes=OPERATOR_BYTES, overlap_slowdown=1.0)
    first, second = syncs(timeline)
    assert first == pytest.approx((4.0, 4.0 + sync_s, OPERATOR_BYTES))
    assert second == pytest.approx((6.0, 6.0 + sync_s, OPERATOR_BYTES))
    assert timeline.iteration_s == pytest.approx(6.0 + sync_s + step_s)


def test_computing_beside_a_synchronization_takes_longer() -> None:
    """While b is all-reduced for s seconds, a's backward gets s / 1.126 seconds' work done."""
    plan = two_slices()
    estimator = Estimator(plan.cluster)
    sync_s = estimator.all_reduce_s(OPERATOR_BYTES, (0, 1))
    step_s = estimator.optimizer_step_s(2 * PARAMETERS)
    timeline = simulate(plan, overlap_sync=True, bucket_bytes=OPERATOR_BYTES)
    end_s = 6.0 + sync_s * (1 - 1 / 1.126)
    assert backward_end_s(timeline) == pytest.approx(end_s, rel=1e-12)
    assert timeline.iteration_s == pytest.approx(end_s + sync_s + step_s)


def test_a_backward_that_ends_before_the_synchronization_is_slow_throughout() -> None:
    plan = two_slices()
    slow = replace(plan, slices=(replace(plan.slices[0], backward_s=1e-6), plan.slices[1]))
    timeline = simulate(slow, overlap_sync=True, bucket_bytes=1.0, overlap_slowdown=1.5)
    assert backward_end_s(timeline) == pytest.approx(4.0 + 1.5e-6, rel=1e-12)


def test_within_one_slice_the_last_operators_are_ready_first() -> None:
    """Each operator takes a quarter of the two seconds from 1 s on; the last comes first."""
    plan = one_long_slice()
    timeline = simulate(plan, overlap_sync=True, bucket_bytes=1.0, overlap_slowdown=1.0)
    assert [start_s for start_s, _, _ in syncs(timeline)] == pytest.approx([1.5, 2.0, 2.5, 3.0])
    by_two = simulate(
        plan, overlap_sync=True, bucket_bytes=2 * OPERATOR_BYTES, overlap_slowdown=1.0
    )
    assert [(start_s, size) for start_s, _, size in syncs(by_two)] == [
        (2.0, 2 * OPERATOR_BYTES),
        (3.0, 2 * OPERATOR_BYTES),
    ]


def test_a_bucket_waits_for_exactly_the_operators_in_it() -> None:
    plan = one_long_slice()
    steps = sync_steps(plan, schedule(plan), overlap=True, bucket_bytes=3 * OPERATOR_BYTES)
    backward = Operation(slice_index=0, backward=True)
    assert [step.after for step in steps] == [((backward, 3),), ((backward, 4),)]


def test_gradients_wait_for_the_last_round_that_adds_to_them() -> None:
    plan = two_round_plan()
    timeline = simulate(plan, overlap_sync=True, bucket_bytes=1.0)
    rounds = [s.start_s for s in timeline.spans if s.phase is Phase.BACKWARD and s.device == 0]
    assert len(rounds) == 2
    assert min(start_s for start_s, _, _ in syncs(timeline)) == backward_end_s(timeline)


def test_gradients_that_are_complete_at_once_are_one_bucket() -> None:
    """To cut them would gain nothing: here the backwards of a and b take no time."""
    plan = two_slices()
    plan = replace(plan, slices=tuple(replace(item, backward_s=0.0) for item in plan.slices))
    sizes = [size for _, _, size in syncs(simulate(plan, overlap_sync=True, bucket_bytes=1.0))]
    assert sizes == [2 * OPERATOR_BYTES]


def test_overlap_can_lengthen_an_iteration_by_getting_in_the_way_of_a_transfer() -> None:
    """The anomaly: 10 GB of gradients share a network card with what everybody waits for.

    Device 1 is done with c at 4 s and still has d to do until 6 s; device 2 sends 5 GB to device 0
    from 4.1 s on, for whose next two seconds of work the iteration waits. Overlapped, c's gradients
    leave at 4 s and have the card alone for 0.1 s; then both have half of it until the transfer
    ends at 4.3 s instead of 4.2 s.
    """
    workload = make_workload(
        {"t": ("a", "b"), "u": ("c",), "v": ("d",)},
        output_bytes=5e9 / 8,
        parameters=5_000_000_000,
    )
    parts = [
        Part(metaop="t/a/x", devices=(0,), stage=0),
        Part(metaop="t/b/x", devices=(2,), stage=1),
        Part(metaop="v/d/x", devices=(1,), stage=0, backward_s=1.0),
        Part(metaop="u/c/x", devices=(1, 3), stage=1),
    ]
    plan = make_plan(workload, make_cluster(2, 2), parts)
    apart, overlapped = simulate(plan), simulate(plan, overlap_sync=True, overlap_slowdown=1.0)
    assert backward_end_s(apart) == pytest.approx(6.2)
    assert backward_end_s(overlapped) == pytest.approx(6.3)
    assert overlapped.iteration_s - apart.iteration_s == pytest.approx(0.1)


def test_overlap_without_slowdown_lengthens_none_of_these_iterations() -> None:
    """Fixed plans, not any: it isn't true of all of them (see the test before)."""
    gains = 0
    for seed in range(80):
        plan = seeded_plan(seed)
        apart_s = simulate(plan).iteration_s
        together_s = simulate(plan, overlap_sync=True, overlap_slowdown=1.0).iteration_s
        assert together_s <= apart_s * (1 + 1e-9), seed
        gains += together_s < apart_s * (1 - 1e-9)
    assert gains > 10


@pytest.mark.parametrize(
    "options", [{"bucket_bytes": 0.0}, {"overlap_slowdown": 0.9}, {"bucket_bytes": float("nan")}]
)
def test_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    (name,) = options
    with pytest.raises(UsageError, match=name):
        simulate(two_slices(), overlap_sync=True, **options)  # type: ignore[arg-type]


def test_the_backend_passes_the_options_on() -> None:
    plan = two_slices()
    backend = SimulatorBackend(overlap_sync=True, bucket_bytes=1.0, overlap_slowdown=1.3)
    assert backend.run(plan) == simulate(
        plan, overlap_sync=True, bucket_bytes=1.0, overlap_slowdown=1.3
    )
    assert backend.run(plan) != simulate(plan, overlap_sync=True)


@given(plans(), st.sampled_from([1.0, 30e6, 100e6]))
@PROPERTY
def test_the_buckets_of_a_group_add_up_to_it_and_keep_to_their_size(
    plan: Plan, bucket_bytes: float
) -> None:
    free = schedule(plan)
    whole, cut = Counter[tuple[int, ...]](), Counter[tuple[int, ...]]()
    for step in sync_steps(plan, free, overlap=False):
        whole[step.devices] += step.size_bytes  # type: ignore[assignment]
    # Cut as finely as can be: what is left together is complete at once.
    atoms = set(sync_steps(plan, free, overlap=True, bucket_bytes=1e-9))
    for step in sync_steps(plan, free, overlap=True, bucket_bytes=bucket_bytes):
        cut[step.devices] += step.size_bytes  # type: ignore[assignment]
        assert step.size_bytes <= bucket_bytes * (1 + 1e-12) or step in atoms
    assert cut == pytest.approx(whole)


@given(plans(), st.sampled_from([1.0, 100e6]), st.sampled_from([1.0, 1.126]))
@PROPERTY
def test_every_byte_is_synchronized_and_memory_stays_the_same(
    plan: Plan, bucket_bytes: float, overlap_slowdown: float
) -> None:
    timeline = simulate(
        plan, overlap_sync=True, bucket_bytes=bucket_bytes, overlap_slowdown=overlap_slowdown
    )
    for memory in plan.memory:
        groups = [g for g in plan.parameter_groups if memory.device in g.devices]
        expected = sum(group.bytes for group in groups if len(group.devices) > 1)
        sizes = [size for _, _, size in syncs(timeline, memory.device)]
        assert sum(sizes) == pytest.approx(expected)
        levels = [s.bytes for s in timeline.memory if s.device == memory.device]
        assert max(levels) == pytest.approx(memory.total_bytes)
    apart = simulate(plan)
    assert [(s.device, s.bytes) for s in timeline.memory] == [
        (s.device, s.bytes) for s in apart.memory
    ]
