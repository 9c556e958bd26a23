"""The critical path: closed forms, executed timelines by hand, properties of random plans."""

import random
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_sim.backend import find_backend
from spindle_sim.cluster import parse_cluster
from spindle_sim.metrics import CriticalPath, PathKind, PathShare, Why, critical_path
from spindle_sim.plan import Plan
from spindle_sim.planner import STRATEGIES
from spindle_sim.planner import make_plan as build_plan
from spindle_sim.simulator import simulate
from spindle_sim.timeline import Kind, Phase, Span, Timeline
from spindle_sim.workload import builtin_workload
from tests.builders import Part, make_cluster, make_plan, make_workload
from tests.pipelines import pipelined_plan, pipelines
from tests.random_plans import plans
from tests.test_metrics import chain

PROPERTY = settings(max_examples=60, deadline=None)
CHAIN = chain()
STEP = 1e-5  # stepping the optimizer of one parameter takes microseconds


def check_whole(path: CriticalPath, timeline: Timeline) -> None:
    """Check that the steps go from 0 to the end without a hole, and that every sum is that."""
    assert path.iteration_s == timeline.iteration_s
    assert path.steps[0].start_s == 0.0
    assert path.steps[-1].end_s == timeline.iteration_s
    for one, following in zip(path.steps, path.steps[1:], strict=False):
        assert one.end_s == following.start_s
    assert all(step.end_s > step.start_s for step in path.steps)
    lengths = [Fraction(step.end_s) - Fraction(step.start_s) for step in path.steps]
    assert sum(lengths) == Fraction(timeline.iteration_s)
    for shares in (path.by_kind(), path.by_task(), path.by_metaop(), path.by_device()):
        assert sum(share.seconds for share in shares) == pytest.approx(path.iteration_s, rel=1e-12)
        for share in shares:
            parts = share.compute_s, share.transfer_s, share.synchronization_s, share.step_s
            assert sum(parts) + share.gap_s == pytest.approx(share.seconds, rel=1e-12)


def seconds(shares: tuple[PathShare, ...]) -> dict[str, float]:
    return {share.name: share.seconds for share in shares}


def steps(path: CriticalPath) -> list[tuple[int, float, float, PathKind, Why]]:
    """Give device, start, end, kind and reason of each step, times to the millisecond."""
    return [
        (step.device, round(step.start_s, 3), round(step.end_s, 3), step.kind, step.why)
        for step in path.steps
        if step.duration_s > 1e-3
    ]


def test_a_chain_is_its_own_critical_path() -> None:
    timeline = simulate(chain())
    path = critical_path(chain(), timeline)
    check_whole(path, timeline)
    assert steps(path) == [
        (0, 0.0, 1.0, PathKind.COMPUTE, Why.START),
        (1, 1.0, 1.1, PathKind.TRANSFER, Why.INPUT),
        (1, 1.1, 4.1, PathKind.COMPUTE, Why.INPUT),
        (1, 4.1, 8.1, PathKind.COMPUTE, Why.ORDER),
        (0, 8.1, 8.2, PathKind.TRANSFER, Why.INPUT),
        (0, 8.2, 10.2, PathKind.COMPUTE, Why.INPUT),
    ]
    assert seconds(path.by_metaop()) == pytest.approx(
        {"t/b/x": 3 + 4 + 0.1, "t/a/x": 1 + 2 + 0.1, "": 0.0}, abs=STEP
    )
    assert seconds(path.by_device()) == pytest.approx({"0": 3.1, "1": 7.1}, rel=STEP)
    assert seconds(path.by_task()) == pytest.approx({"t": 10.2, "": 0.0}, abs=STEP)
    assert seconds(path.by_kind()) == pytest.approx(
        {"compute": 10.0, "transfer": 0.2, "synchronization": 0.0, "step": 0.0, "gap": 0.0},
        abs=STEP,
    )


def test_a_synchronization_leads_to_the_device_that_came_last() -> None:
    workload = make_workload({"t": ("a",), "u": ("a",)}, parameters=500_000_000)
    parts = [
        Part(metaop="t/a/x", devices=(0,), stage=0, forward_s=1.0, backward_s=1.0),
        Part(metaop="u/a/x", devices=(1,), stage=0, forward_s=4.0, backward_s=2.0),
    ]
    plan = make_plan(workload, make_cluster(1, 2), parts)
    path = critical_path(plan, simulate(plan))
    found = [(step.device, step.kind, step.why, step.metaop) for step in path.steps]
    assert found[:2] == [
        (1, PathKind.COMPUTE, Why.START, "u/a/x"),
        (1, PathKind.COMPUTE, Why.ORDER, "u/a/x"),
    ]
    assert found[2][1:] == (
        PathKind.SYNCHRONIZATION,
        Why.LAST_RANK if found[2][0] == 0 else Why.GRADIENTS,
        "",
    )
    assert found[3][1:] == (PathKind.STEP, Why.STEP, "")
    assert "t/a/x" not in seconds(path.by_metaop())


def test_a_bucket_leads_into_the_middle_of_the_backward_that_completes_it() -> None:
    # One slice of four operators: with buckets of one operator each synchronizes beside the next;
    # where an all-reduce takes longer than an operator, the chain is one of all-reduces.
    workload = make_workload({"t": ("a",)}, repeat=4, parameters=500_000_000)
    part = Part(metaop="t/a/x", devices=(0, 1), num_ops=4, forward_s=0.001, backward_s=0.004)
    plan = make_plan(workload, make_cluster(1, 2), [part])
    timeline = simulate(plan, overlap_sync=True, bucket_bytes=1e9, overlap_slowdown=1.0)
    path = critical_path(plan, timeline)
    check_whole(path, timeline)
    kinds = [(step.kind, step.why) for step in path.steps]
    syncs = [(PathKind.SYNCHRONIZATION, Why.GRADIENTS)]
    syncs += 3 * [(PathKind.SYNCHRONIZATION, Why.TURN)]
    assert kinds == [
        (PathKind.COMPUTE, Why.START),
        (PathKind.COMPUTE, Why.ORDER),
        *syncs,
        (PathKind.STEP, Why.STEP),
    ]
    assert path.steps[1].duration_s == pytest.approx(0.001)  # of the backward, its first operator


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 2), (2, 8), (4, 8), (8, 16)])
def test_the_path_through_equal_stages_is_as_long_as_1f1b(ranks: int, micro_batches: int) -> None:
    plan = pipelined_plan(ranks=ranks, micro_batches=micro_batches, dp=2, parameters=1)
    path = critical_path(plan, simulate(plan, network=False))
    compute = path.by_kind()[0]
    assert compute.seconds == pytest.approx((micro_batches + ranks - 1) * 3.0)
    assert path.iteration_s == pytest.approx(compute.seconds, rel=STEP)
    # From one stage to the next for the input of a micro-batch, else in the order of a stage.
    assert {step.why for step in path.steps[1:-1]} == {Why.INPUT, Why.ORDER}


def test_waiting_for_gathered_parameters_is_synchronization() -> None:
    plan = pipelined_plan(
        ranks=1, micro_batches=2, dp=2, forward_s=0.001, backward_s=0.002, zero_stage=3
    )
    timeline = simulate(plan)
    waited = {
        (span.slice, span.phase, span.micro_batch): span.wait_s
        for span in timeline.spans
        if span.kind is Kind.COMPUTE and span.device == 0
    }
    assert sum(waited.values()) > 0.0
    path = critical_path(plan, timeline)
    (share,) = (one for one in path.by_metaop() if one.name)
    assert share.synchronization_s == pytest.approx(sum(waited.values()))
    assert share.compute_s == pytest.approx(2 * 0.003, rel=0.2)  # some of it beside collectives


def span(device: int, start_s: float, end_s: float, kind: Kind, **others: object) -> Span:
    phase = {Kind.SYNC: Phase.SYNC, Kind.OPTIMIZER: Phase.STEP}.get(kind, Phase.FORWARD)
    fields = {"phase": phase, "stream": int(kind not in (Kind.COMPUTE, Kind.OPTIMIZER)), **others}
    return Span(device=device, start_s=start_s, end_s=end_s, kind=kind, **fields)  # type: ignore[arg-type]


def executed(*spans: Span) -> Timeline:
    return Timeline(backend="torch-gloo", num_devices=2, spans=spans)


def test_an_executed_timeline_is_walked_from_rank_to_rank_and_its_engine_time_is_named() -> None:
    plan = chain()
    first, second = (item.id for item in plan.slices)
    timeline = executed(
        # Device 0 begins 0.1 s late, computes, posts 0.2 s later, and synchronizes early.
        span(0, 0.1, 2.0, Kind.COMPUTE, slice=first, metaop="t/a/x", task="t"),
        span(0, 2.2, 2.3, Kind.SEND, slice=first, metaop="t/a/x", task="t"),
        span(0, 2.4, 7.5, Kind.SYNC, wait_s=4.6),
        span(0, 7.5, 7.6, Kind.OPTIMIZER),
        # Device 1 waits 2.1 s for it, then for 0.4 s for the message, and comes last.
        span(1, 0.0, 0.1, Kind.COPY, slice=second),
        span(1, 0.1, 2.6, Kind.RECEIVE, slice=second, metaop="t/b/x", task="t", wait_s=2.1),
        span(1, 2.6, 6.5, Kind.COMPUTE, slice=second, metaop="t/b/x", task="t"),
        span(1, 7.0, 7.5, Kind.SYNC),
        span(1, 7.5, 7.55, Kind.OPTIMIZER),
    )
    path = critical_path(plan, timeline)
    check_whole(path, timeline)
    assert steps(path) == [
        (0, 0.0, 0.1, PathKind.GAP, Why.LATE),
        (0, 0.1, 2.0, PathKind.COMPUTE, Why.START),
        (1, 2.0, 2.2, PathKind.GAP, Why.ENGINE),
        (1, 2.2, 2.6, PathKind.TRANSFER, Why.INPUT),
        (1, 2.6, 6.5, PathKind.COMPUTE, Why.INPUT),
        (0, 6.5, 7.0, PathKind.GAP, Why.ENGINE),
        (0, 7.0, 7.5, PathKind.SYNCHRONIZATION, Why.LAST_RANK),
        (0, 7.5, 7.6, PathKind.STEP, Why.STEP),
    ]


def test_a_message_that_had_come_in_time_leads_to_its_own_rank() -> None:
    plan = chain()
    first, second = (item.id for item in plan.slices)
    timeline = executed(
        span(0, 0.0, 1.0, Kind.COMPUTE, slice=first),
        span(0, 1.0, 1.1, Kind.SEND, slice=first),
        span(1, 0.0, 3.0, Kind.COMPUTE, slice="other"),
        span(1, 3.0, 3.0, Kind.RECEIVE, slice=second),
        span(1, 3.0, 4.0, Kind.COMPUTE, slice=second),
    )
    path = critical_path(plan, timeline)
    check_whole(path, timeline)
    assert [step.device for step in path.steps] == [1, 1]


def test_an_iteration_without_spans_has_no_path() -> None:
    path = critical_path(chain(), Timeline(backend="simulator", num_devices=2, spans=()))
    assert path.steps == ()
    assert path.by_kind()[0].seconds == path.iteration_s == 0.0
    assert path.by_metaop() == ()


@given(plans(), st.booleans(), st.booleans(), st.sampled_from((0.0, 0.1)))
@PROPERTY
def test_the_path_adds_up_and_leaves_nothing_unexplained(
    plan: Plan, overlap_sync: bool, network: bool, jitter: float
) -> None:
    timeline = simulate(
        plan, overlap_sync=overlap_sync, network=network, jitter=jitter, bucket_bytes=20e6
    )
    path = critical_path(plan, timeline)
    check_whole(path, timeline)
    assert all(step.kind is not PathKind.GAP for step in path.steps)


@given(pipelines(), st.booleans(), st.booleans(), st.sampled_from((0.0, 0.1)))
@PROPERTY
def test_so_it_does_for_pipelines_of_every_order_and_zero_stage(
    plan: Plan, overlap_sync: bool, network: bool, jitter: float
) -> None:
    timeline = simulate(
        plan, overlap_sync=overlap_sync, network=network, jitter=jitter, bucket_bytes=3e6
    )
    path = critical_path(plan, timeline)
    check_whole(path, timeline)
    assert all(step.kind is not PathKind.GAP for step in path.steps)


@given(st.one_of(plans(), pipelines()), st.integers(0, 10**6))
@PROPERTY
def test_each_step_depends_on_the_one_before(plan: Plan, seed: int) -> None:
    # Of true dependencies any chain is a lower bound, whatever the durations become.
    path = critical_path(plan, simulate(plan, network=False))
    choose = random.Random(seed).choice
    factors = {
        (item.id, phase): choose((0.1, 0.5, 1.0, 2.0, 10.0))
        for item in plan.slices
        for phase in Phase
    }
    other = replace(
        plan,
        slices=tuple(
            replace(
                item,
                forward_s=item.forward_s * factors[item.id, Phase.FORWARD],
                backward_s=item.backward_s * factors[item.id, Phase.BACKWARD],
            )
            for item in plan.slices
        ),
    )
    least_s = sum(
        step.duration_s * (factors[step.slice, step.phase] if step.slice and step.phase else 1.0)
        for step in path.steps
    )
    assert simulate(other, network=False).iteration_s >= least_s * (1 - 1e-9)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_plans_of_every_strategy_are_explained_wholly(strategy: str) -> None:
    workload = builtin_workload("multitask-clip")
    tasks = workload.tasks[:2]
    used = {use.module for task in tasks for use in task.uses}
    modules = tuple(module for module in workload.modules if module.name in used)
    workload = replace(workload, tasks=tasks, modules=modules)
    plan = build_plan(workload, parse_cluster("a800:1x4"), strategy)
    for overlap_sync in (False, True):
        timeline = simulate(plan, overlap_sync=overlap_sync)
        path = critical_path(plan, timeline)
        check_whole(path, timeline)
        assert all(step.kind is not PathKind.GAP for step in path.steps)


@given(plans())
@settings(max_examples=12, deadline=None)
def test_programs_replayed_rank_by_rank_are_explained_wholly(plan: Plan) -> None:
    # Ranks whose spans follow one another, as those of a real run do, but without engine time.
    pytest.importorskip("torch")
    timeline = find_backend("programs").run(plan)
    path = critical_path(plan, timeline)
    check_whole(path, timeline)
    assert all(step.kind is not PathKind.GAP for step in path.steps)


@st.composite
def _spans(draw: st.DrawFn) -> Span:
    start_s = draw(st.sampled_from((0.0, 0.1, 0.2, 0.5)))
    length_s = draw(st.sampled_from((0.0, 0.1, 0.3, 1.0)))
    return Span(
        device=draw(st.integers(0, 1)),
        start_s=start_s,
        end_s=start_s + length_s,
        kind=draw(st.sampled_from(list(Kind))),
        phase=draw(st.sampled_from(list(Phase))),
        slice=draw(st.sampled_from([*(item.id for item in CHAIN.slices), "", "other"])),
        wait_s=length_s * draw(st.sampled_from((0.0, 0.5, 1.0))),
        peer=draw(st.sampled_from((None, 0, 1))),
    )


@given(st.lists(_spans(), min_size=1, max_size=12), st.sampled_from(("simulator", "other")))
@settings(max_examples=300, deadline=None)
def test_a_timeline_that_makes_no_sense_is_still_walked_to_its_start(
    spans: list[Span], backend: str
) -> None:
    timeline = Timeline(backend=backend, num_devices=2, spans=tuple(spans))
    path = critical_path(CHAIN, timeline)
    if timeline.iteration_s:
        check_whole(path, timeline)
    else:
        assert path.steps == ()
