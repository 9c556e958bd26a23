"""Valid plans whose statements about their inputs are true as well: MetaOps, hashes, gradients."""

from dataclasses import replace

from spindle_sim.plan import InputHashes, Plan, input_hash
from spindle_sim.planner.contract import contract
from tests.builders import Part, make_cluster, make_flows, make_plan, make_workload


def stated(plan: Plan) -> Plan:
    """Give the plan with the MetaOps, flows and hashes that its workload and cluster demand."""
    metaops = tuple(node.metaop for node in contract(plan.workload).nodes.values())
    return replace(
        plan,
        inputs=InputHashes(
            workload=input_hash(plan.workload), cluster=input_hash(plan.cluster), profile="0" * 64
        ),
        metaops=metaops,
        flows=make_flows(metaops, plan.slices),
    )


def two_task_plan() -> Plan:
    """Give two tasks that share module a: one continues in b (tp 2), one in the frozen c.

    Devices 0-1: s0 (a 0-1), s2 (a 2-3), s4 (c); 2-3: s1 (a), s2; 4-5: s3 (b).
    """
    workload = make_workload({"t": ("a", "b"), "u": ("a", "c")}, repeat=4, frozen=("c",))
    parts = [
        Part(metaop="t/a/x", devices=(0, 1), num_ops=2),
        Part(metaop="u/a/x", devices=(2, 3), num_ops=4),
        Part(metaop="t/a/x", devices=(0, 1, 2, 3), first_op=2, num_ops=2, stage=1),
        Part(metaop="t/b/x", devices=(4, 5), num_ops=4, tp=2, stage=2),
        Part(metaop="u/c/x", devices=(0, 1), num_ops=4, stage=2),
    ]
    return stated(make_plan(workload, make_cluster(), parts))


def two_round_plan() -> Plan:
    """Give two tasks one after the other on the same devices: a round each."""
    workload = make_workload({"t": ("a",), "u": ("a",)})
    parts = [
        Part(metaop="t/a/x", devices=(0, 1)),
        Part(metaop="u/a/x", devices=(0, 1), round=1),
    ]
    return stated(make_plan(workload, make_cluster(), parts))
