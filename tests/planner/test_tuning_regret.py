"""What megatron and deepspeed find, against all plans of their space that are known otherwise."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spindle_sim.cluster import Cluster, parse_cluster
from spindle_sim.errors import InfeasibleError
from spindle_sim.estimate import Estimator
from spindle_sim.plan import Plan, validate_plan
from spindle_sim.planner import make_plan
from spindle_sim.planner.context import Context, Settings
from spindle_sim.planner.contract import contract
from spindle_sim.planner.strategies import deepspeed, megatron
from spindle_sim.planner.strategies.parallel import ParallelConfig, configured_plan, parallel_plan
from spindle_sim.planner.strategies.space import Space, configurations, tensor_degrees
from spindle_sim.planner.strategies.tuning import tune
from spindle_sim.simulator import simulate, simulated_s
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
    builtin_workload,
    load_workload,
)

CLUSTERS = [
    parse_cluster("a800:1x8"),
    parse_cluster("a800:2x4"),
    parse_cluster("a800:2x4", nic_bandwidth="10Gb/s"),
    parse_cluster("a100:2x8"),
]
# By how much a known plan may be faster: of those that the search judges nearly equal it simulates
# a few. Of iterations of milliseconds what it is off by is a larger part.
REGRET = 1.01
SHORT_REGRET = 1.02


def layers(name: str, count: int, width: int) -> Block:
    return Block(
        name=name,
        operator=TransformerLayer(width=width, heads=8, mlp_width=4 * width, causal=True),
        repeat=count,
    )


def multimodal(*, width: int, depth: int, batches: tuple[int, ...]) -> Workload:
    """A language model; every other task has an encoder of its own before it."""
    text = Module(
        name="text",
        blocks=(
            Block(name="embedding", operator=Embedding(vocabulary=8_000, width=width)),
            layers("layers", depth, width),
            Block(
                name="head",
                operator=Projection(inner=width, columns=8_000, logits=True, tied=True),
            ),
        ),
    )
    modules, tasks = [text], []
    for index, batch in enumerate(batches):
        uses = [ModuleUse(name="text", module="text", tokens=256)]
        flows = []
        if index % 2 == 0:
            encoder = f"encoder{index}"
            modules.append(Module(name=encoder, blocks=(layers("layers", 2, width),)))
            uses.insert(0, ModuleUse(name="encoder", module=encoder, tokens=128 << index))
            flows.append(DataFlow(source="encoder", target="text"))
        tasks.append(Task(name=f"t{index}", batch_size=batch, uses=tuple(uses), flows=tuple(flows)))
    return Workload(name="multimodal", modules=tuple(modules), tasks=tuple(tasks))


def context_of(workload: Workload, cluster: Cluster) -> Context:
    return Context(
        workload=workload,
        cluster=cluster,
        graph=contract(workload),
        estimator=Estimator(cluster),
        settings=Settings(tp=()),
    )


def iterations_s(workload: Workload, cluster: Cluster, space: Space) -> list[tuple[int, float]]:
    """The ZeRO stage and simulated iteration of all that a search finds, its choice first."""
    context = context_of(workload, cluster)
    found: list[tuple[int, float]] = []
    for one in tune(context, space):
        plan = configured_plan(
            context, one.configs, zero_stage=one.zero_stage, overlap_sync=True, strategy="megatron"
        )
        assert validate_plan(plan) == ()
        found.append((one.zero_stage, simulate(plan).iteration_s))
    return found


def in_space(plan: Plan) -> bool:
    """Whether each round runs one task on the cluster's first devices, all of them alike."""
    metaops = plan.metaop_by_id()
    for number in {item.round for item in plan.slices}:
        own = [item for item in plan.slices if item.round == number]
        ways = {(item.devices, item.dp, item.tp, item.recompute) for item in own}
        if len({metaops[item.metaop].task for item in own}) > 1 or len(ways) > 1:
            return False
        if own[0].devices != tuple(range(len(own[0].devices))):
            return False
    return True


def seq_s(workload: Workload, cluster: Cluster) -> Iterator[float]:
    """The simulated iterations of `seq`, without and with ZeRO-1, where megatron could have it."""
    for zero1 in (False, True):
        try:
            plan = make_plan(workload, cluster, "seq", zero1=zero1)
        except InfeasibleError:
            continue
        if in_space(plan):
            yield simulate(plan, overlap_sync=True).iteration_s


def check(workload: Workload, cluster: Cluster, *, regret: float = REGRET) -> None:
    tuned = iterations_s(workload, cluster, megatron.SPACE)
    data_parallel = iterations_s(workload, cluster, deepspeed.SPACE)
    known = [*seq_s(workload, cluster), *(seconds for _, seconds in tuned)]
    known += [seconds for stage, seconds in data_parallel if stage in megatron.SPACE.zero_stages]

    assert tuned[0][1] <= regret * min(known)
    assert data_parallel[0][1] <= regret * min(seconds for _, seconds in data_parallel)


@settings(
    max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(
    width=st.sampled_from([256, 1024, 2048]),
    depth=st.sampled_from([2, 4]),
    batches=st.lists(st.sampled_from([4, 8, 32]), min_size=1, max_size=3).map(tuple),
    cluster=st.sampled_from(CLUSTERS),
)
def test_no_plan_that_deepspeed_or_seq_finds_in_megatrons_space_is_faster(
    width: int, depth: int, batches: tuple[int, ...], cluster: Cluster
) -> None:
    workload = multimodal(width=width, depth=depth, batches=batches)
    check(workload, cluster, regret=SHORT_REGRET)


@pytest.mark.parametrize(
    ("name", "tasks", "cluster"),
    [
        ("qwen-val", 3, "a800:2x8"),
        ("qwen-val", 2, "a800:2x8"),
        ("ofasys", 4, "a800:1x8"),
        ("ofasys", 4, "a800:2x8"),
        ("multitask-clip", 4, "a800:1x8"),
        ("multitask-clip", 7, "a800:2x8"),
    ],
)
def test_nor_is_one_with_the_models_of_the_paper(name: str, tasks: int, cluster: str) -> None:
    check(builtin_workload(name).with_first_tasks(tasks), parse_cluster(cluster))


def test_tasks_come_in_an_order_in_which_most_gradients_hide_behind_later_tasks() -> None:
    workload = builtin_workload("qwen-val")
    context = context_of(workload, parse_cluster("a800:4x8"))
    best = tune(context, megatron.SPACE)[0]
    each_s = {
        order: simulate(
            configured_plan(
                context,
                {task: best.configs[task] for task in order},
                zero_stage=best.zero_stage,
                overlap_sync=True,
                strategy="megatron",
            )
        ).iteration_s
        for order in permutations(best.configs)
    }

    assert max(each_s.values()) > 1.05 * min(each_s.values())  # it matters
    assert each_s[tuple(best.configs)] <= 1.002 * min(each_s.values())


@pytest.mark.slow
@settings(
    max_examples=6, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(
    shape=st.sampled_from(["2x2", "2x4", "4x2"]),
    nics=st.sampled_from([1, 2]),
    bandwidth=st.sampled_from(["5Gb/s", "10Gb/s", "25Gb/s", "100Gb/s"]),
    width=st.sampled_from([1024, 2048]),
    batch=st.sampled_from([8, 16]),
)
def test_whatever_the_nics_no_configuration_at_all_is_much_faster(
    shape: str, nics: int, bandwidth: str, width: int, batch: int
) -> None:
    cluster = parse_cluster(f"a800:{shape}", nic_bandwidth=bandwidth, nics_per_node=nics)
    workload = multimodal(width=width, depth=4, batches=(batch,))
    context = context_of(workload, cluster)
    nodes = list(context.graph.nodes.values())
    each_s = [
        simulated_s(plan)
        for tp in tensor_degrees(nodes, cluster, megatron.SPACE)
        for config in configurations(nodes, cluster, megatron.SPACE, tp)
        for plan in [
            parallel_plan(workload, cluster, {"t0": config}, zero_stage=1, overlap_sync=True)
        ]
        if not validate_plan(plan)
    ]

    assert simulated_s(make_plan(workload, cluster, "megatron")) <= 1.02 * min(each_s)


def test_stages_that_share_a_slow_nic_are_not_interleaved_over_it() -> None:
    # Interleaved, each micro-batch crosses the one NIC of a node three times as often.
    workload = load_workload(Path(__file__).parents[2] / "examples" / "gpt-7b.yaml")
    cluster = parse_cluster("a100:2x8", nic_bandwidth="10Gb/s", nics_per_node=1)
    plain = ParallelConfig(pp=8, dp=2, micro_batch=1)
    known = [
        parallel_plan(workload, cluster, {"train": config}, zero_stage=1, overlap_sync=True)
        for config in (plain, replace(plain, chunks=2))
    ]
    plain_s, interleaved_s = (simulated_s(plan) for plan in known)

    assert interleaved_s > 1.2 * plain_s  # it matters
    assert simulated_s(make_plan(workload, cluster, "megatron")) <= 1.005 * plain_s


@pytest.mark.parametrize(("stage", "within"), [(1, 0.03), (2, 0.02), (3, 0.02)])
def test_sharded_gradients_are_forecast_as_they_are_simulated(stage: int, within: float) -> None:
    # Scattering takes longer than the backward, and goes on beside the next task's forward.
    context = context_of(builtin_workload("qwen-val"), parse_cluster("a800:8x8"))
    space = replace(deepspeed.SPACE, zero_stages=(stage,))
    best = tune(context, space)[0]
    plan = configured_plan(
        context, best.configs, zero_stage=stage, overlap_sync=True, strategy="deepspeed"
    )

    assert best.verdict.seconds == pytest.approx(simulated_s(plan), rel=within)


@pytest.mark.parametrize("strategy", ["megatron", "deepspeed"])
def test_states_are_sharded_where_that_is_faster_though_memory_does_not_ask_for_it(
    strategy: str,
) -> None:
    workload = builtin_workload("ofasys").with_first_tasks(2)
    cluster = parse_cluster("a800:1x8")
    chosen = make_plan(workload, cluster, strategy)
    whole = make_plan(workload, cluster, strategy, zero1=False)

    assert chosen.zero_stage > whole.zero_stage == 0
    assert simulate(chosen).iteration_s < simulate(whole).iteration_s


def test_on_one_device_nothing_is_sharded() -> None:
    workload = multimodal(width=256, depth=2, batches=(4,))

    assert make_plan(workload, parse_cluster("a800:1x1"), "megatron").zero_stage == 0


@given(
    depth=st.integers(1, 4),
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2]),
    dps=st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4])),
)
@settings(max_examples=25, deadline=None)
def test_stage_one_is_never_worse_than_the_stage_that_it_stands_for(
    depth: int, tp: int, pp: int, dps: tuple[int, int]
) -> None:
    workload = multimodal(width=256, depth=depth, batches=(8, 8))
    cluster = parse_cluster("a800:2x8")
    configs = {
        f"t{index}": ParallelConfig(tp=tp, pp=pp if tp * pp * dp <= 16 else 1, dp=dp)
        for index, dp in enumerate(dps)
    }
    whole, sharded = (
        parallel_plan(workload, cluster, configs, zero_stage=stage, overlap_sync=True)
        for stage in (0, 1)
    )

    assert simulate(sharded).iteration_s <= simulate(whole).iteration_s * (1 + 1e-9)
    for own, other in zip(sharded.memory, whole.memory, strict=True):
        assert own.total_bytes <= other.total_bytes * (1 + 1e-9)
