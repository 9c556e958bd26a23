"""What plans of Megatron-LM and DeepSpeed ask for: equal to one process in all that they train."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_sim import make_plan, parse_cluster
from spindle_sim.estimate.memory import OPTIMIZER_BYTES, PARAMETER_BYTES
from spindle_sim.plan import Plan, save_plan, validate_plan
from spindle_sim.plan.cuts import cut_flows
from spindle_sim.planner.strategies.parallel import ParallelConfig, Recompute, parallel_plan
from spindle_sim.simulator import simulate
from spindle_sim.timeline import Kind
from spindle_sim.workload import Workload
from spindle_torch.compilation import compile_plan
from spindle_torch.deadlock import check_programs, find_stuck
from spindle_torch.intervals import own_span, pieces
from spindle_torch.pool import held_numbers, parameter_pool, used_operators
from spindle_torch.program import (
    Await,
    Compute,
    Drop,
    Gather,
    Launch,
    Synchronize,
    Take,
)
from spindle_torch.replay import replay
from tests.pipelines import pipelines, with_rounds
from tests.spindle_torch.plans import dealt, workloads
from tests.spindle_torch.reference import Reference
from tests.spindle_torch.running import check_replicas, joined, run_probes
from tests.spindle_torch.test_micro_batches import text_model

TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
STEPS = {"float32": 1, "float64": 2}
CLIP_NORM = 0.05
TOKENS, WIDTH, TABLE = 5, 16, 32 * 16  # of the text model: 2 doesn't divide its tokens


@dataclass(frozen=True)
class Case:
    name: str
    workload: str
    plan: Plan
    is_planned: bool = True
    clip_norm: float | None = None
    bucket_mb: float | None = None

    @property
    def dtypes(self) -> tuple[str, ...]:
        return ("float64",) if self.options else tuple(STEPS)

    @property
    def options(self) -> dict[str, float]:
        given = {"clip_norm": self.clip_norm, "bucket_mb": self.bucket_mb}
        return {name: number for name, number in given.items() if number is not None}


@cache
def workload_of(name: str) -> Workload:
    if name == "text":
        return text_model(4)
    given = workloads()[name]
    return given.with_first_tasks(2) if name == "multitask-clip" else given


def configured(name: str, ranks: int, config: ParallelConfig, *, zero_stage: int = 0) -> Plan:
    """Give the plan that trains every task under one configuration."""
    workload = workload_of(name)
    configs = {task.name: config for task in workload.tasks}
    return parallel_plan(workload, parse_cluster(f"a800:1x{ranks}"), configs, zero_stage=zero_stage)


def in_ranges(name: str, zero_stage: int) -> Plan:
    """Divide the states of a random plan: of some slices, of others, and of one device alone."""
    _, plan = next(dealt(workload_of(name), parse_cluster("a800:1x4")))
    return with_rounds(plan, (), zero_stage=zero_stage)


def with_some_cut(name: str) -> Plan:
    """Cut two of three divided slices of a random plan along the tokens, and recompute cores."""
    for _, plan in dealt(workload_of(name), parse_cluster("a800:1x4")):
        divided = [item.id for item in plan.slices if item.tp > 1]
        cut = {item for index, item in enumerate(divided) if index % 3}
        slices = tuple(
            replace(item, sequence_parallel=item.id in cut, selective=not item.recompute)
            for item in plan.slices
        )
        plan = replace(plan, slices=slices)
        if 0 < len(cut_flows(plan)) < len(plan.flows):
            return plan
    raise AssertionError("unreachable: there are plans without end")


TP2 = ParallelConfig(tp=2, pp=1, dp=1, sequence_parallel=True, recompute=Recompute.SELECTIVE)
TP2_PP2 = ParallelConfig(tp=2, pp=2, dp=1, micro_batch=4, sequence_parallel=True)


def cases(ranks: int) -> Iterator[Case]:
    dp2 = replace(TP2_PP2, tp=1, pp=1, dp=2, sequence_parallel=False)
    if ranks == 2:
        yield Case("clip.tp2", "multitask-clip", configured("multitask-clip", 2, TP2))
        whole = replace(dp2, micro_batch=None)
        plan = configured("multitask-clip", 2, whole, zero_stage=3)
        yield Case("clip.dp2.zero3", "multitask-clip", plan)
        yield Case("text.dp2.zero2", "text", configured("text", 2, dp2, zero_stage=2))
        deepspeed = make_plan(workload_of("ofasys"), parse_cluster("a800:1x2"), "deepspeed")
        yield Case("ofasys.deepspeed", "ofasys", deepspeed)
        return
    selective = replace(TP2_PP2, recompute=Recompute.SELECTIVE)
    yield Case("text.tp2.pp2", "text", configured("text", 4, selective))
    full = replace(TP2_PP2, pp=1, dp=2, recompute=Recompute.FULL, recompute_ops=2)
    yield Case("text.tp2.dp2", "text", configured("text", 4, full))
    two = replace(TP2_PP2, micro_batch=2)
    yield Case("qwen.tp2.pp2", "qwen-val", configured("qwen-val", 4, two))
    yield Case("ofasys.dealt", "ofasys", with_some_cut("ofasys"), is_planned=False)
    tp2_dp2 = replace(selective, pp=1, dp=2)
    plan = configured("text", 4, tp2_dp2, zero_stage=3)
    yield Case("text.tp2.dp2.zero3", "text", plan, clip_norm=CLIP_NORM)
    yield Case("text.dealt.zero2", "text", in_ranges("text", 2), clip_norm=CLIP_NORM)
    pp2_dp2 = replace(dp2, pp=2, micro_batch=2, recompute=Recompute.FULL, recompute_ops=2)
    for stage in (2, 3):
        plan = configured("text", 4, pp2_dp2, zero_stage=stage)
        yield Case(f"text.pp2.dp2.zero{stage}", "text", plan, bucket_mb=1e-3)
        yield Case(f"clip.dealt.zero{stage}", "multitask-clip", in_ranges("multitask-clip", stage))


@cache
def reference(
    workload: str, dtype: str, clip_norm: float | None
) -> list[tuple[dict[str, float], dict[str, torch.Tensor]]]:
    model = Reference(workload_of(workload), getattr(torch, dtype), clip_norm=clip_norm)
    return [model.step(number) for number in range(STEPS[dtype])]


def check(case: Case, dtype: str, ranks: list[dict[str, Any]]) -> None:
    tolerance = TOLERANCE[dtype]
    for step, (losses, gradients) in enumerate(reference(case.workload, dtype, case.clip_norm)):
        for task, loss in losses.items():
            total = sum(rank["steps"][step]["losses"].get(task, 0.0) for rank in ranks)
            assert total == pytest.approx(loss, rel=tolerance), case.name
        parts: dict[str, torch.Tensor] = {}
        for rank in ranks:
            for name, gradient in rank["steps"][step]["gradients"].items():
                assert torch.equal(parts.setdefault(name, gradient), gradient), name
        assert {name.split("@")[0] for name in parts} == set(gradients)
        check_gradients(case.name, parts, gradients, tolerance)
        if case.clip_norm is not None:
            norm = torch.stack([g.square().sum() for g in gradients.values()]).sum().sqrt()
            assert norm.item() == pytest.approx(case.clip_norm, rel=1e-3)  # it was larger


def check_gradients(
    case: str,
    parts: Mapping[str, torch.Tensor],
    gradients: Mapping[str, torch.Tensor],
    tolerance: float,
) -> None:
    for name, gradient in gradients.items():
        # A key's bias has a gradient of 0, and so have queries and keys of a single token: all of
        # it is rounding, and compared with the gradient of the same layer's values.
        other = re.sub(r"/((cross_)?attention)\.(query|key)(_bias)?$", r"/\1.value", name)
        scale = max(gradient.norm().item(), gradients.get(other, gradient).norm().item())
        error = (joined(dict(parts), name, gradient) - gradient).norm().item()
        assert error <= tolerance * scale, f"{case}: {name}: {error} of {scale}"


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_plans_of_strategies_train_as_one_process_does(ranks: int, tmp_path: Path) -> None:
    made = list(cases(ranks))
    for case in made:
        if case.is_planned:
            assert validate_plan(case.plan) == ()
        check_programs(compile_plan(case.plan))
        save_plan(case.plan, tmp_path / f"{case.name}.json")
        if case.options:
            (tmp_path / f"{case.name}.options").write_text(json.dumps(case.options))
    run_probes(tmp_path, ranks)
    for case in made:
        for dtype in case.dtypes:
            found = [
                torch.load(tmp_path / f"{case.name}.{dtype}.{rank}.pt") for rank in range(ranks)
            ]
            check(case, dtype, found)
            check_replicas(found)
            check_held(case.plan, found)
            check_gathered(case.plan, found)
            if case.name == "text.tp2.pp2" and dtype == "float64":
                # Each number passes the boundary once and back, not once for each of two ranks.
                sent_bytes = sum(rank["steps"][0]["sent_bytes"] for rank in found)
                assert sent_bytes == 2 * 16 * TOKENS * WIDTH * 8


def check_held(plan: Plan, ranks: list[dict[str, Any]]) -> None:
    """Compare what a rank has of states with the plan's memory, less than a number for each part.

    Tables that are tied to a projection elsewhere aren't in it.
    """
    parts = 4 * len(parameter_pool(plan))
    for rank, memory in zip(ranks, plan.memory, strict=True):
        tied = TABLE if plan.workload.name == "text" else 0
        stepped = memory.optimizer_bytes / OPTIMIZER_BYTES
        assert stepped - parts - tied <= rank["stepped"] <= stepped + parts + tied
        stated = memory.parameter_bytes / PARAMETER_BYTES
        ranges = rank["stepped"] if plan.shard_parameters else 0
        assert rank["held"] + rank["gathered"] <= stated + tied
        if plan.shard_parameters:
            assert rank["held"] < ranges
            assert rank["gathered"] > 0
            assert ranges + rank["gathered"] <= stated + parts + tied
            # Of an operator at a time gradients are whole, too. The next one is gathered meanwhile.
            assert rank["groups"] == 2
            assert rank["whole_gradients"] <= rank["gathered"]
        else:
            assert rank["gathered"] == 0


def check_gathered(plan: Plan, ranks: list[dict[str, Any]]) -> None:
    """Look at the notes of gatherings: each begins, and ends later, most of them ahead."""
    if not plan.shard_parameters:
        return
    for rank in ranks:
        begun: dict[int, float] = {}
        computed = [own[3:] for own in rank["steps"][0]["synced"] if own[0] == Kind.COMPUTE]
        within = ahead = 0
        for kind, group, launches, start_s, end_s in rank["steps"][0]["synced"]:
            if kind != Kind.SYNC or group >= -1:  # a sum of gradients
                continue
            if launches:
                assert group not in begun
                begun[group] = end_s
                continue
            begun_s = begun.pop(group)
            assert begun_s <= start_s <= end_s
            if any(first_s <= begun_s and end_s <= last_s for first_s, last_s in computed):
                within += 1
                ahead += start_s - begun_s > 1e-5  # else it is waited for at once
        assert not begun
        assert within > 0
        assert ahead >= within / 2


@pytest.mark.parametrize("stage", [2, 3])
def test_gradients_leave_behind_each_backward_and_parameters_come_before_each_operator(
    stage: int,
) -> None:
    config = ParallelConfig(tp=1, pp=2, dp=2, micro_batch=2)
    plan = configured("text", 4, config, zero_stage=stage)
    slices = plan.slice_by_id()
    for program in compile_plan(plan, clip=True):
        assert not any(isinstance(item, Synchronize) for item in program.instructions)
        forwards = backwards = 0
        for item in program.instructions:
            if isinstance(item, Compute):
                used = sum(len(use) for use in used_operators(plan, slices[item.slice]))
                backwards += used * item.backward
                forwards += used * (not item.backward)
        launches = [item for item in program.instructions if isinstance(item, Launch)]
        gathers = [item for item in program.instructions if isinstance(item, Gather)]
        assert len([item for item in program.instructions if isinstance(item, Await)]) == len(
            launches
        )
        # The table lies on all ranks: those of the other stage come for it, too.
        if stage == 3:
            assert sum(item.within for item in launches) == backwards
            taken = [item for item in program.instructions if isinstance(item, Take)]
            dropped = [item for item in program.instructions if isinstance(item, Drop)]
            assert len(taken) == len(gathers)
            assert len(dropped) <= len(gathers)
            # What the next operator uses, too, isn't gathered twice.
            own = [item for item in gathers if len(item.devices) == config.dp]
            assert 0 < len(own) < forwards + backwards
            assert not any(item.lasts for item in gathers)
        else:
            assert all(item.lasts and not item.within for item in gathers)
            assert [item.group for item in gathers] == sorted({item.group for item in launches})


@settings(max_examples=40, deadline=None)
@given(pipelines(), st.integers(2, 3))
def test_what_divides_states_ends_and_is_replayed_in_the_plans_order(
    plan: Plan, stage: int
) -> None:
    plan = with_rounds(plan, plan.rounds, zero_stage=stage)
    programs = compile_plan(plan, clip=True)
    check_programs(programs)
    assert find_stuck(programs[::-1]) == ()
    # Ranks wait for each other's ranges here, which the simulator leaves to the network.
    free_s, simulated_s = (way(plan, network=False).iteration_s for way in (replay, simulate))
    assert free_s >= simulated_s * (1 - 1e-9)
    if len({item.devices for item in plan.slices}) == 1:
        assert free_s == pytest.approx(simulated_s, rel=1e-9)


@settings(max_examples=40)
@given(pipelines(), st.integers(2, 3), st.sampled_from((0.5, 1e3)))
def test_pieces_of_groups_are_used_by_the_same_slices(
    plan: Plan, stage: int, most_numbers: float
) -> None:
    plan = with_rounds(plan, plan.rounds, zero_stage=stage)
    whole = parameter_pool(replace(plan, shard_gradients=False, shard_parameters=False))
    pieces_ = parameter_pool(plan, 1e6 * most_numbers)
    assert sorted((item.devices, key) for item in whole for key in item.operators) == sorted(
        (item.devices, key) for item in pieces_ for key in item.operators
    )
    users = {
        used: [item.id for item in plan.slices if used in chain(*used_operators(plan, item))]
        for item in plan.slices
        for used in chain(*used_operators(plan, item))
    }
    for item in pieces_:
        if len(item.devices) > 1:
            assert len({tuple(users[key.parameter_set, key.index]) for key in item.operators}) == 1
            numbers = sum(held_numbers(plan, key) for key in item.operators)
            assert len(item.operators) == 1 or numbers <= 1e6 * most_numbers
            assert len(item.operators) == 1 or stage < 3


def test_tokens_stay_cut_between_slices_that_cut_them_alike() -> None:
    plan = configured("text", 4, TP2_PP2)
    assert len(cut_flows(plan)) == len(plan.flows) > 0
    for number in (0, len(plan.slices) - 1):
        slices = list(plan.slices)
        slices[number] = replace(slices[number], sequence_parallel=False)
        assert len(cut_flows(replace(plan, slices=tuple(slices)))) == len(plan.flows) - 1
    # The same devices in another order hold other tokens.
    turned = [replace(item, devices=item.devices[::-1]) for item in plan.slices[:1]]
    changed = replace(plan, slices=(*turned, *plan.slices[1:]))
    assert len(cut_flows(changed)) == len(plan.flows) - 1


def test_what_is_cut_comes_from_who_has_the_same_tokens() -> None:
    plan = configured("text", 4, TP2_PP2)
    slices = plan.slice_by_id()
    for flow in plan.flows:
        source, target = slices[flow.source_slice], slices[flow.target_slice]
        for piece in pieces(source, target, 16):
            shards = [
                item.devices.index(device) % item.tp
                for item, device in ((source, piece.source), (target, piece.target))
            ]
            assert shards[0] == shards[1]


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("tokens", [0, 1, 5, 16])
def test_spans_of_tokens_fill_the_sequence(tokens: int, size: int) -> None:
    spans = [own_span(tokens, position, size) for position in range(size)]
    assert [token for first, last in spans for token in range(first, last)] == list(range(tokens))
    assert max(last - first for first, last in spans) <= -(-tokens // size)
