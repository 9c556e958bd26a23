"""Pipelined rounds: Megatron-LM's orders, the makespans they are known for, and their rules."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_sim.errors import PlanError
from spindle_sim.plan import Order, Plan, Round, dump_plan, parse_plan, validate_plan
from spindle_sim.plan.pipeline import Pipeline, pipeline_order, rank_order
from spindle_sim.plan.schedule import handovers, operation_order, schedule
from tests.pipelines import pipelined_plan, pipelines, stated_memory, with_rounds
from tests.plan.mutations import Mutation, change
from tests.stated_plans import two_round_plan, two_task_plan

SHAPES = st.builds(
    lambda ranks, chunks, groups: Pipeline(
        ranks=ranks, chunks=chunks, micro_batches=groups * (ranks if chunks > 1 else 1)
    ),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 5),
)


def messages(plan: Plan) -> list[str]:
    return [str(violation) for violation in validate_plan(plan)]


def written(shape: Pipeline, rank: int) -> str:
    """Give an order as "F0.0 B0.0": stage and micro-batch."""
    return " ".join(
        f"{'B' if block.backward else 'F'}{block.stage}.{block.micro_batch}"
        for block in rank_order(shape, rank)
    )


def test_one_forward_one_backward_is_that_of_megatron() -> None:
    shape = Pipeline(ranks=3, chunks=1, micro_batches=4)
    assert written(shape, 0) == "F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 B0.2 B0.3"
    assert written(shape, 1) == "F1.0 F1.1 B1.0 F1.2 B1.1 F1.3 B1.2 B1.3"
    assert written(shape, 2) == "F2.0 B2.0 F2.1 B2.1 F2.2 B2.2 F2.3 B2.3"


def test_fewer_micro_batches_than_ranks_are_all_warmed_up() -> None:
    shape = Pipeline(ranks=4, chunks=1, micro_batches=2)
    assert written(shape, 0) == "F0.0 F0.1 B0.0 B0.1"
    assert written(shape, 3) == "F3.0 B3.0 F3.1 B3.1"


def test_the_interleaved_order_is_that_of_megatron() -> None:
    # Two ranks of two chunks, four micro-batches: warm-ups of (p - 1 - r) * 2 + (v - 1) * p.
    shape = Pipeline(ranks=2, chunks=2, micro_batches=4)
    assert written(shape, 0) == (
        "F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 F0.3 B2.1 F2.2 B0.0 F2.3 B0.1 B2.2 B2.3 B0.2 B0.3"
    )
    assert written(shape, 1) == (
        "F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 F1.2 B1.0 F1.3 B1.1 F3.2 B3.2 F3.3 B3.3 B1.2 B1.3"
    )


def test_as_many_micro_batches_as_ranks_run_all_forwards_first() -> None:
    shape = Pipeline(ranks=2, chunks=2, micro_batches=2)
    assert written(shape, 1) == "F1.0 F1.1 F3.0 F3.1 B3.0 B3.1 B1.0 B1.1"


@given(SHAPES)
@settings(max_examples=100, deadline=None)
def test_the_merged_order_keeps_each_ranks_and_every_input_first(shape: Pipeline) -> None:
    merged = pipeline_order(shape)
    for rank in range(shape.ranks):
        own = tuple(block for block in merged if block.stage % shape.ranks == rank)
        assert own == rank_order(shape, rank)
    place = {block: at for at, block in enumerate(merged)}
    assert len(place) == 2 * shape.ranks * shape.chunks * shape.micro_batches
    for block, at in place.items():
        other = block._replace(stage=block.stage + (1 if block.backward else -1))
        assert place.get(other, -1) < at
        if block.backward:
            assert place[block._replace(backward=False)] < at


@pytest.mark.parametrize(("ranks", "micro_batches"), [(1, 1), (1, 5), (4, 4), (4, 8), (6, 3)])
@pytest.mark.parametrize("order", [Order.FLUSH, Order.ONE_FORWARD_ONE_BACKWARD])
def test_equal_stages_take_m_plus_p_less_one_micro_batches(
    ranks: int, micro_batches: int, order: Order
) -> None:
    plan = pipelined_plan(ranks=ranks, micro_batches=micro_batches, order=order)
    expected_s = (micro_batches + ranks - 1) * (1.0 + 2.0)
    assert schedule(plan).makespan_s == pytest.approx(expected_s, rel=1e-12)


@pytest.mark.parametrize(
    ("ranks", "chunks", "groups"), [(2, 2, 2), (4, 2, 3), (4, 3, 2), (3, 4, 4)]
)
def test_interleaving_divides_the_bubble_by_the_chunks(
    ranks: int, chunks: int, groups: int
) -> None:
    plan = pipelined_plan(ranks=ranks, chunks=chunks, micro_batches=groups * ranks)
    work_s = groups * ranks * chunks * 3.0  # a chunk's forward and backward take 3 s
    bubble_s = (ranks - 1) * chunks * 3.0 / chunks
    assert schedule(plan).makespan_s == pytest.approx(work_s + bubble_s, rel=1e-12)


@pytest.mark.parametrize("rank", range(4))
def test_a_rank_holds_as_many_micro_batches_as_ranks_are_behind_it(rank: int) -> None:
    plan = pipelined_plan(ranks=4, micro_batches=8, dp=2)
    kept = plan.metaops[0].saved_replicated_bytes * 2  # two samples on each data-parallel rank
    assert plan.memory[2 * rank].activation_bytes == pytest.approx((4 - rank) * kept)
    flushed = pipelined_plan(ranks=4, micro_batches=8, dp=2, order=Order.FLUSH)
    assert flushed.memory[2 * rank].activation_bytes == pytest.approx(8 * kept)


@pytest.mark.parametrize(
    "plan",
    [
        pipelined_plan(),
        pipelined_plan(dp=2, tp=2, recompute=True),
        pipelined_plan(chunks=3, micro_batches=4),
        pipelined_plan(order=Order.FLUSH, recompute=True),
        pipelined_plan(ranks=1, dp=4, ops_per_stage=5, zero_stage=1),
        pipelined_plan(ranks=1, dp=4, ops_per_stage=5, zero_stage=2),
        pipelined_plan(ranks=2, dp=4, ops_per_stage=5, zero_stage=3),
    ],
    ids=["1f1b", "wide", "interleaved", "flush", "zero1", "zero2", "zero3"],
)
def test_a_pipelined_plan_breaks_no_rule_and_is_read_as_it_was(plan: Plan) -> None:
    assert messages(plan) == []
    assert parse_plan(dump_plan(plan)) == plan


def test_slices_of_one_stage_run_behind_one_another_and_backward_in_reverse() -> None:
    plan = two_slices_a_stage()
    order = [(op.slice_index, op.backward, op.micro_batch) for op in operation_order(plan)]
    assert order == [
        (0, False, 0),
        (1, False, 0),
        (1, True, 0),
        (0, True, 0),
        (0, False, 1),
        (1, False, 1),
        (1, True, 1),
        (0, True, 1),
    ]
    assert messages(plan) == []


def two_slices_a_stage() -> Plan:
    """Give a pipeline of one rank: gradients accumulate over two micro-batches of two slices."""
    plan = pipelined_plan(ranks=2, micro_batches=2)
    devices = plan.slices[0].devices
    slices = tuple(replace(item, stage=0, devices=devices) for item in plan.slices)
    (first, second) = plan.parameter_groups
    group = replace(
        first,
        parameter_sets=(*first.parameter_sets, *second.parameter_sets),
        bytes=first.bytes + second.bytes,
    )
    return with_rounds(replace(plan, slices=slices, parameter_groups=(group,)), plan.rounds)


def test_the_next_round_begins_when_all_micro_batches_are_done() -> None:
    plan = two_round_plan()
    rounds = (Round(round=0, micro_batches=4, order=Order.ONE_FORWARD_ONE_BACKWARD),)
    plan = with_rounds(plan, rounds)
    assert plan.slices[1].start_s == 4 * 3.0
    assert messages(plan) == []
    found = messages(change("slices", 1, start_s=11.0)(plan))
    assert any("device 0: slice s1 starts at 11.0 s" in message for message in found)


@given(pipelines())
@settings(max_examples=30, deadline=None)
def test_the_order_is_topological_and_no_device_is_in_two_operations(plan: Plan) -> None:
    order = operation_order(plan)
    place = {op: at for at, op in enumerate(order)}
    assert all(place[given] < place[taken] for _, given, taken in handovers(plan, place))
    times = schedule(plan)
    assert times.operations == order
    spans: dict[int, list[tuple[float, float]]] = {}
    for op, start_s, end_s in zip(order, times.starts_s, times.ends_s, strict=True):
        for device in plan.slices[op.slice_index].devices:
            spans.setdefault(device, []).append((start_s, end_s))
    for own in spans.values():
        assert all(one[1] <= other[0] for one, other in pairwise(own))
    assert messages(plan) == []


def rounds_of(*rounds: Round) -> Mutation:
    return lambda plan: replace(plan, rounds=rounds)


ONE_F_ONE_B = Order.ONE_FORWARD_ONE_BACKWARD
MUTATIONS: dict[str, tuple[Mutation, str, str]] = {
    # name: mutation of `pipelined_plan(dp=2, tp=2)`, rule, what its message must name
    "a round without slices": (
        rounds_of(Round(round=0, micro_batches=8, order=ONE_F_ONE_B), Round(round=3)),
        "round",
        "round 3: has no slices",
    ),
    "a round given twice": (
        rounds_of(Round(round=0, micro_batches=8), Round(round=0, micro_batches=8)),
        "round",
        "round 0: is given 2 times",
    ),
    "no micro-batch": (
        change("rounds", 0, micro_batches=0),
        "round",
        "round 0: micro_batches is 0",
    ),
    "micro-batches that don't divide the batch": (
        change("rounds", 0, micro_batches=5),
        "round",
        "slice s0: dp 2 x 5 micro-batches doesn't divide the batch 32 of t/a/x",
    ),
    "a gap between stages": (
        change("slices", 3, stage=4),
        "round",
        "its stages must be 0, 1, 2, ... without a gap, but there is one before 4",
    ),
    "a device in two stages": (
        change("slices", 3, devices=(8, 9, 10, 11)),
        "round",
        "can't be pipelined: device 0 runs stages 0",
    ),
    "parameters sharded alone": (
        lambda plan: replace(plan, zero1=True, shard_parameters=True),
        "sharding",
        "plan: shard_parameters needs shard_gradients",
    ),
    "gradients sharded alone": (
        lambda plan: replace(plan, shard_gradients=True),
        "sharding",
        "plan: shard_gradients needs zero1",
    ),
    "computed again twice": (
        change("slices", 1, selective=True, recompute=True),
        "sharding",
        "slice s1: selective and recompute",
    ),
    "a backward faster than its devices": (
        change("slices", 1, backward_s=1e-12),
        "time",
        "slice s1: backward_s is 1e-12",
    ),
    "activations of one micro-batch less": (
        change("memory", 0, activation_bytes=18e6),
        "memory",
        "device 0: activation_bytes is 18000000.0, its slices hold 24000000.0",
    ),
    "a slice that starts with the second micro-batch": (
        change("slices", 3, start_s=4.0),
        "time",
        "slice s3: start_s is 4.0",
    ),
    "an older format": (
        lambda plan: replace(plan, format_version="1.0"),
        "format-version",
        "format_version is '1.0', which has no rounds",
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_of_a_pipelined_plan_is_found_and_named(name: str) -> None:
    mutate, rule, text = MUTATIONS[name]
    found = validate_plan(mutate(pipelined_plan(dp=2, tp=2)))
    assert [v for v in found if v.rule == rule and text in v.message], [str(v) for v in found]
    assert all("\n" not in str(violation) and violation.ids for violation in found)


def test_interleaving_needs_groups_of_as_many_micro_batches_as_ranks() -> None:
    plan = pipelined_plan(ranks=2, chunks=2, micro_batches=4, batch=24)
    found = messages(change("rounds", 0, micro_batches=3)(plan))
    assert any("its 2 pipeline ranks must divide its 3 micro-batches" in text for text in found)


def test_a_round_that_is_no_pipeline_has_no_schedule() -> None:
    plan = change("slices", 3, stage=5)(pipelined_plan())
    with pytest.raises(PlanError, match=r"round 0 can't be pipelined: its stages"):
        schedule(plan)


def test_sequence_parallelism_needs_tensor_parallelism() -> None:
    found = messages(change("slices", 0, sequence_parallel=True)(pipelined_plan()))
    assert any("slice s0: sequence_parallel needs tp of at least 2" in text for text in found)
    plan = change("slices", 0, sequence_parallel=True)(pipelined_plan(tp=2))
    assert messages(replace(plan, memory=stated_memory(plan))) == []


def test_a_plan_of_the_first_format_is_still_read_and_valid() -> None:
    plan = replace(two_task_plan(), format_version="1.0")
    document = json.loads(dump_plan(plan))
    for name in ("rounds", "shard_gradients", "shard_parameters", "overlap_sync"):
        del document[name]
    for item in document["slices"]:
        del item["selective"], item["sequence_parallel"]
    for item in document["metaops"]:
        del item["saved_attention_bytes"]
    assert parse_plan(json.dumps(document)) == plan
    assert messages(plan) == []


def test_zero_stages_divide_optimizer_states_then_gradients_then_parameters() -> None:
    # Five operators of a million parameters on a stage of four data-parallel ranks.
    plans = [pipelined_plan(ranks=1, dp=4, ops_per_stage=5, zero_stage=s) for s in range(4)]
    states = [
        (m.parameter_bytes / 1e6, m.gradient_bytes / 1e6, m.optimizer_bytes / 1e6)
        for m in (plan.memory[0] for plan in plans)
    ]
    # The third holds two operators whole, those that run and come next: 2.5 + 2 * 2 MB.
    assert states == [(10, 10, 60), (10, 10, 15), (10, 2.5, 15), (6.5, 2.5, 15)]
    wrong = change("memory", 0, parameter_bytes=6e6)(plans[3])
    assert any("parameter_bytes is 6000000.0" in message for message in messages(wrong))
