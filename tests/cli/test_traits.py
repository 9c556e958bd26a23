"""What the notes under the comparison say of a plan, and that they are true of it."""

from dataclasses import replace

from spindle_sim.cli.traits import (
    num_rounds,
    num_stages,
    plan_note,
    recomputed_metaops,
    tensor_parallel,
)
from spindle_sim.plan import Plan
from tests.builders import Part, make_cluster, make_plan, make_workload
from tests.pipelines import pipelined_plan


def two_tasks(*, rounds: tuple[int, int] = (0, 1), strategy: str = "spindle", batch: int) -> Plan:
    """Give t and u, a module each, on one device of 80 GB; 3 MB of activations a sample each."""
    workload = make_workload({"t": ("a",), "u": ("b",)}, batch=batch, parameters=1)
    parts = [
        Part(metaop="t/a/x", devices=(0,), round=rounds[0]),
        Part(metaop="u/b/x", devices=(0,), round=rounds[1], stage=1),
    ]
    plan = make_plan(workload, make_cluster(1, 1), parts)
    return replace(plan, strategy=strategy)


def test_micro_batches_and_the_zero_stage_are_told() -> None:
    plan = pipelined_plan(ranks=1, dp=4, micro_batches=8, zero_stage=3)
    assert plan_note(plan) == (
        "gradients accumulated over up to 8 micro-batches;"
        " optimizer states, gradients and parameters sharded (ZeRO-3)"
    )


def test_a_plain_plan_has_no_note() -> None:
    assert plan_note(two_tasks(rounds=(0, 0), batch=8)) == ""


def test_rounds_are_laid_to_the_activations_only_where_they_do_not_fit_together() -> None:
    # Two tasks of 3 MB a sample: 48 MB for 8 samples fits in 80 GB, 120 GB for 20,000 doesn't.
    assert plan_note(two_tasks(batch=8)) == "2 rounds"
    note = plan_note(two_tasks(batch=20_000))
    assert note.startswith("2 rounds, since all tasks' activations together (111.76 GiB) don't fit")


def test_rounds_of_other_strategies_are_not_laid_to_memory() -> None:
    assert plan_note(two_tasks(batch=20_000, strategy="seq")) == "2 rounds, one a task"
    assert plan_note(two_tasks(batch=20_000, strategy="uniform")) == "2 rounds"
    assert plan_note(two_tasks(batch=20_000, strategy="somebody-else's")) == "2 rounds"


def test_recomputation_sharding_and_tensor_parallelism_are_named() -> None:
    workload = make_workload({"t": ("a", "b"), "u": ("a",)})
    parts = [
        Part(metaop="t/a/x", devices=(0, 1), tp=2, recompute=True),
        Part(metaop="t/b/x", devices=(0, 1), stage=1),
        Part(metaop="u/a/x", devices=(0, 1), tp=2, recompute=True, round=1),
    ]
    plan = make_plan(workload, make_cluster(1, 2), parts, zero1=True)
    assert (num_rounds(plan), num_stages(plan)) == (2, 3)
    assert (recomputed_metaops(plan), tensor_parallel(plan)) == (2, 2)
    assert plan_note(plan) == (
        "2 rounds; 2 of 3 MetaOps recomputed; optimizer states sharded (ZeRO-1);"
        " tensor parallelism up to 2"
    )
