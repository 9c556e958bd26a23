"""What would help most: by hand, and against simulations made here."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from spindle_sim.metrics import PathKind, critical_path
from spindle_sim.plan import Plan
from spindle_sim.simulator import simulate, simulated_s
from spindle_sim.timeline import Kind
from spindle_sim.whatif import ChangeKind, Sensitivity, sensitivities, timed_as
from tests.builders import Part, make_cluster, make_plan, make_workload
from tests.pipelines import pipelined_plan
from tests.random_plans import plans
from tests.test_metrics import chain

STEP = 1e-4  # steps and latencies aren't nothing


def found(plan: Plan, **options: float) -> dict[tuple[ChangeKind, str], Sensitivity]:
    path = critical_path(plan, simulate(plan))
    changes = sensitivities(plan, path, **options)  # type: ignore[arg-type]
    return {(change.kind, change.metaop): change for change in changes}


def test_of_a_chain_the_path_says_what_a_faster_part_gives() -> None:
    # 1 + 0.1 + 3 + 4 + 0.1 + 2 seconds, of which "b" computes 7 and the links carry 0.2.
    changes = found(chain())
    assert list(changes) == [
        (ChangeKind.COMPUTE, ""),
        (ChangeKind.METAOP, "t/b/x"),
        (ChangeKind.METAOP, "t/a/x"),
        (ChangeKind.LINKS, ""),
        (ChangeKind.NETWORK_CARDS, ""),
    ]
    expected = (9.2, 9.5, 9.9, 10.18)
    for change, iteration_s in zip(changes.values(), expected, strict=False):
        assert change.simulated_s == pytest.approx(iteration_s, rel=STEP)
        assert change.expected_s == pytest.approx(change.simulated_s, rel=1e-9)
        assert change.saved_s == change.base_s - change.simulated_s
    cards = changes[ChangeKind.NETWORK_CARDS, ""]
    assert cards.expected_s is None
    assert cards.simulated_s == pytest.approx(10.18, rel=STEP)


def test_a_part_beside_which_another_is_as_long_gains_less_than_the_path_says() -> None:
    workload = make_workload({"t": ("a",), "u": ("b",)}, parameters=1)
    parts = [
        Part(metaop="t/a/x", devices=(0,), forward_s=4.0, backward_s=6.0),
        Part(metaop="u/b/x", devices=(1,), forward_s=4.0, backward_s=5.8),
    ]
    change = found(make_plan(workload, make_cluster(1, 2), parts))[ChangeKind.METAOP, "t/a/x"]
    assert change.expected_s == pytest.approx(9.0, rel=STEP)
    assert change.simulated_s == pytest.approx(9.8, rel=STEP)


def test_how_much_faster_is_asked_for_and_short_parts_are_left_out() -> None:
    changes = found(chain(), faster=0.5, num_metaops=1)
    assert changes[ChangeKind.METAOP, "t/b/x"].simulated_s == pytest.approx(6.7, rel=STEP)
    assert (ChangeKind.METAOP, "t/a/x") not in changes
    assert not {kind for kind, _ in changes} & {ChangeKind.MEMORY, ChangeKind.OVERLAP_SYNC}


def test_steps_and_synchronization_are_asked_for_where_the_path_has_them() -> None:
    workload = make_workload({"t": ("a",)}, repeat=4, parameters=2_000_000_000)
    part = Part(metaop="t/a/x", devices=(0, 1), num_ops=4, forward_s=0.5, backward_s=0.5)
    plan = make_plan(workload, make_cluster(1, 2), [part])
    changes = found(plan)
    lengths = {one.name: one.seconds for one in critical_path(plan, simulate(plan)).by_kind()}
    memory = changes[ChangeKind.MEMORY, ""]
    assert memory.path_s == lengths["step"]
    assert memory.simulated_s == pytest.approx(memory.expected_s, rel=1e-3)
    overlapped = changes[ChangeKind.OVERLAP_SYNC, ""]
    assert overlapped.path_s == lengths["synchronization"]
    assert overlapped.simulated_s == simulate(plan, overlap_sync=True).iteration_s
    assert (ChangeKind.NETWORK_CARDS, "") not in changes  # one node
    assert (ChangeKind.OVERLAP_SYNC, "") not in found(replace(plan, overlap_sync=True))


def test_an_executed_iteration_is_asked_about_computing_alone() -> None:
    path = critical_path(chain(), simulate(chain()))
    changes = sensitivities(chain(), path, executed=True)
    assert {change.kind for change in changes} == {ChangeKind.METAOP, ChangeKind.COMPUTE}


def test_all_computing_isnt_asked_for_where_it_is_of_one_metaop() -> None:
    changes = found(pipelined_plan(ranks=2, micro_batches=4))
    assert (ChangeKind.METAOP, "t/a/x") in changes
    assert (ChangeKind.COMPUTE, "") not in changes


def test_every_simulation_is_told_of() -> None:
    told: list[str] = []
    changes = sensitivities(chain(), critical_path(chain(), simulate(chain())), advance=told.append)
    assert len(told) == 1 + len(changes)


@given(plans())
@settings(max_examples=30, deadline=None)
def test_the_base_is_the_iteration_and_savings_are_sorted(plan: Plan) -> None:
    timeline = simulate(plan)
    path = critical_path(plan, timeline)
    changes = sensitivities(plan, path)
    assert all(change.base_s == timeline.iteration_s for change in changes)
    savings = [change.saved_s for change in changes]
    assert savings == sorted(savings, reverse=True)
    for change in changes:
        assert 0.0 < change.path_s <= timeline.iteration_s
        if change.kind is ChangeKind.COMPUTE:
            computed = next(one for one in path.by_kind() if one.name == PathKind.COMPUTE)
            assert change.path_s == pytest.approx(computed.seconds)


@given(plans())
@settings(max_examples=30, deadline=None)
def test_a_plan_timed_as_its_own_iteration_takes_as_long(plan: Plan) -> None:
    timeline = simulate(plan)
    assert simulated_s(timed_as(plan, timeline)) == pytest.approx(timeline.iteration_s)
    slower = tuple(
        replace(span, start_s=2 * span.start_s, end_s=2 * span.end_s)
        for span in timeline.spans
        if span.kind is Kind.COMPUTE
    )
    doubled = timed_as(plan, replace(timeline, spans=slower))
    for item, other in zip(plan.slices, doubled.slices, strict=True):
        assert other.forward_s == pytest.approx(2 * item.forward_s)
