"""Whole plans: every strategy on whatever a user may bring gives a valid plan, or says why not."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_sim.cluster import Cluster, parse_cluster
from spindle_sim.errors import InfeasibleError, UsageError
from spindle_sim.plan import dump_plan, schedule, validate_plan
from spindle_sim.planner import STRATEGIES, make_plan
from spindle_sim.simulator import simulate
from spindle_sim.workload import (
    Block,
    Custom,
    DataFlow,
    Module,
    ModuleUse,
    Projection,
    Task,
    TransformerLayer,
    Workload,
    builtin_workload,
)


def module(name: str, *, layers: int, width: int, frozen: bool = False) -> Module:
    stem = Block(name="stem", operator=Projection(inner=3 * width, columns=width))
    layer = TransformerLayer(width=width, heads=8, mlp_width=4 * width)
    return Module(
        name=name,
        blocks=(stem, Block(name="layers", operator=layer, repeat=layers)),
        frozen=frozen,
    )


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """A few tasks over shared modules: chains and fans, any batch, some modules frozen."""
    modules = tuple(
        module(
            f"m{index}",
            layers=draw(st.integers(1, 12)),
            width=draw(st.sampled_from([64, 256, 1024])),
            frozen=draw(st.booleans()),
        )
        for index in range(draw(st.integers(1, 4)))
    )
    tasks = []
    for index in range(draw(st.integers(1, 5))):
        count = draw(st.integers(1, 3))
        uses = tuple(
            ModuleUse(
                name=f"u{place}",
                module=draw(st.sampled_from(modules)).name,
                tokens=draw(st.integers(1, 300)),
            )
            for place in range(count)
        )
        chain = tuple(
            DataFlow(source=f"u{place}", target=f"u{place + 1}") for place in range(count - 1)
        )
        fan = tuple(DataFlow(source=f"u{p}", target=f"u{count - 1}") for p in range(count - 1))
        tasks.append(
            Task(
                name=f"t{index}",
                batch_size=draw(st.sampled_from([1, 2, 7, 12, 64, 97])),
                uses=uses,
                flows=draw(st.sampled_from([chain, fan])),
            )
        )
    return Workload(name="random", modules=modules, tasks=tuple(tasks))


clusters = st.sampled_from(
    [
        parse_cluster(name)
        for name in ("a800:1", "h100:1x2", "a800:3", "a800:8", "a800:2x4", "a100:3x8")
    ]
)


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=20)
@given(workload=workloads(), cluster=clusters)
def test_every_plan_of_every_strategy_is_valid(
    strategy: str, workload: Workload, cluster: Cluster
) -> None:
    plan = make_plan(workload, cluster, strategy)

    assert validate_plan(plan) == ()
    assert {item.metaop for item in plan.slices} == {metaop.id for metaop in plan.metaops}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("name", "tasks", "cluster"),
    [
        ("multitask-clip", 10, "a800:8"),
        ("multitask-clip", 4, "a800:2x8"),
        ("ofasys", 7, "a800:4x8"),
        ("qwen-val", 3, "a800:2x8"),
    ],
)
def test_the_papers_workloads_give_valid_plans_that_fit(
    strategy: str, name: str, tasks: int, cluster: str
) -> None:
    plan = make_plan(
        builtin_workload(name).with_first_tasks(tasks), parse_cluster(cluster), strategy
    )

    assert validate_plan(plan) == ()
    peak = max(memory.total_bytes for memory in plan.memory)
    assert peak <= plan.cluster.usable_memory_bytes


@given(workload=workloads())
@settings(max_examples=15)
def test_on_one_device_all_strategies_agree(workload: Workload) -> None:
    cluster = parse_cluster("a800:1")
    iterations = {
        strategy: simulate(make_plan(workload, cluster, strategy)).iteration_s
        for strategy in STRATEGIES
    }

    assert max(iterations.values()) == pytest.approx(min(iterations.values()), rel=1e-9)


def test_the_same_inputs_and_seed_give_the_same_bytes() -> None:
    workload = builtin_workload("multitask-clip").with_first_tasks(4)
    cluster = parse_cluster("a800:2x8")

    first, second = (dump_plan(make_plan(workload, cluster, seed=3)) for _ in range(2))

    assert first == second


@pytest.mark.parametrize("num_devices", [1, 2, 3, 5, 7])
def test_more_tasks_than_devices_and_odd_device_counts_work(num_devices: int) -> None:
    workload = builtin_workload("multitask-clip").with_batch_scale(1 / 16)
    cluster = parse_cluster(f"h200:{num_devices}")
    for strategy in STRATEGIES:
        assert validate_plan(make_plan(workload, cluster, strategy)) == (), strategy


def test_a_prime_batch_runs_on_one_device_or_on_as_many_as_samples() -> None:
    shared = module("shared", layers=4, width=256)
    task = Task(name="t", batch_size=7, uses=(ModuleUse(name="u", module="shared", tokens=64),))
    workload = Workload(name="prime", modules=(shared,), tasks=(task,))
    plan = make_plan(workload, parse_cluster("a800:8"))

    assert {item.dp for item in plan.slices} <= {1, 7}


def test_seq_keeps_tasks_apart_and_uses_every_device() -> None:
    plan = make_plan(
        builtin_workload("multitask-clip").with_first_tasks(3), parse_cluster("a800:8"), "seq"
    )
    tasks = {metaop.id: metaop.task for metaop in plan.metaops}

    assert len({(item.round, tasks[item.metaop]) for item in plan.slices}) == 3
    # A coupled loss may run on fewer devices, where gathering its features costs more than that.
    coupled = {metaop.id for metaop in plan.metaops if metaop.batch_coupled}
    assert all(len(item.devices) == 8 for item in plan.slices if item.metaop not in coupled)


def test_optimus_gives_the_heaviest_task_most_devices() -> None:
    plan = make_plan(
        builtin_workload("multitask-clip").with_first_tasks(4), parse_cluster("a800:2x8"), "optimus"
    )
    sizes: dict[str, int] = {}
    tasks = {metaop.id: metaop.task for metaop in plan.metaops}
    for item in plan.slices:
        task = tasks[item.metaop]
        sizes[task] = max(sizes.get(task, 0), len(item.devices))

    assert max(sizes, key=lambda task: sizes[task]) == "image-text"
    assert min(sizes.values()) < max(sizes.values())


def test_uniform_gives_equal_tasks_equal_devices() -> None:
    ten = builtin_workload("multitask-clip")
    equal = replace(ten, tasks=tuple(replace(ten.tasks[0], name=f"t{i}") for i in range(4)))
    plan = make_plan(equal, parse_cluster("a800:2x8"), "uniform")
    used = {
        task: {d for s in plan.slices if tasks[s.metaop] == task for d in s.devices}
        for tasks in [{metaop.id: metaop.task for metaop in plan.metaops}]
        for task in tasks.values()
    }

    assert sorted(len(devices) for devices in used.values()) == [4, 4, 4, 4]
    assert len(set.union(*used.values())) == 16


def test_stmm_runs_the_towers_of_a_task_side_by_side() -> None:
    plan = make_plan(
        builtin_workload("multitask-clip").with_first_tasks(1), parse_cluster("a800:8"), "stmm"
    )
    spans = {item.slice: item for item in schedule(plan).slices}
    towers = {"image-text/vision/layers": set[int](), "image-text/text/layers": set[int]()}
    starts = {name: float("inf") for name in towers}
    ends = dict.fromkeys(towers, 0.0)
    for item in plan.slices:
        if item.metaop in towers:
            starts[item.metaop] = min(starts[item.metaop], spans[item.id].forward_start_s)
            ends[item.metaop] = max(ends[item.metaop], spans[item.id].forward_end_s)

    assert max(starts.values()) < min(ends.values())


@pytest.mark.parametrize(("tasks", "cluster"), [(4, "a800:2x8"), (10, "a800:8x8"), (7, "a800:4x8")])
def test_spindle_is_within_7_percent_of_the_theorem_1_optimum(tasks: int, cluster: str) -> None:
    plan = make_plan(
        builtin_workload("multitask-clip").with_first_tasks(tasks), parse_cluster(cluster)
    )

    assert plan.optimum_s > 0
    assert schedule(plan).makespan_s <= 1.07 * plan.optimum_s


def test_too_little_memory_is_an_error_that_says_what_would_help() -> None:
    workload = builtin_workload("qwen-val").with_first_tasks(1)

    with pytest.raises(InfeasibleError) as refused:
        make_plan(workload, parse_cluster("a800:1"))

    text = str(refused.value)
    assert "device 0" in text
    assert "short" in text
    assert "more devices" in text


@pytest.mark.parametrize("name", ["spindel", "", "SEQ"])
def test_an_unknown_strategy_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(UsageError, match="spindle, seq, uniform, optimus, stmm"):
        make_plan(builtin_workload("ofasys"), parse_cluster("a800:8"), name)


def test_recomputation_is_chosen_only_where_memory_is_short() -> None:
    clip = builtin_workload("multitask-clip").with_first_tasks(2)
    roomy = make_plan(clip, parse_cluster("h200:2x8"), "uniform")
    tight = make_plan(clip, parse_cluster("a800:2"), "uniform")

    assert not any(item.recompute for item in roomy.slices)
    assert any(item.recompute for item in tight.slices)


@pytest.mark.parametrize("zero1", [True, False])
def test_zero1_can_be_asked_for(zero1: bool) -> None:
    plan = make_plan(
        builtin_workload("ofasys").with_first_tasks(2), parse_cluster("a800:8"), zero1=zero1
    )

    assert plan.zero1 is zero1
    assert validate_plan(plan) == ()


def test_several_losses_on_one_tower_run_one_after_the_other() -> None:
    # Three losses over three towers, all light and all beside the same tower: they must not ask for
    # more devices in one stage than there are.
    clip = builtin_workload("multitask-clip")
    uses = [ModuleUse(name=name, module=name, tokens=200) for name in ("vision", "text", "audio")]
    pairs = (("vision", "text"), ("vision", "audio"), ("text", "audio"))
    losses = [ModuleUse(name=f"{a}-{b}", module="contrastive", tokens=1) for a, b in pairs]
    flows = [
        DataFlow(source=source, target=loss.name)
        for loss, pair in zip(losses, pairs, strict=True)
        for source in pair
    ]
    task = Task(name="three", batch_size=64, uses=(*uses, *losses), flows=tuple(flows))
    plan = make_plan(replace(clip, tasks=(task,)), parse_cluster("a100:1x4"))

    assert validate_plan(plan) == ()
    assert not any(item.recompute for item in plan.slices)


def test_on_a_slow_network_spindle_leaves_data_where_it_is_as_seq_does() -> None:
    # A projection whose output dwarfs its compute, and layers on it: dividing the devices between
    # them would send gigabytes over a 10 Gb/s card.
    wide = Module(
        name="wide", blocks=(Block(name="x", operator=Projection(inner=64, columns=65536)),)
    )
    narrow = Module(
        name="narrow", blocks=(Block(name="x", operator=Projection(inner=65536, columns=64)),)
    )
    uses = (
        ModuleUse(name="wide", module="wide", tokens=500),
        ModuleUse(name="narrow", module="narrow", tokens=500),
    )
    flows = (DataFlow(source="wide", target="narrow"),)
    task = Task(name="t", batch_size=64, uses=uses, flows=flows)
    workload = Workload(name="slow", modules=(wide, narrow), tasks=(task,))
    cluster = parse_cluster("h800:7x1", nic_bandwidth="10Gb/s")
    ours, theirs = (
        simulate(make_plan(workload, cluster, strategy)).iteration_s
        for strategy in ("spindle", "seq")
    )

    assert ours <= 1.02 * theirs


def test_a_module_that_no_task_uses_and_an_operator_that_costs_nothing_do_no_harm() -> None:
    unused = Module(
        name="unused",
        blocks=(Block(name="x", operator=Projection(inner=60_000, columns=60_000)),),
    )
    nothing = Module(
        name="nothing",
        blocks=(Block(name="x", operator=Custom(name="x", parameters=0, kernels=0)),),
    )
    large = module("large", layers=40, width=4096)
    uses = (
        ModuleUse(name="nothing", module="nothing", tokens=1),
        ModuleUse(name="large", module="large", tokens=64),
    )
    flows = (DataFlow(source="nothing", target="large"),)
    task = Task(name="t", batch_size=8, uses=uses, flows=flows)
    workload = Workload(name="odd", modules=(unused, nothing, large), tasks=(task,))
    for strategy in STRATEGIES:
        assert validate_plan(make_plan(workload, parse_cluster("a800:8"), strategy)) == ()
