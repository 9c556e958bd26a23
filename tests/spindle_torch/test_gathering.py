"""Parameters in ZeRO-3: gathered ahead, in one order on all ranks, never more than two whole."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import pytest
from hypothesis import given, settings

from spindle_sim.errors import PlanError
from spindle_sim.plan import Order, Plan
from spindle_sim.simulator import simulate
from spindle_sim.timeline import Kind, Timeline
from spindle_torch.buckets import parameter_buckets
from spindle_torch.compilation import compile_plan
from spindle_torch.deadlock import check_programs, find_stuck
from spindle_torch.program import (
    Compute,
    Drop,
    Gather,
    Instruction,
    Launch,
    Program,
    Take,
    Visit,
    within_each,
)
from spindle_torch.replay import replay
from spindle_torch.sharding import sharded_slices
from tests.pipelines import pipelined_plan, pipelines, with_rounds
from tests.random_plans import plans


@dataclass
class Rank:
    """Goes through a program as an engine does, and looks at what is whole."""

    plan: Plan
    program: Program
    on_way: set[int] = field(default_factory=set)
    whole: set[int] = field(default_factory=set)
    most: int = 0
    late: int = 0  # gathered only once their operator was come to
    ahead: int = 0

    def run(self) -> None:
        buckets = parameter_buckets(self.plan, None)
        slices, sharded = self.plan.slice_by_id(), sharded_slices(self.plan, buckets)
        needed: tuple[set[int], ...] = ()
        for position, instruction in enumerate(self.program.instructions):
            if isinstance(instruction, Compute):
                used = sharded[instruction.slice].used
                mine = [
                    {one for one in step if self.program.rank in buckets[one].group.devices}
                    for step in (used[::-1] if instruction.backward else used)
                ]
                needed = tuple(mine)
                assert len(mine) == slices[instruction.slice].num_ops
                assert self._next(position) == Visit(number=0)
            elif isinstance(instruction, Visit):
                assert self._visited(instruction.number, needed)
                self._count(position, needed)
            else:
                self._do(instruction, max(map(len, needed), default=0))
        assert not self.whole
        assert not self.on_way

    def _next(self, position: int) -> Instruction:
        return self.program.instructions[position + 1]

    def _visited(self, number: int, needed: Sequence[set[int]]) -> bool:
        """Look at what the operator before, which has computed meanwhile, had."""
        if not number:
            return True
        return needed[number - 1] <= self.whole - self.on_way

    def _count(self, position: int, needed: Sequence[set[int]]) -> None:
        first = self.program.instructions[position]
        assert isinstance(first, Visit)
        if first.number == len(needed):
            return
        for other in self.program.instructions[position + 1 :]:
            if isinstance(other, Visit | Take):
                break
            self.late += isinstance(other, Gather) and other.group in needed[first.number]
        self.ahead += len(needed[first.number] & self.on_way)

    def _do(self, instruction: Instruction, needed: int) -> None:
        match instruction:
            case Gather():
                assert not instruction.lasts
                assert instruction.group not in self.on_way
                self.on_way.add(instruction.group)
                self.whole.add(instruction.group)
                assert len(self.whole) <= max(2, needed)
                self.most = max(self.most, len(self.whole))
            case Take():
                self.on_way.remove(instruction.group)
            case Drop():
                assert instruction.group not in self.on_way
                self.whole.remove(instruction.group)


def ranks(plan: Plan) -> list[Rank]:
    made = [Rank(plan, program) for program in compile_plan(plan)]
    for rank in made:
        rank.run()
    return made


def collectives(program: Program) -> Iterator[tuple[str, tuple[int, ...]]]:
    for item in program.instructions:
        if isinstance(item, Gather | Launch):
            yield str(item), item.devices
        if isinstance(item, Compute):
            yield from ((str(item), group) for group in item.collectives if program.rank in group)


def check(plan: Plan) -> None:
    programs = compile_plan(plan)
    check_programs(programs)
    ranks(plan)
    for one, other in combinations(programs, 2):
        both = [
            [item for item in collectives(program) if {one.rank, other.rank} <= {*item[1]}]
            for program in (one, other)
        ]
        assert both[0] == both[1]


@settings(max_examples=40, deadline=None)
@given(pipelines())
def test_all_ranks_gather_in_one_order_what_is_needed_and_no_more_than_two_are_whole(
    plan: Plan,
) -> None:
    check(with_rounds(plan, plan.rounds, zero_stage=3))


@settings(max_examples=40, deadline=None)
@given(plans())
def test_so_do_ranks_whose_groups_are_wider_than_their_slices(plan: Plan) -> None:
    check(with_rounds(plan, (), zero_stage=3))


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("tp", [1, 2])
def test_where_slices_have_their_groups_to_themselves_nothing_is_gathered_late(
    order: Order, stages: int, tp: int
) -> None:
    plan = pipelined_plan(
        ranks=stages, dp=2, tp=tp, ops_per_stage=3, micro_batches=4, order=order, zero_stage=3
    )
    for rank in ranks(plan):
        assert rank.late == 0
        assert rank.most == 2
        assert rank.ahead > 0


def test_an_operator_whose_backward_follows_its_forward_stays() -> None:
    plan = pipelined_plan(ranks=1, dp=2, ops_per_stage=3, micro_batches=1, zero_stage=3)
    for program in compile_plan(plan):
        gathered = [item.group for item in program.instructions if isinstance(item, Gather)]
        assert gathered == [0, 1, 2, 1, 0]
        assert "\n".join(map(str, program.instructions[:9])) == (
            "gathering of parameter group 0\n"
            "forward of s0\n"
            "operator 0 of the slice, as it goes\n"
            "end of the gathering of parameter group 0\n"
            "gathering of parameter group 1\n"
            "operator 1 of the slice, as it goes\n"
            "giving up parameter group 0\n"
            "end of the gathering of parameter group 1\n"
            "gathering of parameter group 2"
        )


def test_what_is_ahead_is_within_the_slice_that_computes_meanwhile() -> None:
    plan = pipelined_plan(ranks=1, dp=2, ops_per_stage=3, micro_batches=1, zero_stage=3)
    for program in compile_plan(plan):
        within = within_each(program.instructions)
        assert len(within) == 2
        beside = [item for one in within.values() for item in one]
        assert sum(isinstance(item, Gather) for item in beside) == 4  # the first is before both
        assert sum(isinstance(item, Launch) for item in beside) == 3


def test_a_gathering_to_which_a_rank_does_not_come_or_that_was_never_begun_is_found() -> None:
    plan = pipelined_plan(ranks=1, dp=2, ops_per_stage=3, micro_batches=1, zero_stage=3)
    one, other = compile_plan(plan)
    at = next(
        position
        for position, item in enumerate(other.instructions)
        if isinstance(item, Gather) and item.within
    )
    kept = (*other.instructions[:at], *other.instructions[at + 1 :])
    first, second = find_stuck([one, replace(other, instructions=kept)])
    assert first.instruction == "gathering of parameter group 1"
    assert first.reason == "rank 1 of its group never comes"
    assert second.instruction == "end of the gathering of parameter group 1"
    assert second.reason == "it was never begun"
    with pytest.raises(PlanError, match="would deadlock: rank 0"):
        check_programs([one, replace(other, instructions=kept)])


def computing(timeline: Timeline) -> list[tuple[int, str, str]]:
    found = sorted(timeline.spans, key=lambda span: (span.device, span.start_s))
    return [(s.device, s.slice, s.phase) for s in found if s.kind is Kind.COMPUTE]


@pytest.mark.parametrize(
    ("stages", "chunks", "order"), [(1, 1, "flush"), (2, 1, "one"), (2, 2, "one")]
)
@pytest.mark.parametrize("parameters", [1_000_000, 1_000_000_000])
def test_gatherings_that_hide_behind_computing_are_replayed_as_the_simulator_has_them(
    stages: int, chunks: int, order: str, parameters: int
) -> None:
    plan = pipelined_plan(
        ranks=stages,
        dp=4 // stages,
        chunks=chunks,
        ops_per_stage=4,
        micro_batches=4,
        order=Order.FLUSH if order == "flush" else Order.ONE_FORWARD_ONE_BACKWARD,
        parameters=parameters,
        zero_stage=3,
    )
    ours, theirs = replay(plan), simulate(plan)
    assert computing(ours) == computing(theirs)
    assert ours.iteration_s == pytest.approx(theirs.iteration_s, rel=0.005)
    gathered_s = sum(span.duration_s for span in theirs.spans if span.kind is Kind.SYNC)
    assert gathered_s > 0


def test_what_a_slice_waits_for_its_parameters_is_in_its_span() -> None:
    """Two operators of 0.5 s, gathered for longer than that: the second is waited for."""
    plan = pipelined_plan(
        ranks=1, dp=2, ops_per_stage=2, micro_batches=1, parameters=100_000_000_000, zero_stage=3
    )
    forward = next(span for span in replay(plan).spans if span.kind is Kind.COMPUTE)
    gathered = [span for span in replay(plan).spans if span.kind is Kind.SYNC][:2]
    assert forward.wait_s == pytest.approx(sum(span.duration_s for span in gathered), rel=1e-9)
    assert forward.duration_s - forward.wait_s == pytest.approx(1.0, rel=1e-9)
    assert gathered[1].duration_s == pytest.approx(gathered[0].duration_s - 0.5, rel=1e-9)
