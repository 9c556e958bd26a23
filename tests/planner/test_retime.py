"""A plan timed anew: the durations of the estimator, and nothing else changed."""

from dataclasses import replace

import pytest

from spindle_sim.cluster import parse_cluster
from spindle_sim.estimate import Estimator
from spindle_sim.estimate.profile import (
    PROFILE_VERSION,
    OperatorPoint,
    Profile,
    ProfiledOperator,
    ProfileProvenance,
)
from spindle_sim.planner import make_plan
from spindle_sim.planner.contract import contract
from spindle_sim.planner.probes import probes_of_plans, step_probes
from spindle_sim.planner.retime import retimed
from spindle_sim.workload import builtin_workload
from spindle_sim.workload.tiny import tiny

CLUSTER = parse_cluster("a800:1x4")
WORKLOAD = tiny(builtin_workload("multitask-clip").with_first_tasks(3))


@pytest.mark.parametrize("strategy", ["spindle", "seq", "optimus"])
def test_timed_by_its_own_estimator_a_plan_stays_as_it_is(strategy: str) -> None:
    plan = make_plan(WORKLOAD, CLUSTER, strategy)
    again = retimed(plan, Estimator(CLUSTER))
    for item, other in zip(plan.slices, again.slices, strict=True):
        assert other.forward_s == pytest.approx(item.forward_s)
        assert other.backward_s == pytest.approx(item.backward_s)
        assert replace(other, forward_s=item.forward_s, backward_s=item.backward_s) == item


def test_timed_by_rank_a_slice_of_one_device_takes_what_that_rank_measured() -> None:
    plan = make_plan(builtin_workload("multitask-clip").with_first_tasks(3), CLUSTER, "optimus")
    other = Estimator(parse_cluster("h100:1x4"))
    ranks = [Estimator(CLUSTER), other, Estimator(CLUSTER), Estimator(CLUSTER)]
    again = retimed(plan, other, ranks=ranks)
    by_other = retimed(plan, other)
    kinds = set()
    for item, anew, all_other in zip(plan.slices, again.slices, by_other.slices, strict=True):
        mine = len(item.devices) == 1 and item.devices[0] != 1
        if item.backward_s != pytest.approx(all_other.backward_s):  # more than launching kernels
            kinds.add(mine)
        expected = item if mine else all_other
        assert anew.forward_s == pytest.approx(expected.forward_s)
        assert anew.backward_s == pytest.approx(expected.backward_s)
    assert kinds == {True, False}


def test_probes_are_chained_as_in_the_median_slice() -> None:
    plan = make_plan(WORKLOAD, CLUSTER, "seq")
    graph = contract(WORKLOAD)
    lengths: dict[tuple[object, ...], set[int]] = {}
    for item in plan.slices:
        node = graph.nodes[item.metaop].operator
        key = node.operator, node.tokens, node.batch_size * node.items // item.dp
        lengths.setdefault(key, set()).add(item.num_ops)
    found = probes_of_plans(graph, [plan])
    assert any(probe.chained > 1 for probe in found)
    for probe in found:
        known = lengths[probe.operator, probe.tokens, probe.samples]
        assert min(known) <= probe.chained <= max(known)


def test_timed_by_a_profile_of_its_probes_each_slice_takes_its_points() -> None:
    plan = make_plan(WORKLOAD, CLUSTER, "spindle")
    found = probes_of_plans(contract(WORKLOAD), [plan])
    profile = Profile(
        format_version=PROFILE_VERSION,
        name="stated",
        provenance=ProfileProvenance(
            device="none", source="stated", date="2026-11-30", kind="modelled", tool="by hand"
        ),
        operators=tuple(
            ProfiledOperator(
                operator=probe.operator,
                tokens=probe.tokens,
                context_tokens=probe.context_tokens,
                batch_size=probe.batch_size,
                points=(
                    OperatorPoint(
                        samples=probe.samples,
                        forward_s=1.0,
                        backward_s=2.0,
                        input_backward_s=2.0,
                        weight_backward_s=2.0,
                    ),
                ),
            )
            for probe in {(probe.signature): probe for probe in found}.values()
        ),
    )
    again = retimed(plan, Estimator(CLUSTER, profile))
    samples = {probe.signature: probe.samples for probe in found}
    nodes = contract(WORKLOAD).nodes
    assert again.inputs.profile != plan.inputs.profile
    exact = 0
    for item in again.slices:
        node = nodes[item.metaop].operator
        if node.cost.gathered_bytes or item.tp > 1:
            continue
        key = node.operator, node.tokens, node.context_tokens, 1, None
        if samples[key] == node.batch_size * node.items / item.dp:
            assert item.forward_s == pytest.approx(item.num_ops * 1.0)
            exact += 1
    assert exact


def test_steps_are_over_all_trained_operators_and_half_of_them() -> None:
    half, whole = step_probes(WORKLOAD)
    parameters = sum(
        block.repeat * block.operator.parameters
        for module in WORKLOAD.modules
        for block in module.blocks
    )
    assert whole.parameters == parameters
    assert 0 < half.parameters < whole.parameters
