"""Every way in which a plan was broken on purpose: what must be told of each, and whom it names.

They apply to `two_task_plan`.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from spindle_sim.plan import ParameterRange, Plan

Mutation = Callable[[Plan], Plan]


def change(section: str, index: int, **fields: Any) -> Mutation:
    def mutate(plan: Plan) -> Plan:
        items = list(getattr(plan, section))
        items[index] = replace(items[index], **fields)
        sections: Any = {section: tuple(items)}
        return replace(plan, **sections)

    return mutate


def drop(section: str, index: int) -> Mutation:
    def mutate(plan: Plan) -> Plan:
        items = list(getattr(plan, section))
        del items[index]
        fields: Any = {section: tuple(items)}
        return replace(plan, **fields)

    return mutate


def repeat(section: str, index: int) -> Mutation:
    def mutate(plan: Plan) -> Plan:
        items = getattr(plan, section)
        fields: Any = {section: (*items, items[index])}
        return replace(plan, **fields)

    return mutate


def rename_task(plan: Plan) -> Plan:
    tasks = (replace(plan.workload.tasks[0], name="other"), *plan.workload.tasks[1:])
    return replace(plan, workload=replace(plan.workload, tasks=tasks))


def freeze_a(plan: Plan) -> Plan:
    first, *others = plan.workload.modules
    workload = replace(plan.workload, modules=(replace(first, frozen=True), *others))
    return replace(plan, workload=workload)


def shrink_memory(plan: Plan) -> Plan:
    gpu = replace(plan.cluster.gpu, memory_bytes=1e8)
    return replace(plan, cluster=replace(plan.cluster, gpu=gpu))


MUTATIONS: dict[str, tuple[Mutation, str, str]] = {
    # name: mutation, rule, what its message must name
    "another format version": (
        lambda plan: replace(plan, format_version="0.9"),
        "format-version",
        "'0.9'",
    ),
    "a task renamed in the workload": (rename_task, "input-hash", "inputs.workload"),
    "a module frozen in the workload": (freeze_a, "metaop", "MetaOp t/a/x: frozen"),
    "a smaller GPU in the cluster": (shrink_memory, "input-hash", "inputs.cluster"),
    "a smaller GPU holds less": (shrink_memory, "memory", "device 0: needs"),
    "a strategy without a name": (
        lambda plan: replace(plan, strategy=" "),
        "name",
        "strategy: ' ' is blank",
    ),
    "a slice whose id rings a bell": (
        change("slices", 1, id="s1\a"),
        "name",
        "slices[1].id: 's1\\x07' has a character that can't be printed",
    ),
    "a MetaOp whose id clears the screen": (
        change("metaops", 0, id="t/a/x\x1b[2J"),
        "name",
        "metaops[0].id: 't/a/x\\x1b[2J' has",
    ),
    "a flow to a name with a blank": (
        change("flows", 0, target_slice="s2 "),
        "name",
        "flows[0].target_slice: 's2 ' begins or ends with a blank",
    ),
    "a group of a set with a line break": (
        change(
            "parameter_groups",
            0,
            parameter_sets=(ParameterRange(parameter_set="a\nx", first_op=0, num_ops=4),),
        ),
        "name",
        "parameter_groups[0].parameter_sets[0].parameter_set: 'a\\nx' has",
    ),
    "a wrong workload hash": (
        lambda plan: replace(plan, inputs=replace(plan.inputs, workload="f" * 64)),
        "input-hash",
        "inputs.workload is ffffffffffff",
    ),
    "a MetaOp dropped": (drop("metaops", 1), "metaop", "MetaOp t/b/x: is missing"),
    "a MetaOp given twice": (repeat("metaops", 1), "metaop", "MetaOp t/b/x: is given 2 times"),
    "a MetaOp that isn't": (
        change("metaops", 1, id="t/b/y"),
        "metaop",
        "MetaOp t/b/y: is no use of a block",
    ),
    "a MetaOp of fewer operators": (
        change("metaops", 0, num_ops=3),
        "metaop",
        "MetaOp t/a/x: num_ops is 3, by the workload it is 4",
    ),
    "another level": (change("metaops", 1, level=2), "metaop", "MetaOp t/b/x: level"),
    "a level too low": (change("metaops", 1, level=0), "metaop", "MetaOp t/b/x: level"),
    "another predecessor": (
        change("metaops", 1, predecessors=("u/a/x",)),
        "metaop",
        "MetaOp t/b/x: predecessors",
    ),
    "another batch": (change("metaops", 0, batch=9), "metaop", "MetaOp t/a/x: batch"),
    "another parameter set": (
        change("metaops", 0, parameter_set="b/x"),
        "metaop",
        "MetaOp t/a/x: parameter_set",
    ),
    "other FLOP": (change("metaops", 0, flops=1.0), "metaop", "MetaOp t/a/x: flops"),
    "other bytes kept": (
        change("metaops", 0, saved_replicated_bytes=1.0),
        "metaop",
        "MetaOp t/a/x: saved_replicated_bytes",
    ),
    "a slice dropped in the middle": (drop("slices", 2), "coverage", "MetaOp t/a/x: slice s0"),
    "the first slice dropped": (drop("slices", 0), "coverage", "slice s2: begins at operator 2"),
    "a MetaOp without slices": (drop("slices", 3), "coverage", "MetaOp t/b/x: the beginning"),
    "a slice given twice": (repeat("slices", 1), "slice-id", "slice s1: is given 2 times"),
    "a slice of nothing": (
        change("slices", 1, metaop="u/z/x"),
        "reference",
        "slice s1: MetaOp u/z/x",
    ),
    "operators skipped": (change("slices", 2, first_op=3), "coverage", "slice s2: begins at"),
    "operators run twice": (change("slices", 2, first_op=1), "coverage", "run twice"),
    "too many operators": (change("slices", 1, num_ops=5), "coverage", "MetaOp u/a/x: slice s1"),
    "an empty slice": (change("slices", 1, num_ops=0), "coverage", "slice s1: has no operators"),
    "operators out of order": (
        lambda plan: change("slices", 0, first_op=2)(change("slices", 2, first_op=0)(plan)),
        "coverage",
        "slice s0: begins at operator 2",
    ),
    "a device out of range": (
        change("slices", 0, devices=(0, 8)),
        "allocation",
        "slice s0: device 8 doesn't exist",
    ),
    "a negative device": (
        change("slices", 0, devices=(-1, 0)),
        "allocation",
        "slice s0: device -1 doesn't exist",
    ),
    "a device listed twice": (
        change("slices", 0, devices=(0, 0)),
        "allocation",
        "slice s0: device 0 is listed 2 times",
    ),
    "no devices": (change("slices", 0, devices=()), "allocation", "slice s0: has no devices"),
    "dp x tp isn't n": (change("slices", 0, dp=1), "allocation", "slice s0: dp 1 x tp 1"),
    "dp of zero": (change("slices", 0, dp=0), "allocation", "slice s0: dp 0"),
    "tp of zero": (change("slices", 0, tp=0), "allocation", "tp 0 must be at least 1"),
    "dp that doesn't divide the batch": (
        change("slices", 2, devices=(0, 1, 2), dp=3),
        "allocation",
        "slice s2: dp 3 doesn't divide the batch 8",
    ),
    "shards of one parameter set differ": (
        change("slices", 0, dp=1, tp=2),
        "allocation",
        "slice s1: tp is 1, but slice s0 shares parameters a/x with tp 2",
    ),
    "tensor parallelism across islands": (
        change("slices", 3, devices=(3, 4)),
        "allocation",
        "slice s3: tensor-parallel devices 3, 4",
    ),
    "a device in two slices of a stage": (
        change("slices", 4, stage=1),
        "device",
        "slices s2 and s4 share stage 1",
    ),
    "a slice on devices that another holds": (
        change("slices", 1, devices=(0, 1)),
        "device",
        "slices s0 and s1 share stage 0",
    ),
    "a device in two slices at once": (
        change("slices", 4, start_s=1.5),
        "device",
        "slice s4 starts at 1.5 s, but slice s2 holds the device until 2.0 s",
    ),
    "a consumer before its producer ends": (
        change("slices", 3, start_s=1.0),
        "precedence",
        "slice s3: starts at 1.0 s, before its producer s2 ends at 2.0 s",
    ),
    "a producer that takes longer": (
        change("slices", 2, forward_s=1.5),
        "precedence",
        "slice s3: starts at 2.0 s, before its producer s2",
    ),
    "a consumer in an earlier stage": (
        change("slices", 3, stage=0),
        "precedence",
        "slice s3: is in stage 0, before its producer s2",
    ),
    "a flow across rounds": (
        change("slices", 3, round=1),
        "precedence",
        "slice s3: is in round 1, its producer s2 in round 0",
    ),
    "a flow dropped": (drop("flows", 1), "flow", "flow s2 -> s3: is missing"),
    "a flow given twice": (repeat("flows", 1), "flow", "flow s2 -> s3: is given 2 times"),
    "a flow to another slice": (
        change("flows", 1, target_slice="s4"),
        "flow",
        "flow s2 -> s4: joins slices between which no data flows",
    ),
    "a flow to no slice": (change("flows", 1, target_slice="s9"), "flow", "there is no slice s9"),
    "a flow of other bytes": (
        change("flows", 1, bytes=8_000_001.0),
        "flow",
        "flow s2 -> s3: carries 8000001.0 bytes, by the workload it is 8000000.0",
    ),
    "a gradient that doesn't flow": (
        change("flows", 1, gradient=False),
        "flow",
        "flow s2 -> s3: gradient is false",
    ),
    "a group of more operators than there are": (
        change(
            "parameter_groups",
            0,
            parameter_sets=(ParameterRange(parameter_set="a/x", first_op=0, num_ops=10**9),),
        ),
        "parameter-group",
        "parameter group 0: has 1000000000 operators from 0 on of a/x, which has 4",
    ),
    "a group of operators beyond the last": (
        change(
            "parameter_groups",
            0,
            parameter_sets=(ParameterRange(parameter_set="a/x", first_op=10**9, num_ops=1),),
        ),
        "parameter-group",
        "a/x[0] is in no parameter group",
    ),
    "a group dropped": (drop("parameter_groups", 0), "parameter-group", "a/x[0] is in no"),
    "a group given twice": (
        repeat("parameter_groups", 0),
        "parameter-group",
        "a/x[0] is also in parameter group 0",
    ),
    "a group's device removed": (
        change("parameter_groups", 0, devices=(0, 1, 2)),
        "parameter-group",
        "parameter group 0: device 3 holds a/x[0]",
    ),
    "a strange device in a group": (
        change("parameter_groups", 0, devices=(0, 1, 2, 3, 6)),
        "parameter-group",
        "parameter group 0: device 6 is in the group",
    ),
    "a device twice in a group": (
        change("parameter_groups", 0, devices=(0, 1, 2, 3, 3)),
        "parameter-group",
        "parameter group 0: lists a device twice",
    ),
    "a group of other bytes": (
        change("parameter_groups", 0, bytes=1.0),
        "parameter-group",
        "parameter group 0 (devices 0, 1, 2, 3): bytes is 1.0",
    ),
    "another shard": (
        change("parameter_groups", 1, shard=1),
        "parameter-group",
        "b/x[0] shard 0/2 is in no parameter group",
    ),
    "more memory than the device has": (
        change("memory", 4, activation_bytes=80e9),
        "memory",
        "device 4: needs",
    ),
    "less memory than the parameters need": (
        change("memory", 4, parameter_bytes=1.0),
        "memory",
        "device 4: parameter_bytes is 1.0, what its slices use alone is 6000000.0",
    ),
    "less memory than the gradients need": (
        change("memory", 4, gradient_bytes=1.0),
        "memory",
        "device 4: gradient_bytes",
    ),
    "ZeRO-1 only claimed": (
        change("memory", 4, optimizer_bytes=18e6),
        "memory",
        "device 4: optimizer_bytes",
    ),
    "activations that aren't told": (
        change("memory", 4, activation_bytes=0.0),
        "memory",
        "device 4: activation_bytes is 0.0, its slices hold",
    ),
    "more activations than there are": (
        change("memory", 4, activation_bytes=1e9),
        "memory",
        "device 4: activation_bytes is 1000000000.0, its slices hold",
    ),
    "activations that are hidden and don't fit": (
        lambda plan: change("memory", 0, activation_bytes=0.0)(shrink_memory(plan)),
        "memory",
        "device 0: needs",
    ),
    "recomputation that nobody counted": (
        change("slices", 2, recompute=True),
        "memory",
        "device 2: activation_bytes",
    ),
    "memory of a device dropped": (
        drop("memory", 4),
        "memory",
        "device 4: runs slices but has no memory entry",
    ),
    "memory of a device given twice": (repeat("memory", 4), "memory", "device 4: has 2 memory"),
    "memory of no device": (change("memory", 4, device=8), "memory", "device 8: has a memory"),
    "a duration that isn't a number": (
        change("slices", 3, forward_s=math.nan),
        "number",
        "slice s3: forward_s is nan",
    ),
    "an infinite duration": (
        change("slices", 3, backward_s=math.inf),
        "number",
        "slice s3: backward_s is inf",
    ),
    "a negative duration": (
        change("slices", 3, backward_s=-1.0),
        "number",
        "slice s3: backward_s is -1.0",
    ),
    "a slice that takes no time": (
        change("slices", 3, forward_s=0.0),
        "time",
        "slice s3: forward_s is 0.0, its devices at their peak FLOP/s need",
    ),
    "a backward faster than light": (
        change("slices", 3, backward_s=1e-9),
        "time",
        "slice s3: backward_s is 1e-09, its devices at their peak FLOP/s need",
    ),
    "all durations and starts zero": (
        lambda plan: replace(
            plan,
            slices=tuple(
                replace(item, forward_s=0.0, backward_s=0.0, start_s=0.0) for item in plan.slices
            ),
        ),
        "time",
        "slice s0: forward_s is 0.0",
    ),
    "no optimum": (
        lambda plan: replace(plan, optimum_s=0.0),
        "time",
        "plan: optimum_s is 0.0, all devices at their peak FLOP/s need",
    ),
    "an optimum above what silicon can do": (
        lambda plan: replace(plan, optimum_s=1e-300),
        "time",
        "plan: optimum_s is 1e-300",
    ),
    "a start that is too late": (
        change("slices", 3, start_s=12.0),
        "time",
        "slice s3: start_s is 12.0, 10 s after its inputs and devices are there (2.0 s)",
    ),
    "a backward of a slice that has none": (
        lambda plan: change("slices", 1, backward_s=1.0)(freeze_a(plan)),
        "time",
        "slice s1: backward_s is 1.0, but u/a/x has no backward",
    ),
    "a negative optimum": (
        lambda plan: replace(plan, optimum_s=-1.0),
        "number",
        "plan: optimum_s is -1.0",
    ),
}
