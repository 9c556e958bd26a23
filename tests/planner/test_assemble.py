"""From placed drafts to a plan."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spindle_sim.plan import ParameterRange, dump_plan, parse_plan, schedule, validate_plan
from spindle_sim.planner.assemble import assemble, merged
from spindle_sim.planner.context import Context
from spindle_sim.planner.metagraph import DraftSlice
from spindle_sim.planner.place import place
from tests.builders import make_cluster
from tests.planner.drafting import Case, cases, make_context


def chain(repeat: int = 4) -> Context:
    return make_context({"a": 1000, "b": 500}, {"t": ("a", "b")}, make_cluster(1, 4), repeat=repeat)


def part(context: Context, first_op: int, num_ops: int, stage: int) -> DraftSlice:
    return context.draft("t/a/x", num_devices=2, stage=stage, first_op=first_op, num_ops=num_ops)


@given(cases(), st.sampled_from(["spindle", "sequential"]))
def test_every_assembled_plan_is_valid_and_survives_its_document(case: Case, method: str) -> None:
    placements = place(case.context, case.drafts, method=method)
    plan = assemble(case.context, case.drafts, placements, strategy="test", optimum_s=1.0)
    assert validate_plan(plan) == ()
    assert parse_plan(dump_plan(plan)) == plan


@given(cases())
def test_slices_start_when_their_devices_and_inputs_are_there(case: Case) -> None:
    placements = place(case.context, case.drafts)
    plan = assemble(case.context, case.drafts, placements, strategy="test", optimum_s=1.0)
    times = schedule(plan)
    starts = [time.forward_start_s for time in times.slices]
    assert [item.start_s for item in plan.slices] == starts


def test_times_of_a_slice_are_those_of_its_operators_on_its_devices() -> None:
    context = chain()
    drafts = [
        context.draft("t/a/x", num_devices=2, stage=0),
        context.draft("t/b/x", num_devices=4, stage=1),
    ]
    plan = assemble(context, drafts, ((0, 1), (0, 1, 2, 3)), strategy="test", optimum_s=0.5)
    first, second = plan.slices
    assert first.forward_s == 4 * context.curve("t/a/x").forward_s(2)
    assert second.backward_s == 4 * context.curve("t/b/x").backward_s(4)
    assert second.start_s == first.forward_s
    assert (first.dp, first.tp, plan.optimum_s) == (2, 1, 0.5)
    (flow,) = plan.flows
    assert (flow.source_slice, flow.target_slice, flow.bytes) == ("s0", "s1", 16 * 1e6)


def test_a_slice_that_goes_on_where_it_is_becomes_one_slice() -> None:
    context = chain()
    drafts = [part(context, 0, 1, 0), part(context, 1, 1, 1), part(context, 2, 2, 3)]
    joined = merged(drafts, [(0, 1)] * 3)
    assert [(d.first_op, d.num_ops, d.stage, devices) for d, devices in joined] == [
        (0, 4, 0, (0, 1))
    ]


@pytest.mark.parametrize("second", [(1, 0), (0, 2), (2, 3)])
def test_other_devices_or_another_order_of_them_end_a_slice(second: tuple[int, ...]) -> None:
    context = chain()
    drafts = [part(context, 0, 1, 0), part(context, 1, 3, 1)]
    assert len(merged(drafts, [(0, 1), second])) == 2


def test_a_slice_doesnt_go_on_past_another_on_one_of_its_devices() -> None:
    context = make_context(
        {"a": 1000, "b": 500}, {"t": ("a",), "u": ("b",)}, make_cluster(1, 4), repeat=2
    )
    between = context.draft("u/b/x", num_devices=1, stage=1)
    drafts = [part(context, 0, 1, 0), between, part(context, 1, 1, 2)]
    assert len(merged(drafts, [(0, 1), (1,), (0, 1)])) == 3


def test_the_pool_lists_each_device_group_with_the_ranges_it_shares() -> None:
    context = make_context(
        {"a": 1000, "b": 500}, {"t": ("a", "b"), "u": ("a",)}, make_cluster(1, 4), repeat=4
    )
    drafts = [
        context.draft("t/a/x", num_devices=2, stage=0),
        context.draft("u/a/x", num_devices=1, stage=0, num_ops=3),
        context.draft("t/b/x", num_devices=2, stage=1),
        context.draft("u/a/x", num_devices=1, stage=1, first_op=3, num_ops=1),
    ]
    plan = assemble(context, drafts, ((1, 0), (2,), (0, 1), (3,)), strategy="test", optimum_s=1.0)
    pool = {group.devices: (group.parameter_sets, group.bytes) for group in plan.parameter_groups}
    assert pool == {
        (0, 1): ((ParameterRange(parameter_set="b/x", first_op=0, num_ops=4),), 2 * 4 * 500),
        (0, 1, 2): ((ParameterRange(parameter_set="a/x", first_op=0, num_ops=3),), 2 * 3 * 1000),
        (0, 1, 3): ((ParameterRange(parameter_set="a/x", first_op=3, num_ops=1),), 2 * 1000),
    }


def test_tensor_parallel_shards_have_groups_of_their_own() -> None:
    # Half of an operator's 1000 parameters are divided, half are on every rank.
    context = make_context({"a": 1000}, {"t": ("a",)}, make_cluster(1, 4), tp={"a": 2})
    drafts = [context.draft("t/a/x", num_devices=4, stage=0)]
    plan = assemble(context, drafts, ((0, 1, 2, 3),), strategy="test", optimum_s=1.0)
    assert [(g.devices, g.shard, g.num_shards, g.bytes) for g in plan.parameter_groups] == [
        ((0, 2), 0, 2, 2 * 750),
        ((1, 3), 1, 2, 2 * 750),
    ]
    assert [m.parameter_bytes for m in plan.memory] == [1500.0] * 4


def test_frozen_parameters_are_stored_and_not_synchronized() -> None:
    context = make_context(
        {"a": 1000, "b": 500}, {"t": ("a", "b")}, make_cluster(1, 2), frozen=("a",)
    )
    drafts = [context.draft(f"t/{name}/x", num_devices=2, stage=i) for i, name in enumerate("ab")]
    plan = assemble(context, drafts, ((0, 1), (0, 1)), strategy="test", optimum_s=1.0)
    (group,) = plan.parameter_groups
    assert group.bytes == 2 * 500
    memory = plan.memory[0]
    assert (memory.parameter_bytes, memory.gradient_bytes) == (2 * 1500, 2 * 500)
    assert memory.optimizer_bytes == 12 * 500


def test_idle_devices_have_an_empty_memory_entry() -> None:
    context = chain(repeat=1)
    drafts = [context.draft(f"t/{name}/x", num_devices=1, stage=i) for i, name in enumerate("ab")]
    plan = assemble(context, drafts, ((0,), (0,)), strategy="test", optimum_s=1.0)
    assert [memory.device for memory in plan.memory] == [0, 1, 2, 3]
    assert [memory.total_bytes for memory in plan.memory[1:]] == [0.0, 0.0, 0.0]
