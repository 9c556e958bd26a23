"""What the notes under the comparison say of a plan, and that they are true of it."""

from dataclasses import replace

from spindle_sim import builtin_workload, make_plan, parse_cluster
from spindle_sim.cli.traits import (
    num_rounds,
    num_stages,
    plan_note,
    recomputed_metaops,
    tensor_parallel,
)
from spindle_sim.plan import Plan
from tests.builders import Part, make_cluster, make_workload
from tests.builders import make_plan as make_plan_by_hand


def two_tasks(*, rounds: tuple[int, int] = (0, 1), strategy: str = "spindle", batch: int) -> Plan:
    """Give t and u, a module each, on one device of 80 GB; 3 MB of activations a sample each."""
    workload = make_workload({"t": ("a",), "u": ("b",)}, batch=batch, parameters=1)
    parts = [
        Part(metaop="t/a/x", devices=(0,), round=rounds[0]),
        Part(metaop="u/b/x", devices=(0,), round=rounds[1], stage=1),
    ]
    plan = make_plan_by_hand(workload, make_cluster(1, 1), parts)
    return replace(plan, strategy=strategy)


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


def test_a_large_model_recomputes_shards_and_says_so() -> None:
    plan = make_plan(builtin_workload("qwen-val"), parse_cluster("a800:2x8"), "seq")
    assert num_rounds(plan) == 3
    assert num_stages(plan) >= num_rounds(plan)
    recomputed = {item.metaop for item in plan.slices if item.recompute}
    assert recomputed_metaops(plan) == len(recomputed) > 0
    assert tensor_parallel(plan) > 1
    assert plan_note(plan) == (
        f"3 rounds, one a task; {len(recomputed)} of {len(plan.metaops)} MetaOps recomputed;"
        f" optimizer states sharded (ZeRO-1); tensor parallelism up to {tensor_parallel(plan)}"
    )
