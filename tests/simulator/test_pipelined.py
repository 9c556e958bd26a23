"""Rounds of several micro-batches: the free schedule, memory, transfers, and devices joined."""

import gc
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_sim.errors import UsageError
from spindle_sim.metrics import idle_reasons, summarize, utilization_over_time
from spindle_sim.plan import Order, Plan
from spindle_sim.plan.schedule import schedule
from spindle_sim.simulator import crews, run, simulate, simulated_s, traffic, transfers
from spindle_sim.timeline import Kind, Phase, Span, Timeline
from tests.builders import make_cluster
from tests.pipelines import pipelined_plan, pipelines, stated_memory

ROUNDING = 1e-9
PROPERTY = settings(max_examples=25, deadline=None)


def compute(timeline: Timeline, device: int) -> list[Span]:
    return [s for s in timeline.spans if s.kind is Kind.COMPUTE and s.device == device]


@given(pipelines())
@PROPERTY
def test_without_a_network_the_times_are_those_of_the_schedule(plan: Plan) -> None:
    times, timeline = schedule(plan), simulate(plan, network=False)
    expected = {
        (plan.slices[op.slice_index].id, op.backward, op.micro_batch, device): (start_s, end_s)
        for op, start_s, end_s in zip(times.operations, times.starts_s, times.ends_s, strict=True)
        for device in plan.slices[op.slice_index].devices
    }
    found = {
        (s.slice, s.phase is Phase.BACKWARD, s.micro_batch, s.device): (s.start_s, s.end_s)
        for s in timeline.spans
        if s.kind is Kind.COMPUTE
    }
    assert found == expected


@given(pipelines())
@PROPERTY
def test_nothing_overlaps_on_a_stream_and_memory_returns_to_the_states(plan: Plan) -> None:
    timeline = simulate(plan)
    streams: dict[tuple[int, int], list[Span]] = {}
    for span in timeline.spans:
        streams.setdefault((span.device, span.stream), []).append(span)
    for spans in streams.values():
        assert all(one.end_s <= other.start_s for one, other in pairwise(spans))
    levels: dict[int, list[float]] = {}
    for sample in timeline.memory:
        levels.setdefault(sample.device, []).append(sample.bytes)
    for entry in plan.memory:
        assert levels[entry.device][-1] == levels[entry.device][0]
        assert max(levels[entry.device]) == pytest.approx(entry.total_bytes, rel=ROUNDING)


@given(pipelines())
@PROPERTY
def test_joined_devices_and_links_change_nothing(plan: Plan) -> None:
    with pytest.MonkeyPatch.context() as patch:
        joined = simulate(plan, overlap_sync=True)
        slices = tuple(item.devices for item in plan.slices)
        patch.setattr(run, "crews", lambda _: crews.Crews(leader={}, slices=slices))
        patch.setattr(
            traffic, "distinct_links", lambda _, capacities: frozenset(range(len(capacities)))
        )
        assert simulate(plan, overlap_sync=True) == joined


@given(pipelines())
@PROPERTY
def test_messages_that_go_together_end_as_they_do_apart(plan: Plan) -> None:
    with pytest.MonkeyPatch.context() as patch:
        together = simulate(plan)
        patch.setattr(
            transfers, "coalesced", lambda demands: (tuple(demands), tuple(range(len(demands))))
        )
        assert simulate(plan).iteration_s == pytest.approx(together.iteration_s, rel=ROUNDING)


@given(pipelines())
@PROPERTY
def test_the_figures_of_a_pipelined_iteration_add_up(plan: Plan) -> None:
    timeline = simulate(plan)
    summary = summarize(plan, timeline)
    parts_s = summary.forward_backward_s + summary.sync_s + summary.send_recv_s + summary.idle_s
    assert parts_s == pytest.approx(summary.iteration_s)
    over_time = [value for _, value in utilization_over_time(plan, timeline)]
    assert sum(over_time) / len(over_time) == pytest.approx(summary.utilization)
    idle = sum(reason.device_seconds for reason in idle_reasons(plan, timeline, top=100))
    gaps_s = (summary.send_recv_s + summary.idle_s) * timeline.num_devices
    assert idle == pytest.approx(gaps_s, abs=1e-6 * summary.iteration_s)


def test_a_micro_batch_moves_its_part_of_the_bytes() -> None:
    # Eight micro-batches of 2 samples of 1 GB: 2 GB over 50 GB/s are 40 ms, eight times each way.
    plan = pipelined_plan(
        ranks=2,
        forward_s=1.0,
        backward_s=1.0,
        output_bytes=1e9,
        parameters=1,
        cluster=make_cluster(2, 1),
    )
    timeline = simulate(plan)
    sends = [s for s in timeline.spans if s.kind is Kind.SEND]
    assert [s.bytes for s in sends] == [2e9] * 16
    assert [s.duration_s for s in sends] == pytest.approx([0.04] * 16)
    first, last = compute(timeline, 1)[0], compute(timeline, 0)[-1]
    assert first.start_s == pytest.approx(1.04)
    # Two micro-batches are in flight: of each two the second rank waits once for a gradient's way
    # back and the next activations' way there.
    assert [s.micro_batch for s in compute(timeline, 0) if s.phase is Phase.FORWARD] == [*range(8)]
    assert last.end_s == pytest.approx(1.04 + 4 * 4 + 3 * 0.08 + 1.04)


def test_a_pipeline_frees_what_it_kept_first() -> None:
    plan = pipelined_plan(ranks=2, micro_batches=4)
    kept = plan.metaops[0].saved_replicated_bytes * 2
    timeline = simulate(plan, network=False)
    states = plan.memory[0].total_bytes - plan.memory[0].activation_bytes
    levels = [(s.bytes - states) / kept for s in timeline.memory if s.device == 0]
    assert levels == [0, 1, 2, 1, 2, 1, 2, 1, 0]


@pytest.mark.parametrize(
    ("order", "in_flight"),
    [(Order.FLUSH, 8), (Order.ONE_FORWARD_ONE_BACKWARD, 3), (Order.ACCUMULATE, 1)],
)
def test_the_peak_is_what_is_in_flight(order: Order, in_flight: int) -> None:
    plan = pipelined_plan(ranks=3, order=order)
    kept = plan.metaops[0].saved_replicated_bytes * 2
    peak = max(s.bytes for s in simulate(plan).memory if s.device == 0)
    states = plan.memory[0].total_bytes - plan.memory[0].activation_bytes
    assert peak - states == pytest.approx(in_flight * kept)


@pytest.mark.parametrize("order", [Order.ONE_FORWARD_ONE_BACKWARD, Order.ACCUMULATE])
def test_gradients_synchronize_once_for_all_micro_batches(order: Order) -> None:
    plan = pipelined_plan(ranks=2, dp=2, parameters=10_000_000, order=order)
    apart, beside = simulate(plan), simulate(plan, overlap_sync=True)
    for timeline in (apart, beside):
        syncs = [s for s in timeline.spans if s.kind is Kind.SYNC]
        assert sorted((s.device, s.bytes) for s in syncs) == [(d, 20e6) for d in range(4)]
    last = compute(beside, 2)[-1]
    assert last.micro_batch == 7
    assert min(s.start_s for s in beside.spans if s.kind is Kind.SYNC) == last.end_s


def test_sequence_parallel_stages_hand_on_their_tokens_only() -> None:
    plan = pipelined_plan(ranks=2, tp=2, output_bytes=1e8)
    slices = tuple(replace(item, sequence_parallel=True) for item in plan.slices)
    cut = replace(plan, slices=slices)
    cut = replace(cut, memory=stated_memory(cut))
    sent = [sum(s.bytes for s in simulate(p).spans if s.kind is Kind.SEND) for p in (plan, cut)]
    assert sent == [2 * 2 * 16 * 1e8, 2 * 16 * 1e8]  # both ways, 16 samples, on two ranks or cut


@given(pipelines(), st.booleans())
@PROPERTY
def test_the_time_alone_is_that_of_the_whole_simulation(plan: Plan, overlap_sync: bool) -> None:
    plan = replace(plan, overlap_sync=overlap_sync)
    assert simulated_s(plan) == simulate(plan).iteration_s


def test_a_simulation_leaves_the_search_for_garbage_as_it_was() -> None:
    plan = pipelined_plan(ranks=2, chunks=1, micro_batches=2)
    assert gc.isenabled()
    simulate(plan)
    assert gc.isenabled()
    with pytest.raises(UsageError):
        simulate(plan, jitter=2.0)
    gc.disable()
    try:
        simulate(plan)
        assert not gc.isenabled()
    finally:
        gc.enable()
