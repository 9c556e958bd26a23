"""The bytes that ranks send each other are those that plan and simulator count, contexts too."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_sim import make_plan, parse_cluster
from spindle_sim.plan import Plan, validate_plan
from spindle_sim.plan.cuts import cut_flows
from spindle_sim.planner import STRATEGIES
from spindle_sim.planner.strategies.parallel import ParallelConfig, parallel_plan
from spindle_sim.simulator.traffic import Boundaries
from spindle_sim.timeline import Phase
from spindle_sim.workload import BUILTIN_WORKLOADS, Workload, builtin_workload
from spindle_sim.workload.operators import BYTES_PER_ELEMENT
from spindle_sim.workload.tiny import tiny
from spindle_torch.compilation import compile_plan
from spindle_torch.program import Batch, Copy, Message
from spindle_torch.replay import sample_bytes
from spindle_torch.shapes import flow_shape, sites
from tests.pipelines import with_rounds
from tests.spindle_torch.contexts import encoder_decoders
from tests.spindle_torch.plans import dealt

CLUSTER = parse_cluster("a800:2x2")

Way = tuple[int, bool, int, int, int]  # flow, backward, micro-batch, from, to


def messages(plan: Plan) -> Iterator[Message]:
    """Give every message once, and what stays where it is."""
    for program in compile_plan(plan):
        for instruction in program.instructions:
            if isinstance(instruction, Batch):
                yield from instruction.sends
            elif isinstance(instruction, Copy):
                yield instruction.message


def executed_bytes(plan: Plan) -> Counter[Way]:
    """Give what is sent, as the engine counts the numbers of each sample on both sides."""
    found, cut, sent = sites(plan.workload), cut_flows(plan), Counter[Way]()

    @cache
    def elements(flow: int, rank: int) -> int:
        return flow_shape(plan, found, flow, rank, is_cut=flow in cut).elements

    for message in messages(plan):
        piece = message.piece
        numbers = elements(message.flow, piece.source)
        assert numbers == elements(message.flow, piece.target)
        way = message.flow, message.backward, message.micro_batch, piece.source, piece.target
        sent[way] += BYTES_PER_ELEMENT * numbers * (piece.last - piece.first)
    return sent


def replayed_bytes(plan: Plan) -> Counter[Way]:
    sent, each = Counter[Way](), sample_bytes(plan)
    for message in messages(plan):
        piece = message.piece
        way = message.flow, message.backward, message.micro_batch, piece.source, piece.target
        sent[way] += each[message.flow] * (piece.last - piece.first)  # type: ignore[assignment]
    return sent


def simulated_bytes(plan: Plan) -> Counter[Way]:
    sent, boundaries = Counter[Way](), Boundaries.of_plan(plan)
    for index, flow in enumerate(plan.flows):
        round_number = boundaries.slices[flow.source_slice].round
        for backward in (False, True)[: 1 + flow.gradient]:
            phase = Phase.BACKWARD if backward else Phase.FORWARD
            for piece in boundaries.of(flow, phase).pieces():
                for number in range(plan.micro_batches(round_number)):
                    way = index, backward, number, piece.source, piece.target
                    sent[way] += piece.bytes  # type: ignore[assignment]
    return sent


def joined(plan: Plan, sent: Counter[Way]) -> Counter[Way]:
    """Add up what is sent of a flow that is cut along the tokens: some ranks may have one more."""
    cut, found = cut_flows(plan), Counter[Way]()
    for way, size in sent.items():
        found[(*way[:2], 0, -1, -1) if way[0] in cut else way] += size
    return found


def check(plan: Plan) -> None:
    """Compare the messages between all ranks."""
    assert validate_plan(plan) == ()
    executed = executed_bytes(plan)
    for counted in (simulated_bytes(plan), replayed_bytes(plan)):
        assert counted.keys() == executed.keys()
        assert joined(plan, counted) == pytest.approx(joined(plan, executed), rel=1e-12)


def sequence_parallel(plan: Plan) -> Plan:
    """Cut what slices with tensor parallelism work on along the tokens, too."""
    slices = tuple(replace(item, sequence_parallel=item.tp > 1) for item in plan.slices)
    return with_rounds(replace(plan, slices=slices), plan.rounds, zero_stage=plan.zero_stage)


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
@pytest.mark.parametrize("name", sorted(BUILTIN_WORKLOADS))
def test_builtin_workloads_send_what_their_plans_count(name: str, strategy: str) -> None:
    check(make_plan(tiny(builtin_workload(name)), CLUSTER, strategy))


@pytest.mark.parametrize("name", sorted(BUILTIN_WORKLOADS))
def test_random_plans_of_builtin_workloads_send_what_they_count(name: str) -> None:
    for _, plan in islice(dealt(tiny(builtin_workload(name)), CLUSTER), 2):
        check(plan)
        check(sequence_parallel(plan))


@settings(max_examples=40, deadline=None)
@given(encoder_decoders(), st.integers(0, 100))
def test_contexts_are_counted_where_they_travel(workload: Workload, seed: int) -> None:
    _, plan = next(dealt(workload, CLUSTER, first=seed))
    check(plan)
    check(sequence_parallel(plan))


def test_micro_batches_of_a_pipeline_carry_their_part_of_the_context() -> None:
    workload = builtin_workload("ofasys").with_tasks(["text-to-sql"])
    for config in (
        ParallelConfig(pp=4, micro_batch=16),
        ParallelConfig(tp=2, pp=4, micro_batch=16, sequence_parallel=True),
    ):
        plan = parallel_plan(workload, parse_cluster("a800:2x4"), {"text-to-sql": config})
        check(plan)
        metaops, slices = plan.metaop_by_id(), plan.slice_by_id()
        decoder = metaops["text-to-sql/decoder/layers"]
        inner = [flow for flow in plan.flows if slices[flow.target_slice].metaop == decoder.id]
        assert {flow.bytes for flow in inner if slices[flow.target_slice].first_op} == {
            128 * 2 * (96 + 384) * 1024  # the target's tokens, and the source's
        }
