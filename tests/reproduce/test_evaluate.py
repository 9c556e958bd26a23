"""One case: the planner's plans, the simulator's times, and nothing of its own."""

from dataclasses import replace

import pytest

from spindle_sim.plan import schedule
from spindle_sim.planner import STRATEGIES, make_plan
from spindle_sim.reproduce.batches import RECIPES, evaluated_workload
from spindle_sim.reproduce.cases import SYSTEMS, Case, Change, merged, part_cases
from spindle_sim.reproduce.evaluate import evaluate_case, the_cluster
from spindle_sim.reproduce.outcome import CaseResult
from spindle_sim.reproduce.placement import placed_in_order
from spindle_sim.simulator import simulate
from spindle_sim.workload import BUILTIN_WORKLOADS, builtin_workload

CASE = Case(workload="multitask-clip", tasks=("audio-text",), gpus=8, strategies=("spindle", "seq"))


@pytest.fixture(scope="module")
def found() -> CaseResult:
    return evaluate(CASE)


def evaluate(case: Case) -> CaseResult:
    (found,) = evaluate_case(case, seed=0)
    return found


def test_a_case_has_the_times_of_its_plans(found: CaseResult) -> None:
    workload = evaluated_workload("multitask-clip", ("audio-text",))
    for name in CASE.strategies:
        plan = make_plan(workload, the_cluster(8), name, zero1=True)
        row = found.of(name)
        assert row is not None
        assert row.iteration_s == simulate(plan, overlap_sync=True).iteration_s
        assert row.isolated_s == simulate(plan).iteration_s
        assert row.makespan_s == schedule(plan).makespan_s


def test_a_checkpoint_has_parameters_and_optimizer_states_once(found: CaseResult) -> None:
    assert (
        found.state_bytes == 14 * evaluated_workload("multitask-clip", ("audio-text",)).parameters
    )
    seq = found.of("seq")
    assert seq is not None
    # One node, which reads everything once.
    assert seq.reload_bytes == pytest.approx(found.state_bytes)


def test_an_infeasible_strategy_is_a_result() -> None:
    case = Case(
        workload="qwen-val",
        tasks=("vision-language",),
        gpus=8,
        strategies=("seq",),
        change=Change(name="little memory", memory=0.1),
    )
    (row,) = evaluate(case).outcomes
    assert not row.feasible
    assert "device" in row.error


def test_a_change_reaches_cluster_batches_and_launches() -> None:
    change = Change(name="c", nic=0.25, nics_per_node=2, memory=2.0)
    before, after = the_cluster(16), the_cluster(16, change)
    assert after.nic_bandwidth_bytes_per_s == before.nic_bandwidth_bytes_per_s / 4
    assert after.nics_per_node == 2
    assert after.gpu.memory_bytes == 2 * before.gpu.memory_bytes
    slow = evaluate(
        Case(
            workload="multitask-clip",
            tasks=("audio-text",),
            gpus=8,
            strategies=("seq",),
            change=Change(name="launch", launch=50.0),
        )
    ).of("seq")
    fast = evaluate(CASE).of("seq")
    assert slow is not None
    assert fast is not None
    assert slow.iteration_s > fast.iteration_s


def test_every_task_of_the_papers_workloads_has_a_batch_with_a_source() -> None:
    for name, recipes in RECIPES.items():
        assert name in BUILTIN_WORKLOADS
        assert set(recipes) == {task.name for task in builtin_workload(name).tasks}
        assert all(recipe.source for recipe in recipes.values())
    halved = evaluated_workload("ofasys", 4, 0.5)
    assert [task.batch_size for task in halved.tasks] == [
        RECIPES["ofasys"][task.name].batch_size // 2 for task in halved.tasks
    ]


def test_built_in_batches_and_other_images_reach_the_workload() -> None:
    built_in = evaluated_workload("ofasys", 7, 0.5, Change(name="b", built_in_batches=True))
    known = builtin_workload("ofasys")
    assert [task.batch_size * 2 for task in built_in.tasks] == [
        task.batch_size for task in known.tasks
    ]
    large = evaluated_workload("ofasys", 7, change=Change(name="i", image_tokens=34 * 34))
    assert large.parameters == known.parameters  # positions are interpolated
    tokens = {use.name: use.tokens for use in large.tasks[0].uses}
    before = {use.name: use.tokens for use in known.tasks[0].uses}
    assert tokens["vision"] == 1156
    assert tokens["encoder"] - before["encoder"] == 1156 - 256


def test_changes_of_the_simulation_alone_share_one_plan() -> None:
    free = Change(name="free", free_network=True)
    apart = Change(name="apart", overlap_sync=False)
    asked = replace(CASE, gpus=16, strategies=("seq",), also=(free, apart))
    results = evaluate_case(asked, seed=0)
    assert [one.case.change.name for one in results] == ["", "free", "apart"]
    assert all(one.case.also == () for one in results)
    plain, cheap, late = (one.of("seq") for one in results)
    assert plain is not None
    assert cheap is not None
    assert late is not None
    assert cheap.iteration_s < plain.iteration_s < late.iteration_s
    assert late.iteration_s == plain.isolated_s
    alone = evaluate(replace(asked, also=(), change=free)).of("seq")
    assert alone is not None
    assert alone.iteration_s == cheap.iteration_s


def test_the_sequential_placement_may_have_a_schedule_of_its_own() -> None:
    change = Change(name="own", sequential_plans=True)
    case = Case(
        workload="ofasys", tasks=4, gpus=16, strategies=(), sequential=True, batch_scale=0.25
    )
    found = evaluate(replace(case, change=change))
    assert found.outcomes == ()
    assert found.sequential is not None
    workload = evaluated_workload("ofasys", 4, 0.25)
    plan = make_plan(workload, the_cluster(16), placement="sequential", zero1=True)
    assert found.sequential.isolated_s == simulate(plan).iteration_s


def test_a_change_concerns_what_it_can_change() -> None:
    one_node, two_nodes = CASE, replace(CASE, gpus=16)
    network = Change(name="n", nic=0.25)
    assert not network.concerns(one_node)
    assert network.concerns(two_nodes)
    assert Change(name="m", memory=2.0, nic=0.25).concerns(one_node)
    images = Change(name="i", image_tokens=1024)
    assert not images.concerns(two_nodes)
    assert images.concerns(replace(CASE, workload="ofasys"))
    assert Change(name="b", batch=0.5).is_batch
    assert not Change(name="b", batch=0.5, launch=4.0).is_batch
    assert Change(name="f", free_network=True).keeps_plans
    assert not network.keeps_plans


def test_parts_share_their_cases() -> None:
    sizes = (8, 16, 32, 64)
    wanted = [case for part in ("fig8", "fig10", "fig11") for case in part_cases(part, sizes, 1.0)]
    shared = merged(wanted)
    assert len(shared) == len(part_cases("fig8", sizes, 1.0)) == 24
    assert all(case.strategies == SYSTEMS for case in shared)
    both = merged([*part_cases("fig9", sizes, 1.0), *part_cases("placement", sizes, 1.0)])
    assert sum(case.sequential for case in both) == 24


def test_systems_that_the_planner_lacks_are_left_out() -> None:
    case = Case(workload="multitask-clip", tasks=("audio-text",), gpus=8, strategies=("seq", "x"))
    assert [one.strategy for one in evaluate(case).outcomes] == ["seq"]
    assert {"spindle", "seq", "uniform", "optimus", "stmm"} <= set(STRATEGIES)


def test_the_other_placement_keeps_slices_and_schedule() -> None:
    plan = make_plan(evaluated_workload("multitask-clip", 4, 0.25), the_cluster(16))
    moved = placed_in_order(plan)
    assert [item.id for item in moved.slices] == [item.id for item in plan.slices]
    for before, after in zip(plan.slices, moved.slices, strict=True):
        assert len(set(after.devices)) == len(before.devices)
        assert set(after.devices) <= set(range(16))
        assert (after.num_ops, after.forward_s) == (before.num_ops, before.forward_s)
    assert {d for item in moved.slices for d in item.devices} == set(range(16))
    assert schedule(moved).makespan_s == pytest.approx(schedule(plan).makespan_s, rel=0.05)
    firsts = [item for item in moved.slices if item.start_s == 0 and item.round == 0]
    assert firsts[0].devices == tuple(range(len(firsts[0].devices)))
