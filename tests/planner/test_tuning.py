"""The search of megatron and deepspeed, against every single configuration of small cases."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from spindle_sim.cluster import Cluster, parse_cluster
from spindle_sim.errors import InfeasibleError
from spindle_sim.estimate import Estimator
from spindle_sim.plan import Plan, validate_plan
from spindle_sim.planner import make_plan
from spindle_sim.planner.contract import contract
from spindle_sim.planner.strategies import deepspeed, megatron
from spindle_sim.planner.strategies.parallel import ParallelConfig, Recompute, parallel_plan
from spindle_sim.planner.strategies.space import Space, configurations, recomputing, tensor_degrees
from spindle_sim.simulator import simulate
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

BUSY = parse_cluster("a800:1x4")
SLOW = parse_cluster("a800:2x2", nic_bandwidth="10Gb/s")


def gpt(*, layers: int = 4, batch: int = 8, width: int = 1024, tasks: int = 1) -> Workload:
    blocks = (
        Block(name="embedding", operator=Embedding(vocabulary=16_000, width=width)),
        Block(
            name="layers",
            operator=TransformerLayer(width=width, heads=8, mlp_width=4 * width, causal=True),
            repeat=layers,
        ),
        Block(
            name="head",
            operator=Projection(inner=width, columns=16_000, logits=True, tied=True),
        ),
    )
    return Workload(
        name="gpt",
        modules=(Module(name="lm", blocks=blocks),),
        tasks=tuple(
            Task(
                name=f"t{index}",
                batch_size=batch,
                uses=(ModuleUse(name="lm", module="lm", tokens=512 << index),),
            )
            for index in range(tasks)
        ),
    )


def every_config(
    workload: Workload, cluster: Cluster, space: Space
) -> Iterator[dict[str, ParallelConfig]]:
    """Every configuration of every task, with one tensor-parallel degree."""
    graph = contract(workload)
    nodes = {
        task.name: [n for n in graph.nodes.values() if n.metaop.task == task.name]
        for task in workload.tasks
    }
    for tp in tensor_degrees(list(graph.nodes.values()), cluster, space):
        choices = [
            [
                one
                for config in configurations(own, cluster, space, tp)
                for one in recomputing(own, space, config)
            ]
            for own in nodes.values()
        ]
        for chosen in product(*choices):
            yield dict(zip(nodes, chosen, strict=True))


def best_of_all(workload: Workload, cluster: Cluster, space: Space) -> float:
    """The shortest simulated iteration of all configurations that are valid, without ZeRO."""
    estimator = Estimator(cluster)
    plans = (
        parallel_plan(workload, cluster, configs, overlap_sync=True, estimator=estimator)
        for configs in every_config(workload, cluster, space)
    )
    return min(simulate(plan).iteration_s for plan in plans if not validate_plan(plan))


def test_the_configurations_of_a_small_model_are_all_there_are() -> None:
    nodes = list(contract(gpt()).nodes.values())
    space = megatron.SPACE
    found = list(configurations(nodes, BUSY, space, 1))

    # pp 1: dp 1, 2, 4 with 4, 3, 2 sizes of micro-batches; pp 2: dp 1, 2; pp 4: dp 1. Where the
    # micro-batches are a multiple of pp, once more with 2 chunks of one layer.
    plain = [config for config in found if config.chunks == 1]
    assert len(plain) == (4 + 3 + 2) + (4 + 3) + 4
    interleaved = [config for config in found if config.chunks > 1]
    assert {(c.pp, c.dp, c.micro_batch, c.chunks) for c in interleaved} == {
        (2, 1, 1, 2),
        (2, 1, 2, 2),
        (2, 1, 4, 2),
        (2, 2, 1, 2),
        (2, 2, 2, 2),
    }
    assert len(set(found)) == len(found)
    assert tensor_degrees(nodes, BUSY, space) == (1, 2, 4)


def test_deepspeed_has_data_parallelism_alone() -> None:
    nodes = list(contract(gpt()).nodes.values())
    found = list(configurations(nodes, BUSY, deepspeed.SPACE, 1))

    assert {(c.tp, c.pp, c.chunks) for c in found} == {(1, 1, 1)}
    assert len(found) == 4 + 3 + 2
    assert tensor_degrees(nodes, BUSY, deepspeed.SPACE) == (1,)


@pytest.mark.parametrize("cluster", [BUSY, SLOW], ids=["one node", "slow network"])
@pytest.mark.parametrize("batch", [2, 8])
def test_megatron_is_within_two_percent_of_the_best_simulated_configuration(
    cluster: Cluster, batch: int
) -> None:
    workload = gpt(batch=batch)
    plan = make_plan(workload, cluster, "megatron", zero1=False)

    assert validate_plan(plan) == ()
    best_s = best_of_all(workload, cluster, megatron.SPACE)
    assert best_s * (1 - 1e-9) <= simulate(plan).iteration_s <= 1.02 * best_s


def test_so_is_deepspeed_with_two_tasks_that_share_their_model() -> None:
    workload = gpt(tasks=2, batch=2, layers=1)
    plan = make_plan(workload, SLOW, "deepspeed", zero1=False)

    best_s = best_of_all(workload, SLOW, deepspeed.SPACE)
    assert best_s * (1 - 1e-9) <= simulate(plan).iteration_s <= 1.02 * best_s


def test_a_pipeline_saves_synchronization_on_a_slow_network() -> None:
    # Of GPT-2 XL with one slow NIC for eight devices, with 64 samples.
    workload = load_workload(Path(__file__).parents[2] / "examples" / "gpt.yaml")
    cluster = parse_cluster("a800:8x8", nic_bandwidth="200Gb/s")
    flat, piped = (make_plan(workload, cluster, name) for name in ("deepspeed", "megatron"))

    assert len({item.devices for item in piped.slices}) > 1
    assert simulate(piped).iteration_s < 0.9 * simulate(flat).iteration_s


@pytest.mark.parametrize("strategy", ["megatron", "deepspeed"])
def test_where_nothing_forces_them_apart_they_are_as_fast_as_seq(strategy: str) -> None:
    workload = builtin_workload("multitask-clip").with_first_tasks(4)
    cluster = parse_cluster("a800:2x8")
    theirs = simulate(make_plan(workload, cluster, strategy)).iteration_s
    plan = make_plan(workload, cluster, "seq", zero1=True)
    seq = simulate(plan, overlap_sync=True).iteration_s

    assert theirs == pytest.approx(seq, rel=0.01)


def large() -> Workload:
    """Seven billion parameters: their states fill two devices of 80 GiB."""
    return gpt(layers=32, width=4096, batch=8)


def fitting(plan: Plan) -> bool:
    peak = max(memory.total_bytes for memory in plan.memory)
    return validate_plan(plan) == () and peak <= plan.cluster.usable_memory_bytes


def test_a_model_that_one_device_cannot_hold_is_divided() -> None:
    plan = make_plan(large(), BUSY, "megatron", zero1=False)

    assert fitting(plan)
    slices = plan.slices
    assert slices[0].tp * len({item.devices for item in slices}) > 1
    assert plan.zero_stage == 0


def test_deepspeed_shards_what_memory_asks_for() -> None:
    plan = make_plan(large(), BUSY, "deepspeed")

    assert fitting(plan)
    assert plan.zero_stage >= 1
    with pytest.raises(InfeasibleError, match="short"):
        make_plan(large(), BUSY, "deepspeed", zero1=False)


def test_what_no_configuration_fits_is_said_with_what_would_help() -> None:
    with pytest.raises(InfeasibleError) as caught:
        make_plan(builtin_workload("qwen-val"), parse_cluster("a800:1"), "megatron")

    message = str(caught.value)
    assert "short" in message
    assert "more devices: at least about" in message
    assert "a GPU with at least" in message


def test_recomputation_is_searched_where_activations_do_not_fit() -> None:
    coupled = builtin_workload("multitask-clip").with_first_tasks(1).with_batch_scale(4)
    plan = make_plan(coupled, parse_cluster("a800:4"), "megatron")

    assert fitting(plan)
    recomputed = sum(item.num_ops for item in plan.slices if item.recompute)
    assert recomputed > 0
    # No more than memory asks for: with one layer less it wouldn't fit.
    (first,) = {(item.tp, item.dp) for item in plan.slices}
    fewer = ParallelConfig(
        tp=first[0], dp=first[1], recompute=Recompute.FULL, recompute_ops=recomputed - 1
    )
    stage = plan.zero_stage
    wanting = parallel_plan(coupled, plan.cluster, {"image-text": fewer}, zero_stage=stage)
    assert not fitting(wanting)


def test_tasks_without_common_modules_may_differ_in_their_tensor_parallelism() -> None:
    heads = {"a": 8, "b": 3}
    modules = tuple(
        Module(
            name=name,
            blocks=(
                Block(
                    name="layers",
                    operator=TransformerLayer(
                        width=96 * count, heads=count, mlp_width=384 * count, causal=True
                    ),
                    repeat=2,
                ),
            ),
        )
        for name, count in heads.items()
    )
    tasks = tuple(
        Task(
            name=name,
            batch_size=4,
            uses=(
                ModuleUse(name="x", module=name, tokens=64),
                ModuleUse(name="y", module=name, tokens=64),
            ),
            flows=(DataFlow(source="x", target="y"),),
        )
        for name in heads
    )
    workload = Workload(name="two", modules=modules, tasks=tasks)

    assert validate_plan(make_plan(workload, BUSY, "megatron")) == ()
