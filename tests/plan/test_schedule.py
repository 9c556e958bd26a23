import itertools

import pytest
from hypothesis import given, settings

from spindle_sim.errors import PlanError
from spindle_sim.plan import Plan, validate_plan
from spindle_sim.plan.schedule import execution_order, operation_order, schedule
from tests.builders import Part, make_cluster, make_plan, make_workload
from tests.random_plans import plans

TWO_STEPS = make_workload({"t": ("a", "b")})


def two_devices() -> Plan:
    """Give "a" on device 0, then "b" on device 1."""
    parts = [
        Part(metaop="t/a/x", devices=(0,), stage=0, forward_s=1.0, backward_s=2.0),
        Part(metaop="t/b/x", devices=(1,), stage=1, forward_s=3.0, backward_s=4.0),
    ]
    return make_plan(TWO_STEPS, make_cluster(1, 2), parts)


def test_a_chain_runs_forward_then_backward_in_reverse() -> None:
    first, second = schedule(two_devices()).slices
    assert (first.forward_start_s, first.forward_end_s) == (0.0, 1.0)
    assert (second.forward_start_s, second.forward_end_s) == (1.0, 4.0)
    assert (second.backward_start_s, second.backward_end_s) == (4.0, 8.0)
    assert (first.backward_start_s, first.backward_end_s) == (8.0, 10.0)
    assert schedule(two_devices()).makespan_s == 10.0


def test_a_group_is_held_as_a_whole_until_its_last_device_is_free() -> None:
    workload = make_workload({"t": ("a",), "u": ("b",), "v": ("c",)})
    parts = [
        Part(metaop="t/a/x", devices=(0,), stage=0, forward_s=5.0),
        Part(metaop="u/b/x", devices=(0, 1), stage=1, forward_s=1.0),
        Part(metaop="v/c/x", devices=(1,), stage=2, forward_s=1.0),
    ]
    starts = [
        s.forward_start_s for s in schedule(make_plan(workload, make_cluster(1, 2), parts)).slices
    ]
    assert starts == [0.0, 5.0, 6.0]


def test_rounds_follow_each_other_forward_backward_forward_backward() -> None:
    workload = make_workload({"t": ("a",), "u": ("b",)})
    parts = [
        Part(metaop="t/a/x", devices=(0,), round=0),
        Part(metaop="u/b/x", devices=(0,), round=1),
    ]
    plan = make_plan(workload, make_cluster(1, 1), parts)
    order = [(op.slice_index, op.backward) for op in operation_order(plan)]
    assert order == [(0, False), (0, True), (1, False), (1, True)]


def test_one_round_runs_all_forwards_before_the_backwards() -> None:
    workload = make_workload({"t": ("a",), "u": ("b",)})
    parts = [
        Part(metaop="t/a/x", devices=(0,), stage=0),
        Part(metaop="u/b/x", devices=(0,), stage=1),
    ]
    plan = make_plan(workload, make_cluster(1, 1), parts)
    order = [(op.slice_index, op.backward) for op in operation_order(plan)]
    assert order == [(0, False), (1, False), (1, True), (0, True)]


def test_a_frozen_module_with_nothing_trained_before_it_has_no_backward() -> None:
    workload = make_workload({"t": ("a", "b")}, frozen=("a",))
    parts = [
        Part(metaop="t/a/x", devices=(0,), stage=0, forward_s=1.0),
        Part(metaop="t/b/x", devices=(0,), stage=1, forward_s=3.0, backward_s=4.0),
    ]
    times = schedule(make_plan(workload, make_cluster(1, 1), parts))
    assert times.makespan_s == 8.0
    assert times.by_id()["s0"].backward_end_s == 1.0


def test_an_order_against_the_flows_is_refused_with_the_slices_in_the_circle() -> None:
    workload = make_workload({"t": ("a", "b")})
    parts = [
        Part(metaop="t/a/x", devices=(0,), stage=1),
        Part(metaop="t/b/x", devices=(0,), stage=0),
    ]
    with pytest.raises(PlanError, match=r"s\d \(forward\) -> s\d \(forward\)"):
        make_plan(workload, make_cluster(1, 1), parts)


@given(plans())
@settings(max_examples=50, deadline=None)
def test_the_random_plans_of_the_tests_are_valid(plan: Plan) -> None:
    assert validate_plan(plan) == ()


@given(plans())
@settings(max_examples=50, deadline=None)
def test_no_device_runs_two_things_at_once_and_each_follows_its_order(plan: Plan) -> None:
    times = schedule(plan).by_id()
    for order in execution_order(plan).values():
        rounds = sorted({item.round for item in order})
        spans = []
        for index in rounds:
            members = [times[item.id] for item in order if item.round == index]
            spans += [(t.forward_start_s, t.forward_end_s) for t in members]
            spans += [
                (t.backward_start_s, t.backward_end_s)
                for t in reversed(members)
                if t.backward_start_s > t.forward_end_s or t.backward_end_s > t.forward_end_s
            ]
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


@given(plans())
@settings(max_examples=50, deadline=None)
def test_nothing_starts_before_what_it_needs(plan: Plan) -> None:
    times = schedule(plan).by_id()
    for flow in plan.flows:
        source, target = times[flow.source_slice], times[flow.target_slice]
        assert source.forward_end_s <= target.forward_start_s
        if flow.gradient:
            assert target.backward_end_s <= source.backward_start_s


@given(plans())
@settings(max_examples=50, deadline=None)
def test_the_makespan_is_at_least_the_work_of_the_busiest_device(plan: Plan) -> None:
    busiest = max(
        sum(item.forward_s + item.backward_s for item in order)
        for order in execution_order(plan).values()
    )
    assert schedule(plan).makespan_s >= busiest * (1 - 1e-12)
