"""Ranks with fewer samples than others, or none: what one plain process computes, all the same."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from spindle_sim import parse_cluster
from spindle_sim.plan import Order, Plan, Round, save_plan, validate_plan
from spindle_sim.workload import (
    Block,
    ContrastiveLoss,
    DataFlow,
    Embedding,
    Module,
    ModuleUse,
    Operator,
    Projection,
    Task,
    TransformerLayer,
    Workload,
)
from spindle_torch.buckets import Overlap
from spindle_torch.compilation import compile_plan
from spindle_torch.deadlock import check_programs
from spindle_torch.intervals import held_samples
from tests.builders import Part, make_plan
from tests.pipelines import with_rounds
from tests.spindle_torch.reference import Reference
from tests.spindle_torch.running import check_replicas
from tests.spindle_torch.standing import StandingRanks
from tests.spindle_torch.test_gradients import STEPS, TOLERANCE, check
from tests.stated_plans import stated

RANKS, WIDTH = 4, 8
BUCKET_MB = 0.001
ALL, THREE = (0, 1, 2, 3), (3, 1, 2)
CUT = Round(round=0, micro_batches=2, order=Order.ACCUMULATE)


def model(batch: int, *, coupled: bool) -> Workload:
    """Give a language model; or a task that pairs two modalities, beside it where it is coupled."""
    layer = TransformerLayer(width=WIDTH, heads=4, mlp_width=12, mlp_bias=True)
    operators: dict[str, tuple[Operator, int]] = {
        "text": (Embedding(vocabulary=16, width=WIDTH), 1),
        "layers": (layer, 3),
        "wide": (layer, 2),
        "head": (Projection(inner=WIDTH, columns=16, logits=True, tied=True), 1),
        "image": (Projection(inner=WIDTH, columns=WIDTH, bias=True), 1),
        "loss": (ContrastiveLoss(width=WIDTH, extra_parameters=1), 1),
    }
    words = task("words", batch, ["text", "layers", "wide", "head"])
    pairs = task("pairs", batch, ["text", "layers", "image", "loss"])
    pairs = replace(
        pairs,
        flows=tuple(
            DataFlow(source=source, target=target)
            for source, target in (("text", "layers"), ("layers", "loss"), ("image", "loss"))
        ),
    )
    tasks = (words, pairs) if coupled else (words,)
    used = {use.module for one in tasks for use in one.uses}
    return Workload(
        name="uneven",
        modules=tuple(
            Module(name=name, blocks=(Block(name="b", operator=operator, repeat=repeat),))
            for name, (operator, repeat) in operators.items()
            if name in used
        ),
        tasks=tasks,
    )


def task(name: str, batch: int, chain: Sequence[str]) -> Task:
    """Give a chain of uses of three tokens, but for what compares whole samples."""
    return Task(
        name=name,
        batch_size=batch,
        uses=tuple(
            ModuleUse(name=use, module=use, tokens=1 if use == "loss" else 3) for use in chain
        ),
        flows=tuple(DataFlow(source=a, target=b) for a, b in pairwise(chain)),
    )


def words_parts() -> Iterator[Part]:
    """Give the language model's slices: any degree to any other, one of them recomputed."""
    yield Part(metaop="words/text/b", devices=ALL)
    yield Part(metaop="words/layers/b", devices=THREE, num_ops=2, recompute=True)
    yield Part(metaop="words/layers/b", devices=ALL, first_op=2, num_ops=1)
    yield Part(metaop="words/wide/b", devices=(2, 3, 0, 1), num_ops=1, tp=2)
    yield Part(metaop="words/wide/b", devices=(0, 1), first_op=1, num_ops=1, tp=2, recompute=True)
    yield Part(metaop="words/head/b", devices=THREE)


def pairs_parts(loss: tuple[int, ...], tp: int) -> Iterator[Part]:
    """Give those of the coupled task, whose loss lies on these devices."""
    yield Part(metaop="pairs/text/b", devices=THREE)
    yield Part(metaop="pairs/layers/b", devices=ALL, num_ops=3)
    yield Part(metaop="pairs/image/b", devices=(1, 0))
    yield Part(metaop="pairs/loss/b", devices=loss, tp=tp)


def planned(
    workload: Workload, parts: Sequence[Part], *, zero_stage: int, rounds: Sequence[Round] = ()
) -> Plan:
    """Give a plan in which nothing is wrong but that shards differ."""
    staged = [replace(part, stage=stage) for stage, part in enumerate(parts)]
    plan = stated(make_plan(workload, parse_cluster(f"a800:1x{RANKS}"), staged))
    slices = tuple(
        replace(item, sequence_parallel=item.tp > 1 and not item.recompute) for item in plan.slices
    )
    plan = with_rounds(replace(plan, slices=slices), rounds, zero_stage=zero_stage)
    wrong = {"allocation", "round"} if rounds else {"allocation"}
    assert {violation.rule for violation in validate_plan(plan)} == wrong
    return plan


def spans(plan: Plan, kind: str = "") -> set[int]:
    """Give how many samples ranks have of the slices of one kind, or of all."""
    metaops = plan.metaop_by_id()
    return {
        last - first
        for item in plan.slices
        if kind in metaops[item.metaop].kind
        for batch in [metaops[item.metaop].batch // plan.micro_batches(item.round)]
        for first, last in [held_samples(item, device, batch) for device in item.devices]
    }


def run_and_check(folder: Path, plans: Mapping[str, Plan]) -> None:
    """Compare losses, gradients and steps of all plans with those of one process."""
    paths = {folder / f"{name}.json": plan for name, plan in plans.items()}
    for path, plan in paths.items():
        beside = Overlap.of(BUCKET_MB, "float64") if plan.overlap_sync else None
        check_programs(compile_plan(plan, overlap=beside))
        save_plan(plan, path)
        given = {"bucket_mb": BUCKET_MB} if plan.overlap_sync else {}
        path.with_suffix(".options").write_text(json.dumps(given))
    with StandingRanks(folder, RANKS) as standing:
        left = standing.run(list(paths))
    steps = {
        (workload.name, workload.tasks, dtype): [
            one.step(number)
            for one in [Reference(workload, getattr(torch, dtype))]
            for number in range(STEPS[dtype])
        ]
        for workload in {plan.workload.tasks: plan.workload for plan in plans.values()}.values()
        for dtype in TOLERANCE
    }
    for path, plan in paths.items():
        for dtype in TOLERANCE:
            steps_of = steps[plan.workload.name, plan.workload.tasks, dtype]
            check(steps_of, dtype, left[path][dtype])
            check_replicas(left[path][dtype])


@pytest.mark.parametrize(("rounds", "stages", "beside"), [((), (1, 3), 0), ((CUT,), (0, 2, 3), 1)])
def test_ranks_without_samples_leave_losses_gradients_and_steps_as_they_are(
    rounds: tuple[Round, ...], stages: tuple[int, ...], beside: int, tmp_path: Path
) -> None:
    workload, parts = model(2, coupled=False), list(words_parts())
    plans = {
        stage: planned(workload, parts, zero_stage=stage, rounds=rounds)
        for stage in {*stages, beside}
    }
    assert 0 in spans(plans[beside])
    tried = {f"zero{stage}": plans[stage] for stage in stages}
    tried["beside"] = replace(plans[beside], overlap_sync=True)
    run_and_check(tmp_path, tried)


@pytest.mark.parametrize("batch", [5, 3])
def test_contrastive_losses_of_uneven_shards_are_those_of_the_whole_batch(
    batch: int, tmp_path: Path
) -> None:
    workload = model(batch, coupled=True)
    losses = {"all": (ALL, 1), "three": (THREE, 1), "tp": ((2, 3, 0, 1), 2)}
    plans = {
        f"{name}.zero{stage}": planned(
            workload, [*words_parts(), *pairs_parts(loss, tp)], zero_stage=stage
        )
        for stage, (name, (loss, tp)) in enumerate(losses.items(), start=1)
    }
    plans["beside"] = replace(
        planned(workload, [*words_parts(), *pairs_parts(ALL, 1)], zero_stage=0), overlap_sync=True
    )
    assert len(spans(plans["beside"], "contrastive")) > 1
    assert (0 in spans(plans["beside"], "contrastive")) == (batch < RANKS)
    run_and_check(tmp_path, plans)
