"""Rounds that accumulate gradients: their order, their time, what they keep, and their rules."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_sim.plan import Order, Plan, Round, dump_plan, parse_plan, plan_schema, validate_plan
from spindle_sim.plan.schedule import operation_order, schedule
from spindle_sim.planner.pool import peak_activations
from tests.pipelines import pipelined_plan, with_rounds
from tests.stated_plans import two_round_plan, two_task_plan


def accumulated(plan: Plan, micro_batches: int) -> Plan:
    """Give every round of a plan so many micro-batches of the same times."""
    numbers = sorted({item.round for item in plan.slices})
    rounds = [
        Round(round=number, micro_batches=micro_batches, order=Order.ACCUMULATE)
        for number in numbers
    ]
    return with_rounds(plan, rounds)


def messages(plan: Plan) -> list[str]:
    return [str(violation) for violation in validate_plan(plan)]


def test_each_micro_batch_goes_forward_and_back_before_the_next() -> None:
    plan = pipelined_plan(ranks=1, chunks=2, micro_batches=2, order=Order.ACCUMULATE)
    assert [
        f"{'B' if op.backward else 'F'}{op.slice_index}.{op.micro_batch}"
        for op in operation_order(plan)
    ] == ["F0.0", "F1.0", "B1.0", "B0.0", "F0.1", "F1.1", "B1.1", "B0.1"]


@pytest.mark.parametrize(("ranks", "chunks"), [(1, 1), (1, 3), (4, 1), (2, 2)])
@pytest.mark.parametrize("micro_batches", [1, 3, 8])
def test_stages_behind_one_another_take_m_times_their_sum(
    ranks: int, chunks: int, micro_batches: int
) -> None:
    # No pipeline: three chunks a rank with three micro-batches, or any number, will do.
    plan = pipelined_plan(
        ranks=ranks, chunks=chunks, micro_batches=micro_batches, order=Order.ACCUMULATE
    )
    expected_s = micro_batches * ranks * chunks * (1.0 + 2.0)
    assert schedule(plan).makespan_s == pytest.approx(expected_s, rel=1e-12)
    assert messages(plan) == []


@pytest.mark.parametrize("base", [two_task_plan, two_round_plan])
def test_stages_on_any_devices_accumulate_without_being_a_pipeline(
    base: Callable[[], Plan],
) -> None:
    plan = accumulated(base(), 2)
    assert messages(plan) == []
    assert parse_plan(dump_plan(plan), "text") == plan


@given(micro_batches=st.sampled_from([1, 2, 4, 8]), recompute=st.booleans())
@settings(max_examples=20, deadline=None)
def test_one_micro_batch_is_in_flight(micro_batches: int, recompute: bool) -> None:
    def peak(count: int, order: Order) -> float:
        plan = pipelined_plan(
            ranks=2, chunks=2, micro_batches=count, batch=16, order=order, recompute=recompute
        )
        return max(peak_activations(plan))

    whole = peak(1, Order.FLUSH)
    assert peak(micro_batches, Order.ACCUMULATE) == pytest.approx(whole / micro_batches)


def test_activations_told_as_those_of_the_whole_batch_are_refused() -> None:
    plan = accumulated(two_task_plan(), 2)
    more = tuple(replace(item, activation_bytes=2 * item.activation_bytes) for item in plan.memory)
    assert any("activation" in message for message in messages(replace(plan, memory=more)))


def test_degrees_and_micro_batches_divide_the_batch() -> None:
    plan = two_task_plan()
    batch = plan.metaops[0].batch
    found = messages(accumulated(plan, batch))  # two replicas share one sample
    assert any(f"doesn't divide the batch {batch}" in message for message in found)


def test_the_schema_names_the_order() -> None:
    assert "accumulate" in plan_schema()["$defs"]["Order"]["enum"]
