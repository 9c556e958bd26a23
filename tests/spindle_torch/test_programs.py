"""Programs of random plans end, say where they would not, and hold what the plan says."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_sim.errors import PlanError
from spindle_sim.plan import Plan
from spindle_sim.plan.schedule import operation_order
from spindle_torch.compilation import compile_plan
from spindle_torch.deadlock import check_programs, find_stuck
from spindle_torch.pool import parameter_pool
from spindle_torch.program import (
    Batch,
    Clip,
    Compute,
    Gather,
    Instruction,
    Program,
    Step,
    Synchronize,
)
from tests.builders import Part, make_cluster, make_plan, make_workload
from tests.random_plans import plans
from tests.stated_plans import two_round_plan, two_task_plan


def handed_on_plan() -> Plan:
    """Two tasks that both go from device 0 to device 1."""
    workload = make_workload({"t": ("a", "b"), "u": ("a", "b")})
    parts = [
        Part(metaop="t/a/x", devices=(0,)),
        Part(metaop="u/a/x", devices=(0,), stage=1),
        Part(metaop="t/b/x", devices=(1,), stage=1),
        Part(metaop="u/b/x", devices=(1,), stage=2),
    ]
    return make_plan(workload, make_cluster(1, 2), parts)


def with_instructions(
    programs: Sequence[Program], rank: int, instructions: Sequence[Instruction]
) -> list[Program]:
    changed = list(programs)
    changed[rank] = replace(programs[rank], instructions=tuple(instructions))
    return changed


def test_the_program_of_a_rank_reads_like_the_plan() -> None:
    first, second, *rest = compile_plan(handed_on_plan())
    assert [str(instruction) for instruction in first.instructions] == [
        "forward of s0",
        "messages with the output of s0 (to 1)",
        "forward of s1",
        "messages with the output of s1 (to 1)",
        "messages with the gradient of s3 (from 1)",
        "messages with the gradient of s2 (from 1)",
        "backward of s1",
        "backward of s0",
        "optimizer step",
    ]
    assert str(second.instructions[-1]) == "optimizer step"
    assert rest == []


@settings(max_examples=60)
@given(plans())
def test_no_program_of_a_valid_plan_deadlocks(plan: Plan) -> None:
    programs = compile_plan(plan)
    check_programs(programs)
    assert find_stuck(programs[::-1]) == ()


@settings(max_examples=40)
@given(plans())
def test_each_rank_computes_its_operations_in_the_plans_order(plan: Plan) -> None:
    order = [(plan.slices[op.slice_index], op.backward) for op in operation_order(plan)]
    for program in compile_plan(plan):
        computed = [(c.slice, c.backward) for c in program.instructions if isinstance(c, Compute)]
        assert computed == [(s.id, b) for s, b in order if program.rank in s.devices]
        at = program.instructions.index(Step())
        behind = program.instructions[at + 1 :]
        summed = [item for item in program.instructions if isinstance(item, Synchronize)]
        gathers = [Gather(group=item.group, devices=item.devices) for item in summed]
        assert list(behind) == (gathers if plan.zero1 else [])


@settings(max_examples=40)
@given(plans())
def test_the_pool_is_that_of_the_plan(plan: Plan) -> None:
    planned = {
        (part.parameter_set, index, group.shard, group.num_shards): group.devices
        for group in plan.parameter_groups
        for part in group.parameter_sets
        for index in range(part.first_op, part.first_op + part.num_ops)
    }
    metaops = {metaop.parameter_set: metaop for metaop in plan.metaops}
    pooled = {
        (key.parameter_set, key.index, key.shard, key.num_shards): group.devices
        for group in parameter_pool(plan)
        for key in group.operators
    }
    assert pooled == {key: at for key, at in planned.items() if metaops[key[0]].parameters}


@settings(max_examples=60)
@given(plans(), st.data())
def test_a_lost_instruction_that_others_need_is_found_and_named(
    plan: Plan, data: st.DataObject
) -> None:
    programs = compile_plan(plan)
    needed = [
        (program.rank, position)
        for program in programs
        for position, instruction in enumerate(program.instructions)
        if isinstance(instruction, (Batch, Synchronize))
    ]
    if not needed:
        return
    rank, position = data.draw(st.sampled_from(needed))
    kept = list(programs[rank].instructions)
    lost = kept.pop(position)
    stuck = find_stuck(with_instructions(programs, rank, kept))
    assert stuck
    with pytest.raises(PlanError, match="would deadlock: rank"):
        check_programs(with_instructions(programs, rank, kept))
    if isinstance(lost, Synchronize):
        others = {item.rank for item in stuck}
        assert others & set(lost.devices)


@settings(max_examples=60)
@given(plans(), st.data())
def test_messages_of_one_pair_out_of_order_are_found(plan: Plan, data: st.DataObject) -> None:
    programs = compile_plan(plan)
    swaps = []
    for program in programs:
        batches = [
            (position, item)
            for position, item in enumerate(program.instructions)
            if isinstance(item, Batch)
        ]
        for (first, one), (second, two) in pairwise(batches):
            if {m.piece.target for m in one.sends} & {m.piece.target for m in two.sends}:
                swaps.append((program.rank, first, second))
    if not swaps:
        return
    rank, first, second = data.draw(st.sampled_from(swaps))
    changed = list(programs[rank].instructions)
    changed[first], changed[second] = changed[second], changed[first]
    stuck = find_stuck(with_instructions(programs, rank, changed))
    assert rank in {item.rank for item in stuck}


def test_two_groups_taken_in_another_order_are_found() -> None:
    """Devices 0-3 hold module a, 0-1 hold b: rank 0 takes the pair's group last."""
    workload = make_workload({"t": ("a", "b")})
    parts = [
        Part(metaop="t/a/x", devices=(0, 1, 2, 3)),
        Part(metaop="t/b/x", devices=(0, 1), stage=1),
    ]
    programs = compile_plan(make_plan(workload, make_cluster(1, 4), parts))
    assert find_stuck(programs) == ()
    *before, one, two, step = programs[0].instructions
    assert isinstance(one, Synchronize)
    assert isinstance(two, Synchronize)
    stuck = find_stuck(with_instructions(programs, 0, [*before, two, one, step]))
    assert {item.rank for item in stuck} == {0, 1, 2, 3}
    assert "of its group never comes" in stuck[0].reason


def test_all_ranks_meet_to_clip_and_one_that_does_not_is_found() -> None:
    programs = compile_plan(handed_on_plan(), clip=True)
    assert find_stuck(programs) == ()
    for program in programs:
        clip = program.instructions[-2]
        assert isinstance(clip, Clip)
        assert clip.devices == tuple(range(len(programs)))
    kept = [item for item in programs[1].instructions if not isinstance(item, Clip)]
    stuck = find_stuck(with_instructions(programs, 1, kept))
    assert {item.rank for item in stuck} == set(range(len(programs))) - {1}
    assert {item.reason for item in stuck} == {"rank 1 of its group never comes"}


def test_what_is_stuck_is_said_with_rank_instruction_and_reason() -> None:
    programs = compile_plan(handed_on_plan())
    kept = [item for item in programs[1].instructions if not isinstance(item, Batch)]
    first, *_ = find_stuck(with_instructions(programs, 1, kept))
    assert str(first) == (
        "rank 0, instruction 1: messages with the output of s0 (to 1): rank 1 never posts its side"
    )


@pytest.mark.parametrize("plan", [two_task_plan(), two_round_plan()])
def test_all_that_is_sent_is_received(plan: Plan) -> None:
    programs = compile_plan(plan)
    batches = [item for p in programs for item in p.instructions if isinstance(item, Batch)]
    assert Counter(m for batch in batches for m in batch.sends) == Counter(
        m for batch in batches for m in batch.receives
    )
