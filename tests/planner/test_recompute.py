"""Recomputation of whole MetaOps and of parts of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spindle_sim.cluster import parse_cluster
from spindle_sim.plan import schedule, validate_plan
from spindle_sim.planner import make_plan
from spindle_sim.planner.metagraph import DraftSlice
from spindle_sim.planner.recompute import split
from spindle_sim.workload import builtin_workload


def draft(first_op: int, num_ops: int, stage: int) -> DraftSlice:
    return DraftSlice(
        metaop="m", first_op=first_op, num_ops=num_ops, round=0, stage=stage, num_devices=2
    )


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 60))
def test_the_first_operators_are_recomputed_and_none_is_lost(sizes: list[int], count: int) -> None:
    drafts = [draft(sum(sizes[:i]), size, i) for i, size in enumerate(sizes)]
    parts = split(drafts, {"m": count})

    covered = [op for part in parts for op in range(part.first_op, part.first_op + part.num_ops)]
    again = [
        op
        for part in parts
        if part.recompute
        for op in range(part.first_op, part.first_op + part.num_ops)
    ]
    assert covered == list(range(sum(sizes)))
    assert again == covered[:count]
    assert [part.stage for part in parts] == list(range(len(parts)))


def test_a_device_that_is_short_recomputes_about_what_is_short() -> None:
    # Two devices hold the 345 GB of activations of image-text only if most layers recompute; four
    # hold most of them, so that only some layers need to.
    workload = builtin_workload("multitask-clip").with_first_tasks(1)
    shares = []
    for name in ("a800:4", "a800:5", "a800:8"):
        plan = make_plan(workload, parse_cluster(name), "seq")
        assert validate_plan(plan) == ()
        again = sum(item.num_ops for item in plan.slices if item.recompute)
        shares.append(again / sum(item.num_ops for item in plan.slices))
        peak = max(memory.total_bytes for memory in plan.memory)
        if again:
            assert peak > 0.7 * plan.cluster.usable_memory_bytes, "more recomputed than needed"

    assert 0.1 < shares[0] < 0.9
    assert shares[-1] == 0.0


def test_recomputing_costs_a_forward() -> None:
    workload = builtin_workload("multitask-clip").with_first_tasks(1)
    plan = make_plan(workload, parse_cluster("a800:4"), "seq")
    layers = [item for item in plan.slices if item.metaop == "image-text/vision/layers"]
    again = next(item for item in layers if item.recompute)
    once = next(item for item in layers if not item.recompute)

    forward_s = once.forward_s / once.num_ops
    extra_s = again.backward_s / again.num_ops - once.backward_s / once.num_ops
    assert extra_s == pytest.approx(forward_s)
    assert schedule(plan).makespan_s > 0
