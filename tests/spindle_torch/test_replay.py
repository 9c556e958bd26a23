"""The programs of ranks in simulated time agree with the simulator, where they mean the same."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings

from spindle_sim.cluster import parse_cluster
from spindle_sim.plan import Plan
from spindle_sim.planner import STRATEGIES, make_plan
from spindle_sim.planner.strategies.parallel import ParallelConfig, parallel_plan
from spindle_sim.simulator import simulate
from spindle_sim.timeline import Kind, Span, Timeline
from spindle_sim.workload import builtin_workload
from spindle_sim.workload.tiny import tiny
from spindle_torch.buckets import Overlap
from spindle_torch.replay import ProgramReplay, replay
from tests.random_plans import plans

NAMES = ("spindle", "seq", "uniform", "optimus", "stmm")


def planned(workload: str, cluster: str, strategy: str, *, small: bool = True) -> Plan:
    whole = builtin_workload(workload)
    few = whole.with_first_tasks(min(4, len(whole.tasks)))
    return make_plan(tiny(few) if small else few, parse_cluster(cluster), strategy)


def computed(timeline: Timeline) -> list[Span]:
    found = [span for span in timeline.spans if span.kind is Kind.COMPUTE]
    return sorted(found, key=lambda span: (span.device, span.start_s, span.slice))


def on_one_device_each(plan: Plan) -> Plan:
    slices = tuple(replace(item, devices=item.devices[:1], dp=1, tp=1) for item in plan.slices)
    return replace(plan, slices=slices, zero1=False)


def assert_same_computing(plan: Plan) -> None:
    ours, theirs = computed(replay(plan, network=False)), computed(simulate(plan, network=False))
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        assert (one.device, one.slice, one.phase) == (other.device, other.slice, other.phase)
        assert one.start_s == pytest.approx(other.start_s, abs=1e-12)
        assert one.end_s == pytest.approx(other.end_s, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(plans())
def test_slices_of_one_device_compute_when_the_simulator_says(plan: Plan) -> None:
    assert_same_computing(on_one_device_each(plan))


@pytest.mark.parametrize("workload", ["multitask-clip", "ofasys", "qwen-val"])
@pytest.mark.parametrize(("cluster", "strategy"), [("a800:1x1", "spindle"), ("a800:1x4", "seq")])
def test_ranks_in_lockstep_compute_when_the_simulator_says(
    workload: str, cluster: str, strategy: str
) -> None:
    plan = planned(workload, cluster, strategy)
    assert len({item.devices for item in plan.slices}) == 1, "its ranks go in lockstep"
    assert_same_computing(plan)


@settings(max_examples=60, deadline=None)
@given(plans())
def test_ranks_apart_are_never_later_than_together(plan: Plan) -> None:
    free = replay(plan, network=False)
    assert free.iteration_s <= simulate(plan, network=False).iteration_s * (1 + 1e-9)
    want = Counter((device, item.id) for item in plan.slices for device in item.devices)
    got = Counter((s.device, s.slice) for s in computed(free) if s.phase == "forward")
    assert got == want


@settings(max_examples=60, deadline=None)
@given(plans())
def test_nothing_computes_before_what_it_needs(plan: Plan) -> None:
    timeline = replay(plan)
    ended = {(s.slice, s.phase, s.device): s.end_s for s in computed(timeline)}
    started = {(s.slice, s.phase, s.device): s.start_s for s in computed(timeline)}
    for flow in plan.flows:
        for (target, phase, _), start_s in started.items():
            if (target, phase) == (flow.target_slice, "forward"):
                sources = [
                    end_s
                    for (name, way, _), end_s in ended.items()
                    if (name, way) == (flow.source_slice, "forward")
                ]
                # Of several sources a rank may need one only: the first at the earliest.
                assert start_s >= min(sources) - 1e-12


@settings(max_examples=40, deadline=None)
@given(plans())
def test_spans_of_a_rank_never_overlap(plan: Plan) -> None:
    for timeline in (replay(plan), replay(plan, overlap=Overlap(bucket_bytes=1e6, number_bytes=4))):
        last: dict[int, float] = {}
        for span in timeline.spans:
            assert span.start_s >= last.get(span.device, 0.0) - 1e-12
            last[span.device] = span.end_s
            assert 0 <= span.wait_s <= span.duration_s + 1e-12


@pytest.mark.parametrize("strategy", NAMES)
@pytest.mark.parametrize("workload", ["multitask-clip", "ofasys"])
def test_a_planned_iteration_takes_about_what_the_simulator_says(
    workload: str, strategy: str
) -> None:
    assert strategy in STRATEGIES
    plan = planned(workload, "a800:2x8", strategy, small=False)
    ratio = ProgramReplay().run(plan).iteration_s / simulate(plan).iteration_s
    assert ratio == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("workload", ["multitask-clip", "ofasys", "qwen-val"])
def test_parameters_gathered_ahead_take_about_what_the_simulator_says(workload: str) -> None:
    """As many replicas as devices, whose iterations computing takes most of, with ZeRO-3."""
    whole = builtin_workload(workload)
    few = whole.with_first_tasks(min(4, len(whole.tasks)))
    configs = {task.name: ParallelConfig(dp=16) for task in few.tasks}
    plan = parallel_plan(few, parse_cluster("a800:2x8"), configs, zero_stage=3)
    ours, theirs, free = replay(plan), simulate(plan), simulate(plan, network=False)
    assert ours.iteration_s == pytest.approx(theirs.iteration_s, rel=0.06)
    assert ours.iteration_s > free.iteration_s
