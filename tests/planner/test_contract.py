"""Contraction of the operators' graph into MetaOps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spindle_sim.plan import Backward
from spindle_sim.planner.contract import contract
from spindle_sim.workload import (
    BUILTIN_WORKLOADS,
    Block,
    ContrastiveLoss,
    DataFlow,
    Module,
    ModuleUse,
    OperatorNode,
    Projection,
    Task,
    TransformerLayer,
    Workload,
    builtin_workload,
    operator_graph,
)
from tests.builders import make_workload

LAYER = TransformerLayer(width=64, heads=4, mlp_width=256)
STEM = Projection(inner=32, columns=64)


def tower(name: str, *, repeat: int = 3, frozen: bool = False) -> Module:
    blocks = (
        Block(name="stem", operator=STEM),
        Block(name="layers", operator=LAYER, repeat=repeat),
    )
    return Module(name=name, blocks=blocks, frozen=frozen)


def two_towers(*, frozen: tuple[str, ...] = ()) -> Workload:
    names = ("vision", "text")
    loss = Module(name="loss", blocks=(Block(name="loss", operator=ContrastiveLoss(width=64)),))
    return Workload(
        name="two towers",
        modules=(*(tower(name, frozen=name in frozen) for name in names), loss),
        tasks=(
            Task(
                name="pairs",
                batch_size=8,
                uses=(
                    ModuleUse(name="see", module="vision", tokens=10, items=2),
                    ModuleUse(name="read", module="text", tokens=5),
                    ModuleUse(name="loss", module="loss", tokens=1),
                ),
                flows=(
                    DataFlow(source="see", target="loss"),
                    DataFlow(source="read", target="loss"),
                ),
            ),
        ),
    )


def test_equal_operators_in_a_row_become_one_metaop_and_others_stay_apart() -> None:
    graph = contract(two_towers())
    assert {name: node.metaop.num_ops for name, node in graph.nodes.items()} == {
        "pairs/see/stem": 1,
        "pairs/see/layers": 3,
        "pairs/read/stem": 1,
        "pairs/read/layers": 3,
        "pairs/loss/loss": 1,
    }
    assert [(edge.source, edge.target) for edge in graph.edges] == [
        ("pairs/see/stem", "pairs/see/layers"),
        ("pairs/read/stem", "pairs/read/layers"),
        ("pairs/see/layers", "pairs/loss/loss"),
        ("pairs/read/layers", "pairs/loss/loss"),
    ]


def test_sizes_are_of_one_operator_and_one_sample_with_all_its_items() -> None:
    graph = contract(two_towers())
    layers = graph.nodes["pairs/see/layers"].metaop
    cost = LAYER.cost(tokens=10)
    assert layers.flops == pytest.approx(cost.flops * 2 * 8)
    assert layers.output_bytes == cost.output_bytes * 2
    assert layers.saved_bytes == cost.saved_bytes * 2
    assert layers.input_bytes == STEM.cost(tokens=10).output_bytes * 2
    assert layers.parameter_set == "vision/layers"
    assert layers.level == 1
    assert graph.nodes["pairs/see/stem"].metaop.input_bytes == 0.0


def test_a_metaop_with_two_inputs_takes_both() -> None:
    graph = contract(two_towers())
    loss = graph.nodes["pairs/loss/loss"].metaop
    assert loss.predecessors == ("pairs/see/layers", "pairs/read/layers")
    sources = [graph.nodes[name].metaop for name in loss.predecessors]
    assert loss.input_bytes == sum(source.output_bytes for source in sources)
    assert loss.batch_coupled


def test_a_module_run_twice_in_a_row_gives_two_metaops_with_the_same_parameters() -> None:
    workload = Workload(
        name="twice",
        modules=(Module(name="m", blocks=(Block(name="x", operator=LAYER, repeat=2),)),),
        tasks=(
            Task(
                name="t",
                batch_size=4,
                uses=tuple(ModuleUse(name=name, module="m", tokens=5) for name in ("one", "two")),
                flows=(DataFlow(source="one", target="two"),),
            ),
        ),
    )
    metaops = [node.metaop for node in contract(workload).nodes.values()]
    assert [(m.id, m.num_ops, m.parameter_set) for m in metaops] == [
        ("t/one/x", 2, "m/x"),
        ("t/two/x", 2, "m/x"),
    ]


@pytest.mark.parametrize(
    ("frozen", "metaop", "backward"),
    [
        ((), "pairs/see/stem", Backward.WEIGHT_ONLY),
        ((), "pairs/see/layers", Backward.FULL),
        ((), "pairs/loss/loss", Backward.FULL),
        (("vision",), "pairs/see/stem", Backward.NONE),
        (("vision",), "pairs/see/layers", Backward.NONE),
        (("vision",), "pairs/loss/loss", Backward.FULL),
        (("vision", "text"), "pairs/loss/loss", Backward.NONE),  # it has no weights
    ],
)
def test_the_backward_computes_what_training_needs(
    frozen: tuple[str, ...], metaop: str, backward: Backward
) -> None:
    assert contract(two_towers(frozen=frozen)).nodes[metaop].metaop.backward is backward


def test_a_frozen_module_after_a_trained_one_passes_gradients_on() -> None:
    graph = contract(make_workload({"t": ("a", "b", "c")}, frozen=("b",), repeat=2))
    kinds = [node.metaop.backward for node in graph.nodes.values()]
    assert kinds == [Backward.FULL, Backward.INPUT_ONLY, Backward.FULL]
    assert all(edge.gradient for edge in graph.edges)


def test_no_gradient_flows_back_to_a_frozen_beginning() -> None:
    graph = contract(make_workload({"t": ("a", "b", "c")}, frozen=("a",)))
    assert [edge.gradient for edge in graph.edges] == [False, True]


@given(st.sampled_from(sorted(BUILTIN_WORKLOADS)))
def test_metaops_hold_every_operator_once_and_follow_their_predecessors(name: str) -> None:
    workload = builtin_workload(name)
    operators = operator_graph(workload)
    graph = contract(workload)
    nodes: list[OperatorNode] = [operators.nodes[name]["operator"] for name in operators]
    total = sum(node.cost.flops * node.items * node.batch_size for node in nodes)
    metaops = [node.metaop for node in graph.nodes.values()]
    assert sum(m.num_ops for m in metaops) == len(operators)
    assert sum(m.num_ops * m.flops for m in metaops) == pytest.approx(total)
    seen: set[str] = set()
    for metaop in metaops:
        assert seen.issuperset(metaop.predecessors)
        assert all(graph.nodes[p].metaop.level < metaop.level for p in metaop.predecessors)
        seen.add(metaop.id)


def test_edges_between_metaops_carry_the_whole_batch() -> None:
    workload = two_towers()
    operators = operator_graph(workload)
    edge = next(e for e in contract(workload).edges if e.source == "pairs/see/layers")
    assert edge.bytes == operators.edges["pairs/see/layers/2", "pairs/loss/loss/0"]["bytes"]
