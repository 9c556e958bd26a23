"""Plans of every strategy on the built-in workloads validate; mutated ones don't."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_sim.cluster import parse_cluster
from spindle_sim.plan import Plan, dump_plan, parse_plan, validate_plan
from spindle_sim.planner import STRATEGIES, make_plan
from spindle_sim.workload import builtin_workload
from spindle_sim.workload.tiny import tiny
from tests.builders import make_flows, make_memory
from tests.plan.mutations import change, drop, repeat
from tests.random_plans import dealt_plan
from tests.stated_plans import stated


@cache
def planned(strategy: str, name: str = "multitask-clip", cluster: str = "a800:1x8") -> Plan:
    workload = builtin_workload(name).with_first_tasks(3)
    return make_plan(workload, parse_cluster(cluster), strategy)


@pytest.mark.parametrize("cluster", ["a800:1x1", "a800:1x8", "a800:2x8"])
@pytest.mark.parametrize("name", ["multitask-clip", "ofasys"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_plan_of_every_strategy_validates_and_survives_its_document(
    strategy: str, name: str, cluster: str
) -> None:
    plan = planned(strategy, name, cluster)
    assert [str(violation) for violation in validate_plan(plan)] == []
    assert parse_plan(dump_plan(plan)) == plan


def test_contexts_are_counted_but_in_plans_of_the_first_format() -> None:
    cluster = parse_cluster("a800:1x4")
    workload = tiny(builtin_workload("ofasys").with_first_tasks(2))
    plan = stated(dealt_plan(random.Random(1).choice, workload, cluster))
    metaops = tuple(replace(metaop, context_bytes=0.0) for metaop in plan.metaops)
    flows = make_flows(metaops, plan.slices)
    assert 0 < sum(f.bytes for f in flows) < sum(f.bytes for f in plan.flows)
    memory = make_memory(metaops, plan.slices, plan.parameter_groups, zero1=plan.zero1)
    old = replace(plan, format_version="1.0", metaops=metaops, flows=flows, memory=memory)
    assert validate_plan(old) == ()
    rules = {violation.rule for violation in validate_plan(replace(old, format_version="1.1"))}
    assert rules == {"metaop", "flow", "memory"}


@pytest.mark.parametrize("cluster", ["a800:1x8", "a800:2x8", "a40:1x8"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_plan_of_large_models_validates(strategy: str, cluster: str) -> None:
    plan = planned(strategy, "qwen-val", cluster)
    assert [str(violation) for violation in validate_plan(plan)] == []


def test_the_large_models_bring_everything_that_saves_memory_to_these_tests() -> None:
    clusters = ("a800:1x8", "a40:1x8")
    plans = [planned(strategy, "qwen-val", one) for one in clusters for strategy in STRATEGIES]
    assert any(item.tp > 1 for plan in plans for item in plan.slices)
    assert any(item.recompute for plan in plans for item in plan.slices)
    assert any(item.round for plan in plans for item in plan.slices)
    assert any(plan.zero1 for plan in plans)
    assert any(item.micro_batches > 1 for plan in plans for item in plan.rounds)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_recomputation_and_micro_batches_can_not_be_left_out(strategy: str) -> None:
    plan = planned(strategy, "qwen-val", "a800:1x8")
    slices = tuple(replace(item, recompute=False) for item in plan.slices)
    rounds = tuple(replace(item, micro_batches=1) for item in plan.rounds)
    found = [v.message for v in validate_plan(replace(plan, slices=slices, rounds=rounds))]
    assert any("activation_bytes is" in message for message in found)
    assert any("more than the" in message for message in found)


Mutation = Callable[[Plan], Plan]


def _mutations(plan: Plan, index: int) -> dict[str, tuple[Mutation, str]]:
    """Give mutations of the `index`-th thing of each kind, and the id that must be named."""
    item = plan.slices[index % len(plan.slices)]
    at = plan.slices.index(item)
    flow_at = index % len(plan.flows)
    flow = plan.flows[flow_at]
    group_at = index % len(plan.parameter_groups)
    memory_at = index % len(plan.memory)
    metaop_at = index % len(plan.metaops)
    metaop = plan.metaops[metaop_at]
    strange = tuple(device + plan.cluster.num_devices for device in item.devices)
    return {
        "slice dropped": (drop("slices", at), item.metaop),
        "slice twice": (repeat("slices", at), item.id),
        "first_op": (change("slices", at, first_op=item.first_op + 1), item.id),
        "num_ops": (change("slices", at, num_ops=item.num_ops + 1), item.metaop),
        "devices": (change("slices", at, devices=strange), item.id),
        "dp": (change("slices", at, dp=item.dp + 1), item.id),
        "longer": (change("slices", at, forward_s=-1.0), item.id),
        "flow dropped": (drop("flows", flow_at), flow.target_slice),
        "flow bytes": (change("flows", flow_at, bytes=flow.bytes + 1e3), flow.target_slice),
        "gradient": (change("flows", flow_at, gradient=not flow.gradient), flow.source_slice),
        "group dropped": (
            drop("parameter_groups", group_at),
            plan.parameter_groups[group_at].parameter_sets[0].parameter_set,
        ),
        "group bytes": (
            change("parameter_groups", group_at, bytes=1.0),
            f"parameter group {group_at}",
        ),
        "group's device": (
            change(
                "parameter_groups",
                group_at,
                devices=plan.parameter_groups[group_at].devices[1:],
            ),
            f"parameter group {group_at}",
        ),
        "memory": (
            change("memory", memory_at, activation_bytes=1e12),
            f"device {plan.memory[memory_at].device}",
        ),
        "level": (change("metaops", metaop_at, level=metaop.level + 1), metaop.id),
        "metaop dropped": (drop("metaops", metaop_at), metaop.id),
        "hash": (
            lambda p: replace(p, inputs=replace(p.inputs, cluster="0" * 64)),
            "inputs.cluster",
        ),
    }


@given(st.sampled_from(sorted(STRATEGIES)), st.integers(0, 1000), st.data())
@settings(max_examples=200)
def test_a_mutated_plan_of_any_strategy_is_found(
    strategy: str, index: int, data: st.DataObject
) -> None:
    plan = planned(strategy)
    mutations = _mutations(plan, index)
    mutate, name = mutations[data.draw(st.sampled_from(sorted(mutations)))]
    found = validate_plan(mutate(plan))
    assert any(name in violation.message for violation in found), [str(v) for v in found]
