"""Gradients synchronized in buckets beside the backward: how they are cut, and that they end."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_sim.plan import Plan
from spindle_sim.plan.schedule import operation_order
from spindle_sim.simulator import simulate
from spindle_sim.timeline import Kind, Phase
from spindle_torch.buckets import Bucket, Overlap, parameter_buckets
from spindle_torch.compilation import compile_plan
from spindle_torch.deadlock import check_programs, find_stuck
from spindle_torch.events import Event, to_timeline
from spindle_torch.pool import parameter_pool
from spindle_torch.program import Await, Compute, Instruction, Launch, Program, Step
from tests.random_plans import plans
from tests.spindle_torch.plans import tiny_plan
from tests.stated_plans import two_task_plan

SIZES = st.sampled_from((1e-6, 1e-3, 0.1, 100.0))


def overlap(bucket_mb: float) -> Overlap:
    return Overlap.of(bucket_mb, "float32")


def launches(program: Program) -> list[Launch]:
    return [item for item in program.instructions if isinstance(item, Launch)]


def shared(buckets: Sequence[Bucket]) -> dict[int, Bucket]:
    return {index: bucket for index, bucket in enumerate(buckets) if len(bucket.group.devices) > 1}


@settings(max_examples=60)
@given(plans(), SIZES)
def test_no_program_with_overlap_deadlocks(plan: Plan, bucket_mb: float) -> None:
    programs = compile_plan(plan, clip=True, overlap=overlap(bucket_mb))
    check_programs(programs)
    assert find_stuck(programs[::-1]) == ()


@settings(max_examples=60)
@given(plans(), SIZES)
def test_buckets_hold_each_operator_of_the_pool_once(plan: Plan, bucket_mb: float) -> None:
    cut = Counter(
        (bucket.group.devices, key)
        for bucket in parameter_buckets(plan, overlap(bucket_mb))
        for key in bucket.group.operators
    )
    assert cut == Counter(
        (group.devices, key) for group in parameter_pool(plan) for key in group.operators
    )


@settings(max_examples=60)
@given(plans(), SIZES)
def test_each_rank_launches_what_is_complete_in_one_order_and_awaits_it_before_the_step(
    plan: Plan, bucket_mb: float
) -> None:
    buckets = parameter_buckets(plan, overlap(bucket_mb))
    for program in compile_plan(plan, overlap=overlap(bucket_mb)):
        own = [
            index for index, item in shared(buckets).items() if program.rank in item.group.devices
        ]
        assert [item.group for item in launches(program)] == own
        awaited = [item.group for item in program.instructions if isinstance(item, Await)]
        assert awaited == own
        kinds = [type(item) for item in program.instructions]
        if own:
            assert kinds.index(Await) > max(at for at, kind in enumerate(kinds) if kind is Launch)
            assert kinds.index(Step) > max(at for at, kind in enumerate(kinds) if kind is Await)
        check_completeness(plan, program, buckets)


def check_completeness(plan: Plan, program: Program, buckets: Sequence[Bucket]) -> None:
    """Check that no backward behind a launch adds to what it takes along."""
    metaops, slices = plan.metaop_by_id(), plan.slice_by_id()
    left: set[tuple[str, int]] = set()
    for instruction in program.instructions:
        if isinstance(instruction, Launch):
            left |= {
                (key.parameter_set, key.index) for key in buckets[instruction.group].group.operators
            }
        elif isinstance(instruction, Compute) and instruction.backward:
            item = slices[instruction.slice]
            name = metaops[item.metaop].parameter_set
            if metaops[item.metaop].backward != "input_only":
                assert not left & {(name, item.first_op + index) for index in range(item.num_ops)}


@settings(max_examples=40)
@given(plans())
def test_what_fits_into_one_bucket_is_the_whole_group(plan: Plan) -> None:
    found = {bucket.group for bucket in parameter_buckets(plan, overlap(1e12))}
    assert found == set(parameter_pool(plan))


@settings(max_examples=40)
@given(plans(), SIZES)
def test_only_what_is_complete_at_one_instant_is_larger_than_a_bucket(
    plan: Plan, bucket_mb: float
) -> None:
    sizes = {item.parameter_set: item for item in plan.metaops}
    alone = {
        bucket.group.operators: bucket.complete for bucket in parameter_buckets(plan, overlap(1e-9))
    }
    for bucket in shared(parameter_buckets(plan, overlap(bucket_mb))).values():
        held = 0.0
        for key in bucket.group.operators:
            metaop = sizes[key.parameter_set]
            divided = metaop.sharded_parameters
            held += 4 * (metaop.parameters - divided + divided / key.num_shards)
        assert held <= bucket_mb * 1e6 * (1 + 1e-9) or bucket.group.operators in alone


@settings(max_examples=40)
@given(plans(), st.data())
def test_a_lost_launch_is_found(plan: Plan, data: st.DataObject) -> None:
    programs = compile_plan(plan, overlap=overlap(1e-3))
    places = [
        (program.rank, position)
        for program in programs
        for position, item in enumerate(program.instructions)
        if isinstance(item, Launch)
    ]
    if not places:
        return
    rank, position = data.draw(st.sampled_from(places))
    kept: list[Instruction] = list(programs[rank].instructions)
    kept.pop(position)
    changed = [*programs]
    changed[rank] = Program(rank=rank, instructions=tuple(kept))
    stuck = find_stuck(changed)
    assert stuck
    assert any("end of bucket" in item.instruction or item.rank != rank for item in stuck)


def test_an_end_without_a_launch_is_named() -> None:
    program = Program(rank=0, instructions=(Await(group=3),))
    (stuck,) = find_stuck([program])
    assert str(stuck) == "rank 0, instruction 0: end of bucket 3: it was never launched"


def test_large_slices_are_left_while_they_run() -> None:
    """All of a tower's layers are one slice: with small buckets, most leave within its backward."""
    plan = tiny_plan("seq")
    programs = compile_plan(plan, overlap=overlap(0.01))
    for program in programs:
        within = [item for item in launches(program) if item.within]
        assert len(within) > len(launches(program)) / 2
        for before, item in pairwise(program.instructions):
            if isinstance(item, Launch) and item.within:
                assert isinstance(before, Launch) or (
                    isinstance(before, Compute) and before.backward
                )


def test_a_bucket_leaves_in_the_simulators_order() -> None:
    """Devices of one group send the same buckets, cut alike, in the order of completion."""
    plan = two_task_plan()
    order = operation_order(plan)
    for bucket in shared(parameter_buckets(plan, overlap(100.0))).values():
        assert bucket.complete.position < len(order)
        assert order[bucket.complete.position].backward
    synced = [span for span in simulate(plan, overlap_sync=True).spans if span.kind is Kind.SYNC]
    ours = [item for p in compile_plan(plan, overlap=overlap(100.0)) for item in launches(p)]
    assert len(ours) == len(synced)


def test_a_launched_synchronization_waits_for_the_last_launch() -> None:
    """Rank 0 launches at 1 s and waits from 5 s, rank 1 launches at 6 s; it ends at 7 s."""
    events = [
        [sync(1.0, 1.1, launches=True), sync(5.0, 7.0)],
        [sync(6.0, 6.1, launches=True), sync(6.5, 7.0)],
    ]
    timeline = to_timeline(two_task_plan(), "torch-gloo", [*events, *[[]] * 6], [0.0] * 8)
    assert [span.wait_s for span in timeline.spans] == pytest.approx([0.0, 1.0, 0.0, 0.0])


def sync(start_s: float, end_s: float, *, launches: bool = False) -> Event:
    return Event(
        kind=Kind.SYNC,
        phase=Phase.SYNC,
        start_s=start_s,
        end_s=end_s,
        group=0,
        launches=launches,
    )
