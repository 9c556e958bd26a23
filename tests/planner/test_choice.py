"""Which plan is Spindle's: never one that a strategy which it considers beats."""

import random
from dataclasses import replace

import pytest

from spindle_sim.cluster import Cluster, parse_cluster
from spindle_sim.errors import InfeasibleError
from spindle_sim.estimate import Estimator
from spindle_sim.planner import make_plan
from spindle_sim.planner.forecast import forecast
from spindle_sim.simulator import simulate
from spindle_sim.workload import Workload, builtin_workload

RIVALS = ("seq", "uniform", "optimus", "stmm")
WORKLOADS = ("multitask-clip", "ofasys", "qwen-val")


def drawn(seed: int) -> tuple[Workload, Cluster]:
    """Give some tasks of a workload of the paper, and a cluster: often slow, often small."""
    rng = random.Random(seed)
    whole = builtin_workload(rng.choice(WORKLOADS))
    names = rng.sample([task.name for task in whole.tasks], rng.randint(1, len(whole.tasks)))
    workload = whole.with_tasks(tuple(task.name for task in whole.tasks if task.name in names))
    cluster = parse_cluster(
        f"{rng.choice(['a800', 'h100'])}:{rng.choice([1, 2, 3, 4])}x{rng.choice([4, 8])}",
        nic_bandwidth=rng.choice([None, "25Gb/s", "50Gb/s", "100Gb/s"]),
        oversubscription=rng.choice([None, 2.0, 8.0]),
    )
    share = rng.choice([0.92, 0.92, 0.5, 0.3]) if whole.name != "qwen-val" else 0.92
    scaled = workload.with_batch_scale(rng.choice([0.25, 0.5, 1.0]))
    return scaled, replace(cluster, usable_memory_fraction=share)


def simulated_s(
    workload: Workload, cluster: Cluster, strategy: str, *, overlap_sync: bool
) -> float:
    """Give the simulated iteration; infinity where the strategy has no plan."""
    try:
        plan = make_plan(workload, cluster, strategy, overlap_sync=overlap_sync)
    except InfeasibleError:
        return float("inf")
    return simulate(plan, overlap_sync=overlap_sync).iteration_s


@pytest.mark.parametrize(
    ("seed", "overlap_sync"),
    [
        *((seed, overlap_sync) for seed in range(4) for overlap_sync in (False, True)),
        # A plan takes seconds: of each further one, one way of synchronizing.
        *(pytest.param(seed, seed % 2 > 0, marks=pytest.mark.slow) for seed in range(4, 24)),
    ],
)
def test_no_strategy_that_spindle_considers_beats_it(seed: int, overlap_sync: bool) -> None:
    workload, cluster = drawn(seed)
    ours = simulated_s(workload, cluster, "spindle", overlap_sync=overlap_sync)
    theirs = [simulated_s(workload, cluster, one, overlap_sync=overlap_sync) for one in RIVALS]

    assert ours <= 1.01 * min(theirs)


@pytest.mark.parametrize("overlap_sync", [False, True])
@pytest.mark.parametrize("devices", [32, 64])
def test_equal_tasks_apart_beat_a_joint_plan_that_synchronizes_all_at_once(
    devices: int, overlap_sync: bool
) -> None:
    workload = builtin_workload("ofasys").with_first_tasks(4)
    cluster = parse_cluster(f"a800:{devices // 8}x8")
    ours, theirs = (
        simulated_s(workload, cluster, one, overlap_sync=overlap_sync)
        for one in ("spindle", "optimus")
    )

    assert ours <= 1.003 * theirs


def test_on_a_slow_network_tasks_stay_apart() -> None:
    # Four tasks on three nodes: a joint plan sends samples and synchronizes over 100 Gb/s cards.
    workload = builtin_workload("multitask-clip").with_first_tasks(4).with_batch_scale(0.5)
    cluster = parse_cluster("a800:3x8", nic_bandwidth="100Gb/s", oversubscription=8.0)
    ours, seq = (
        simulated_s(workload, cluster, one, overlap_sync=True) for one in ("spindle", "seq")
    )

    assert ours < 0.4 * seq


def test_a_task_whose_parameters_take_longer_to_synchronize_than_to_train_is_pipelined() -> None:
    workload = builtin_workload("qwen-val").with_tasks(("vision-language",))
    cluster = parse_cluster("a800:4x8")
    plan = make_plan(workload, cluster, overlap_sync=True)

    assert plan.strategy == "spindle"
    assert any(one.micro_batches > 1 for one in plan.rounds)
    ours = simulate(plan, overlap_sync=True).iteration_s
    assert ours < 0.9 * simulated_s(workload, cluster, "stmm", overlap_sync=True)
    # Where gradients can't synchronize beside the backward, no plan that does is taken.
    assert not make_plan(workload, cluster, overlap_sync=False).overlap_sync


@pytest.mark.parametrize("strategy", ["spindle", *RIVALS, "megatron"])
@pytest.mark.parametrize(
    ("name", "tasks", "nodes"), [("ofasys", 7, 2), ("multitask-clip", 4, 4), ("qwen-val", 3, 2)]
)
def test_the_forecast_is_near_the_simulator(
    strategy: str, name: str, tasks: int, nodes: int
) -> None:
    workload = builtin_workload(name).with_first_tasks(tasks)
    plan = make_plan(workload, parse_cluster(f"a800:{nodes}x8"), strategy)
    seconds = forecast(plan, Estimator(plan.cluster))

    beside_s = simulate(plan, overlap_sync=True).iteration_s
    assert seconds.beside_s == pytest.approx(beside_s, rel=0.03)
    if not plan.overlap_sync:
        assert seconds.apart_s == pytest.approx(simulate(plan).iteration_s, rel=0.03)
