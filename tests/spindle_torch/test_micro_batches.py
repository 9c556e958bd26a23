"""Rounds of micro-batches, flushed and as pipelines: programs, and the gradients of one process."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_sim import parse_cluster
from spindle_sim.backend import ExecutionOptions
from spindle_sim.plan import Order, Plan, Round, save_plan
from spindle_sim.plan.schedule import operation_order
from spindle_sim.simulator import simulate
from spindle_sim.timeline import Kind, Timeline
from spindle_sim.workload import (
    Block,
    DataFlow,
    Embedding,
    Module,
    ModuleUse,
    Projection,
    Task,
    TransformerLayer,
    Workload,
)
from spindle_torch import TorchBackend
from spindle_torch.buckets import Overlap
from spindle_torch.compilation import compile_plan
from spindle_torch.deadlock import check_programs, find_stuck
from spindle_torch.program import Compute, Launch
from tests.builders import Part, make_memory, make_plan
from tests.pipelines import pipelined_plan, pipelines
from tests.spindle_torch.plans import dealt, workloads
from tests.spindle_torch.reference import Reference
from tests.spindle_torch.running import check_replicas, joined, run_probes

TOLERANCE = 1e-12
STEPS = 2


@settings(max_examples=40)
@given(pipelines(), st.booleans())
def test_programs_of_micro_batches_end_and_keep_the_plans_order(plan: Plan, beside: bool) -> None:
    programs = compile_plan(plan, overlap=Overlap.of(0.5, "float32") if beside else None)
    check_programs(programs)
    assert find_stuck(programs[::-1]) == ()
    order = operation_order(plan)
    for program in programs:
        computed = [
            (item.slice, item.backward, item.micro_batch)
            for item in program.instructions
            if isinstance(item, Compute)
        ]
        assert computed == [
            (plan.slices[op.slice_index].id, op.backward, op.micro_batch)
            for op in order
            if program.rank in plan.slices[op.slice_index].devices
        ]


def test_gradients_leave_with_the_last_micro_batch() -> None:
    plan = pipelined_plan(ranks=2, dp=2, micro_batches=4, ops_per_stage=3)
    for program in compile_plan(plan, overlap=Overlap.of(1.0, "float32")):
        launches = [at for at, item in enumerate(program.instructions) if isinstance(item, Launch)]
        backwards = [
            at
            for at, item in enumerate(program.instructions)
            if isinstance(item, Compute) and item.backward
        ]
        assert len(backwards) == 4
        assert launches
        assert min(launches) > backwards[-1]


def text_model(layers: int) -> Workload:
    """A language model with a tied head: its table lies on the first stage and on the last."""
    layer = TransformerLayer(width=16, heads=4, mlp_width=24, causal=True)
    head = Projection(inner=16, columns=32, logits=True, tied=True, norm_width=16)
    return Workload(
        name="text",
        modules=(
            Module(
                name="text",
                blocks=(Block(name="table", operator=Embedding(vocabulary=32, width=16)),),
            ),
            Module(name="lm", blocks=(Block(name="layers", operator=layer, repeat=layers),)),
            Module(name="head", blocks=(Block(name="logits", operator=head),)),
        ),
        tasks=(
            Task(
                name="t",
                batch_size=16,
                uses=(
                    ModuleUse(name="text", module="text", tokens=5),
                    ModuleUse(name="lm", module="lm", tokens=5),
                    ModuleUse(name="head", module="head", tokens=5),
                ),
                flows=(
                    DataFlow(source="text", target="lm"),
                    DataFlow(source="lm", target="head"),
                ),
            ),
        ),
    )


def pipeline(
    *,
    ranks: int,
    micro_batches: int,
    chunks: int = 1,
    dp: int = 1,
    tp: int = 1,
    order: Order = Order.ONE_FORWARD_ONE_BACKWARD,
    zero1: bool = False,
) -> Plan:
    """Put the table before the first stage's layer, and the head behind the last one's."""
    stages, width = ranks * chunks, dp * tp

    def part(metaop: str, stage: int, first_op: int = 0) -> Part:
        devices = tuple(range(stage % ranks * width, (stage % ranks + 1) * width))
        return Part(metaop=metaop, devices=devices, first_op=first_op, tp=tp, stage=stage)

    parts = [part("t/text/table", 0)]
    parts += [part("t/lm/layers", stage, stage) for stage in range(stages)]
    parts += [part("t/head/logits", stages - 1)]
    plan = make_plan(text_model(stages), parse_cluster(f"a800:1x{ranks * width}"), parts)
    memory = make_memory(plan.metaops, plan.slices, plan.parameter_groups, zero1=zero1)
    rounds = (Round(round=0, micro_batches=micro_batches, order=order),)
    return replace(plan, rounds=rounds, zero1=zero1, memory=memory)


def cut(name: str, order: Order) -> Plan:
    """Cut the rounds of a random plan of a workload into two micro-batches each."""
    for _, plan in dealt(workloads()[name], parse_cluster("a800:1x4")):
        batches = {metaop.id: metaop.batch for metaop in plan.metaops}
        if all(batches[item.metaop] % (2 * item.dp) == 0 for item in plan.slices):
            numbers = sorted({item.round for item in plan.slices})
            rounds = tuple(Round(round=n, micro_batches=2, order=order) for n in numbers)
            return replace(plan, rounds=rounds)
    raise AssertionError("unreachable: there are plans without end")


def reference(workload: Workload) -> list[tuple[dict[str, float], dict[str, torch.Tensor]]]:
    model = Reference(workload, torch.float64)
    return [model.step(number) for number in range(STEPS)]


@pytest.mark.slow
def test_losses_and_gradients_of_micro_batches_are_those_of_the_whole_batch(
    tmp_path: Path,
) -> None:
    plans = {
        "1f1b": pipeline(ranks=4, micro_batches=4),
        "1f1b.dp": pipeline(ranks=2, dp=2, micro_batches=4),
        "1f1b.tp": pipeline(ranks=2, tp=2, micro_batches=8),
        "interleaved": pipeline(ranks=2, chunks=2, dp=2, micro_batches=4),
        "flush": pipeline(ranks=4, micro_batches=4, order=Order.FLUSH),
        "zero": pipeline(ranks=2, dp=2, micro_batches=4, zero1=True),
        "beside": pipeline(ranks=2, dp=2, micro_batches=4),
        "accumulate": pipeline(ranks=2, dp=2, micro_batches=4, order=Order.ACCUMULATE),
        "dealt": cut("qwen-val", Order.FLUSH),
        "dealt.accumulate": cut("qwen-val", Order.ACCUMULATE),
    }
    for name, plan in plans.items():
        options = {"steps": STEPS} | ({"bucket_mb": 0.001} if name == "beside" else {})
        save_plan(plan, tmp_path / f"{name}.json")
        (tmp_path / f"{name}.options").write_text(json.dumps(options))
    run_probes(tmp_path, 4)
    for name, plan in plans.items():
        ranks = [torch.load(tmp_path / f"{name}.float64.{rank}.pt") for rank in range(4)]
        check_replicas(ranks)
        for step, (losses, gradients) in enumerate(reference(plan.workload)):
            for task, loss in losses.items():
                total = sum(rank["steps"][step]["losses"].get(task, 0.0) for rank in ranks)
                assert total == pytest.approx(loss, rel=TOLERANCE), name
            parts = {key: g for r in ranks for key, g in r["steps"][step]["gradients"].items()}
            norm = torch.stack([g.square().sum() for g in gradients.values()]).sum().sqrt()
            for key, gradient in gradients.items():
                error = (joined(parts, key, gradient) - gradient).norm()
                assert error <= TOLERANCE * norm, f"{name}: step {step}: {key}"


@pytest.mark.slow
def test_an_emulated_pipeline_keeps_the_simulators_order_and_time() -> None:
    plan = pipelined_plan(ranks=2, chunks=2, micro_batches=4)
    options = ExecutionOptions(iterations=2, emulate=True, time_scale=0.02, timeout_s=60)
    timeline = TorchBackend().execute(plan, options).timeline
    simulated = simulate(plan, network=False)
    assert timeline.iteration_s >= 0.99 * 0.02 * simulated.iteration_s
    assert computed(timeline) == computed(simulated)


def computed(timeline: Timeline) -> dict[int, list[tuple[str, str, int]]]:
    found: dict[int, list[tuple[str, str, int]]] = {}
    for span in sorted(timeline.spans, key=lambda span: (span.start_s, span.end_s)):
        if span.kind is Kind.COMPUTE:
            place = span.slice, str(span.phase), span.micro_batch
            found.setdefault(span.device, []).append(place)
    return found
