"""ZeRO stages 2 and 3 worked by hand: what is gathered and scattered when, and how much of it."""

from dataclasses import replace

import pytest

from spindle_sim.estimate import Estimator
from spindle_sim.metrics import summarize
from spindle_sim.plan import Plan
from spindle_sim.simulator import simulate
from spindle_sim.simulator.collectives import all_reduce_demand
from spindle_sim.simulator.links import cluster_links
from spindle_sim.simulator.sharding import sharded_slices
from spindle_sim.simulator.sync import DEFAULT_BUCKET_BYTES
from spindle_sim.timeline import Kind, Phase, Span, Timeline
from tests.builders import make_cluster
from tests.pipelines import pipelined_plan

DEVICES = (0, 1, 2, 3)
SLOWDOWN = 1.126


def three_operators(stage: int, *, forward_s: float = 3.0, micro_batches: int = 1) -> Plan:
    """Give three operators of 100 million parameters on four ranks; backward as long as forward."""
    return pipelined_plan(
        ranks=1,
        dp=4,
        ops_per_stage=3,
        micro_batches=micro_batches,
        parameters=100_000_000,
        forward_s=forward_s,
        backward_s=forward_s,
        zero_stage=stage,
        cluster=make_cluster(1, 4),
    )


def of_device(timeline: Timeline, *kinds: Kind, device: int = 0) -> list[Span]:
    return [s for s in timeline.spans if s.device == device and s.kind in kinds]


def times_s(plan: Plan) -> tuple[float, float]:
    """Give how long an operator's gathering and scattering take alone."""
    estimator = Estimator(plan.cluster)
    return estimator.all_gather_s(2e8, DEVICES), estimator.reduce_scatter_s(2e8, DEVICES)


def test_stage_3_moves_half_as_much_again_as_an_all_reduce() -> None:
    plan = three_operators(3)
    estimator, links = Estimator(plan.cluster), cluster_links(plan.cluster)
    (sharded,) = sharded_slices(plan, estimator, links, bucket_bytes=DEFAULT_BUCKET_BYTES)
    vectors = [*sharded.gathers, *sharded.gathers, *(b.vector for b in sharded.buckets)]
    assert len(vectors) == 9
    port = links.port_out[0]
    moved = sum(
        demand.size_bytes * dict(demand.loads)[port]
        for vector in vectors
        if vector is not None
        for demand in vector.demands
    )
    whole = all_reduce_demand(estimator, links, 2e8, DEVICES)
    assert moved == pytest.approx(1.5 * 3 * whole.size_bytes * dict(whole.loads)[port])


def test_gathers_hide_behind_the_operator_before() -> None:
    plan = three_operators(3)
    gather_s, scatter_s = times_s(plan)
    timeline = simulate(plan, overlap_slowdown=1.0)
    forward, backward = of_device(timeline, Kind.COMPUTE)
    assert forward.start_s == 0.0
    assert forward.wait_s == pytest.approx(gather_s)
    assert forward.end_s == pytest.approx(gather_s + 3.0)
    assert backward.wait_s == 0.0
    assert backward.end_s == pytest.approx(gather_s + 6.0)
    # Only the first gather and the last scatter are seen.
    last = max(of_device(timeline, Kind.SYNC), key=lambda span: span.end_s)
    assert last.end_s == pytest.approx(backward.end_s + scatter_s)
    (step,) = of_device(timeline, Kind.OPTIMIZER)
    assert step.start_s == last.end_s
    assert summarize(plan, timeline).forward_backward_s == pytest.approx(6.0)
    assert summarize(plan, timeline).sync_s == pytest.approx(gather_s + scatter_s + step.duration_s)


def test_operators_shorter_than_their_gathers_wait_for_each() -> None:
    plan = three_operators(3, forward_s=3e-6)
    gather_s, _ = times_s(plan)
    forward, _ = of_device(simulate(plan, overlap_slowdown=1.0), Kind.COMPUTE)
    # The first operator's gather, and then each next one's while the one before computes.
    assert forward.end_s == pytest.approx(3 * gather_s + 1e-6)
    assert forward.duration_s - forward.wait_s == pytest.approx(3e-6)


def test_computing_beside_a_gather_takes_longer() -> None:
    plan = three_operators(3)
    gather_s, _ = times_s(plan)
    forward, _ = of_device(simulate(plan), Kind.COMPUTE)
    # In each operator's time the next one's parameters are gathered, the last time those of the
    # first to go backward.
    lost_s = 3 * gather_s * (1 - 1 / SLOWDOWN)
    assert forward.end_s == pytest.approx(gather_s + 3.0 + lost_s)


def test_stage_3_gathers_twice_and_scatters_once_a_micro_batch() -> None:
    plan = three_operators(3, micro_batches=5)
    syncs = of_device(simulate(plan), Kind.SYNC)
    assert sum(span.bytes for span in syncs) == pytest.approx(5 * 3 * 3 * 2e8)


def test_stage_2_scatters_every_micro_batch_and_gathers_after_the_step() -> None:
    plan = three_operators(2, micro_batches=4)
    timeline = simulate(plan, overlap_slowdown=1.0)
    *scatters, gather = of_device(timeline, Kind.SYNC)
    assert [span.bytes for span in scatters] == [6e8] * 4
    backwards = [s for s in of_device(timeline, Kind.COMPUTE) if s.phase is Phase.BACKWARD]
    # An operator is more than a bucket holds: each leaves as soon as it is done, a second each.
    starts = [span.start_s + 1.0 for span in backwards]
    assert [span.start_s for span in scatters] == pytest.approx(starts)
    (step,) = of_device(timeline, Kind.OPTIMIZER)
    estimator = Estimator(plan.cluster)
    scatter_s = estimator.reduce_scatter_s(2e8, DEVICES)
    assert step.start_s == pytest.approx(backwards[-1].end_s + scatter_s)
    assert step.duration_s == pytest.approx(estimator.optimizer_step_s(3e8 / 4))
    assert (gather.start_s, gather.bytes) == (step.end_s, 6e8)
    assert gather.duration_s == pytest.approx(estimator.all_gather_s(6e8, DEVICES))


def test_stage_2_leaves_in_one_bucket_where_all_fits_into_it() -> None:
    timeline = simulate(three_operators(2), overlap_slowdown=1.0, bucket_bytes=6e8)
    _, backward = of_device(timeline, Kind.COMPUTE)
    scatter, _ = of_device(timeline, Kind.SYNC)
    assert (scatter.start_s, scatter.bytes) == (backward.end_s, 6e8)


def test_stage_1_all_reduces_once_after_all_micro_batches() -> None:
    plan = three_operators(1, micro_batches=4)
    timeline = simulate(plan)
    (sync,) = of_device(timeline, Kind.SYNC)
    assert sync.start_s == of_device(timeline, Kind.COMPUTE)[-1].end_s
    assert sync.duration_s == pytest.approx(Estimator(plan.cluster).all_reduce_s(6e8, DEVICES))


def test_stage_3_holds_two_operators_whole_while_it_computes() -> None:
    plan = three_operators(3)
    levels = [sample.bytes for sample in simulate(plan).memory if sample.device == 0]
    states = 3e8 * (2 + 2 + 12) / 4
    kept = plan.memory[0].activation_bytes
    assert levels == pytest.approx(
        [states, states + 4e8, states + 4e8 + kept, states + 4e8, states]
    )


def test_tensor_parallel_shards_gather_beside_each_other() -> None:
    # Half of the parameters is cut in two: each device gathers three quarters with one other.
    plan = pipelined_plan(
        ranks=1,
        dp=2,
        tp=2,
        micro_batches=1,
        parameters=100_000_000,
        zero_stage=3,
        cluster=make_cluster(1, 4),
    )
    gather_s = Estimator(plan.cluster).all_gather_s(1.5e8, (0, 2))
    forward, _ = of_device(simulate(plan), Kind.COMPUTE)
    assert forward.wait_s == pytest.approx(gather_s)
    assert {span.bytes for span in of_device(simulate(plan), Kind.SYNC)} == {1.5e8}


def test_operators_of_no_group_gather_nothing() -> None:
    alone = replace(three_operators(3), parameter_groups=())
    assert not of_device(simulate(alone), Kind.SYNC)
