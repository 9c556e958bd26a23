"""One configuration by hand: what its plan looks like, in closed forms, and what is refused."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spindle_sim.cluster import Cluster, parse_cluster
from spindle_sim.errors import UsageError
from spindle_sim.estimate import Estimator
from spindle_sim.plan import Order, Plan, schedule, validate_plan
from spindle_sim.planner.contract import contract
from spindle_sim.planner.strategies.parallel import ParallelConfig, Recompute, parallel_plan
from spindle_sim.planner.strategies.stages import balanced
from spindle_sim.workload import (
    Block,
    ContrastiveLoss,
    DataFlow,
    Embedding,
    Module,
    ModuleUse,
    Projection,
    Task,
    TransformerLayer,
    Workload,
)

CLUSTER = parse_cluster("a100:2x8")


def gpt(*, layers: int = 8, batch: int = 64, width: int = 1024) -> Workload:
    """One language model, one task."""
    blocks = (
        Block(name="embedding", operator=Embedding(vocabulary=32_000, width=width)),
        Block(
            name="layers",
            operator=TransformerLayer(width=width, heads=16, mlp_width=4 * width, causal=True),
            repeat=layers,
        ),
        Block(
            name="head",
            operator=Projection(inner=width, columns=32_000, logits=True, tied=True),
        ),
    )
    use = ModuleUse(name="lm", module="lm", tokens=1024)
    return Workload(
        name="gpt",
        modules=(Module(name="lm", blocks=blocks),),
        tasks=(Task(name="train", batch_size=batch, uses=(use,)),),
    )


def two_towers() -> Workload:
    """A contrastive task of two towers of four layers and six."""
    towers = tuple(
        Module(
            name=name,
            blocks=(
                Block(
                    name="layers",
                    operator=TransformerLayer(width=512, heads=8, mlp_width=2048),
                    repeat=count,
                ),
            ),
        )
        for name, count in (("left", 4), ("right", 6))
    )
    loss = Module(name="loss", blocks=(Block(name="x", operator=ContrastiveLoss(width=512)),))
    uses = tuple(ModuleUse(name=m.name, module=m.name, tokens=64) for m in (*towers, loss))
    flows = tuple(DataFlow(source=m.name, target="loss") for m in towers)
    task = Task(name="pair", batch_size=64, uses=uses, flows=flows)
    return Workload(name="pair", modules=(*towers, loss), tasks=(task,))


def planned(config: ParallelConfig, *, cluster: Cluster = CLUSTER, **kinds: int) -> Plan:
    plan = parallel_plan(gpt(**kinds), cluster, {"train": config})
    assert validate_plan(plan) == ()
    return plan


def test_ranks_are_ordered_tensor_then_data_then_pipeline() -> None:
    plan = planned(ParallelConfig(tp=2, pp=2, dp=4, micro_batch=4))

    groups = {item.stage: item.devices for item in plan.slices}
    assert groups == {0: tuple(range(8)), 1: tuple(range(8, 16))}
    # Rank = pipeline * (dp * tp) + data * tp + tensor: gradients are shared with stride tp.
    assert {group.devices for group in plan.parameter_groups} == {
        (0, 2, 4, 6),
        (1, 3, 5, 7),
        (8, 10, 12, 14),
        (9, 11, 13, 15),
    }


def test_layers_are_divided_evenly_between_an_embedding_and_a_head() -> None:
    plan = planned(ParallelConfig(pp=4, dp=2, micro_batch=8))

    by_stage: dict[int, list[tuple[str, int, int]]] = {}
    for item in plan.slices:
        name = item.metaop.rsplit("/", 1)[1]
        by_stage.setdefault(item.stage, []).append((name, item.first_op, item.num_ops))
    assert by_stage == {
        0: [("embedding", 0, 1), ("layers", 0, 2)],
        1: [("layers", 2, 2)],
        2: [("layers", 4, 2)],
        3: [("layers", 6, 2), ("head", 0, 1)],
    }


def test_micro_batches_of_equal_stages_take_m_plus_p_less_one_of_their_times() -> None:
    # With a vast number of layers' time the embedding and head would be nothing; here they're none.
    workload = gpt(layers=8)
    (module,) = workload.modules
    bare = Workload(
        name="bare",
        modules=(Module(name="lm", blocks=module.blocks[1:2]),),
        tasks=workload.tasks,
    )
    plan = parallel_plan(bare, CLUSTER, {"train": ParallelConfig(pp=4, dp=2, micro_batch=4)})

    one_s = plan.slices[1].forward_s + plan.slices[1].backward_s
    assert plan.rounds[0].micro_batches == 8
    assert plan.rounds[0].order is Order.ONE_FORWARD_ONE_BACKWARD
    assert schedule(plan).makespan_s == pytest.approx((8 + 4 - 1) * one_s, rel=1e-3)


def test_interleaving_divides_the_pipelines_bubble_by_the_chunks() -> None:
    plain, interleaved = (
        planned(ParallelConfig(pp=4, dp=2, micro_batch=4, chunks=chunks)) for chunks in (1, 2)
    )

    busy_s = 8 * sum(item.forward_s + item.backward_s for item in plain.slices if item.stage == 3)
    bubbles = [schedule(plan).makespan_s - busy_s for plan in (plain, interleaved)]
    assert {item.stage for item in interleaved.slices} == set(range(8))
    assert bubbles[1] < 0.6 * bubbles[0]


def test_full_recomputation_takes_layers_and_as_many_as_are_asked_for() -> None:
    full = planned(ParallelConfig(pp=2, dp=8, recompute=Recompute.FULL))
    some = planned(ParallelConfig(pp=2, dp=8, recompute=Recompute.FULL, recompute_ops=3))

    assert sum(item.num_ops for item in full.slices if item.recompute) == 8
    assert {item.metaop for item in full.slices if item.recompute} == {"train/lm/layers"}
    assert [item.num_ops for item in some.slices if item.recompute] == [3, 3]


def test_a_slice_takes_what_the_estimator_says_of_one_micro_batch() -> None:
    plan = planned(
        ParallelConfig(
            tp=2, pp=2, dp=4, micro_batch=2, recompute=Recompute.FULL, sequence_parallel=True
        )
    )
    node = contract(plan.workload).nodes["train/lm/layers"]
    forward_s, backward_s = Estimator(CLUSTER).operation_s(
        node.operator, node.metaop.backward, samples=2, dp=4, tp=2, recompute=True
    )

    (first, _) = [item for item in plan.slices if item.metaop == "train/lm/layers"]
    assert first.forward_s == pytest.approx(4 * forward_s)
    assert first.backward_s == pytest.approx(4 * backward_s)
    assert first.sequence_parallel


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_zero_stages_divide_states_one_after_another(stage: int) -> None:
    plan = parallel_plan(gpt(), CLUSTER, {"train": ParallelConfig(dp=16)}, zero_stage=stage)
    whole = parallel_plan(gpt(), CLUSTER, {"train": ParallelConfig(dp=16)})

    assert validate_plan(plan) == ()
    assert plan.zero_stage == stage
    now, then = plan.memory[0], whole.memory[0]
    assert now.optimizer_bytes == pytest.approx(then.optimizer_bytes / (16 if stage > 0 else 1))
    assert now.gradient_bytes == pytest.approx(then.gradient_bytes / (16 if stage > 1 else 1))
    assert (now.parameter_bytes < then.parameter_bytes) is (stage > 2)


def test_a_pipeline_is_never_cut_between_two_towers() -> None:
    for pp in (2, 3, 4, 8):
        plan = parallel_plan(two_towers(), CLUSTER, {"pair": ParallelConfig(pp=pp, dp=1)})
        assert validate_plan(plan) == ()
        devices = {item.id: item.devices for item in plan.slices}
        left = [item.devices for item in plan.slices if "left" in item.metaop]
        right = [item.devices for item in plan.slices if "right" in item.metaop]
        # The second tower begins where the first one ends: a stage waits for the one before it.
        assert left[-1] == right[0]
        assert len(set(devices.values())) == pp
        times = schedule(plan)
        total_s = sum(item.forward_s + item.backward_s for item in plan.slices)
        assert times.makespan_s == pytest.approx(total_s)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (ParallelConfig(tp=3), "tp 3 neither divides the 8 devices of an island"),
        (ParallelConfig(dp=3), "dp 3 x micro_batch 1 doesn't divide batch 64"),
        (ParallelConfig(dp=32), "32 devices, a100:2x8 has 16"),
        (ParallelConfig(pp=16), "16 stages are more than the 10"),
        (ParallelConfig(pp=2, chunks=2), "multiple of it"),
        (ParallelConfig(micro_batch=0), "at least 1"),
    ],
)
def test_impossible_configurations_are_refused(config: ParallelConfig, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parallel_plan(gpt(), CLUSTER, {"train": config})


def test_all_mistakes_of_all_tasks_come_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        parallel_plan(gpt(), CLUSTER, {"wrong": ParallelConfig()})

    assert len(caught.value.problems) == 2


def test_a_coupled_batch_cannot_be_cut() -> None:
    with pytest.raises(UsageError, match="needs its whole batch at once"):
        parallel_plan(two_towers(), CLUSTER, {"pair": ParallelConfig(dp=2, micro_batch=8)})


@given(times_s=st.lists(st.floats(0.1, 9), min_size=1, max_size=9), data=st.data())
def test_balanced_cuts_are_the_best_of_all(times_s: list[float], data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, len(times_s)))

    def longest(cuts: tuple[int, ...]) -> float:
        return max(sum(times_s[a:b]) for a, b in pairwise(cuts))

    found = balanced(times_s, parts)
    best = min(
        longest((0, *inner, len(times_s)))
        for inner in combinations(range(1, len(times_s)), parts - 1)
    )
    assert len(found) == parts + 1
    assert all(a < b for a, b in pairwise(found))
    assert longest(found) == pytest.approx(best, rel=1e-5)
