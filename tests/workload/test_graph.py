"""The unified graph of random workloads (section 3): every operator once, every flow an edge."""

from itertools import pairwise

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spindle_sim.workload import (
    Block,
    ContrastiveLoss,
    DataFlow,
    Embedding,
    Module,
    ModuleUse,
    Operator,
    OperatorNode,
    Projection,
    Task,
    TransformerLayer,
    Workload,
    builtin_workload,
    operator_graph,
)

OPERATORS: st.SearchStrategy[Operator] = st.one_of(
    st.builds(
        TransformerLayer,
        width=st.sampled_from([16, 32]),
        heads=st.sampled_from([1, 4]),
        mlp_width=st.integers(1, 64),
        gated=st.booleans(),
    ),
    st.builds(Embedding, vocabulary=st.integers(1, 99), width=st.integers(1, 9)),
    st.builds(Projection, inner=st.integers(1, 9), columns=st.integers(1, 9)),
    st.builds(ContrastiveLoss, width=st.integers(1, 9)),
)


@st.composite
def modules(draw: st.DrawFn, name: str) -> Module:
    count = draw(st.integers(1, 3))
    blocks = tuple(
        Block(
            name=f"block{index}",
            operator=draw(OPERATORS),
            repeat=draw(st.integers(1, 4)),
            tokens=draw(st.none() | st.integers(1, 5)),
        )
        for index in range(count)
    )
    return Module(name=name, blocks=blocks, frozen=draw(st.booleans()))


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    pool = tuple(draw(modules(f"module{index}")) for index in range(draw(st.integers(1, 4))))
    tasks = []
    for number in range(draw(st.integers(1, 4))):
        uses = tuple(
            ModuleUse(
                name=f"use{index}",
                module=draw(st.sampled_from(pool)).name,
                tokens=draw(st.integers(1, 50)),
                items=draw(st.integers(1, 3)),
            )
            for index in range(draw(st.integers(1, 4)))
        )
        pairs = [(s, t) for t in range(len(uses)) for s in range(t) if draw(st.booleans())]
        flows = tuple(DataFlow(source=f"use{s}", target=f"use{t}") for s, t in pairs)
        tasks.append(
            Task(
                name=f"task{number}",
                batch_size=draw(st.integers(1, 64)),
                uses=uses,
                flows=flows,
            )
        )
    return Workload(name="random", modules=pool, tasks=tuple(tasks))


def nodes_of(workload: Workload) -> list[OperatorNode]:
    graph = operator_graph(workload)
    return [graph.nodes[name]["operator"] for name in graph]


@given(workloads())
def test_every_operator_of_every_use_is_a_node_once(workload: Workload) -> None:
    expected = sum(
        block.repeat
        for task in workload.tasks
        for use in task.uses
        for block in workload.module(use.module).blocks
    )
    found = nodes_of(workload)
    assert len({node.id for node in found}) == len(found) == expected


@given(workloads())
def test_the_graph_has_no_cycle_and_joins_no_two_tasks(workload: Workload) -> None:
    graph = operator_graph(workload)
    assert nx.is_directed_acyclic_graph(graph)
    task_of = {name: graph.nodes[name]["operator"].task for name in graph}
    assert all(task_of[source] == task_of[target] for source, target in graph.edges)


@given(workloads())
def test_edges_are_the_chains_within_uses_and_the_flows_between_them(workload: Workload) -> None:
    graph = operator_graph(workload)
    chains = graph.number_of_nodes() - sum(len(task.uses) for task in workload.tasks)
    flows = sum(len(task.flows) for task in workload.tasks)
    assert graph.number_of_edges() == chains + flows


@given(workloads())
def test_an_edge_carries_the_output_of_the_whole_batch(workload: Workload) -> None:
    graph = operator_graph(workload)
    for source, target in graph.edges:
        node: OperatorNode = graph.nodes[source]["operator"]
        assert (
            graph.edges[source, target]["bytes"]
            == node.cost.output_bytes * node.items * node.batch_size
        )


@given(workloads())
def test_a_block_with_tokens_of_its_own_replaces_those_of_the_use(workload: Workload) -> None:
    for node in nodes_of(workload):
        blocks = {block.name: block for block in workload.module(node.module).blocks}
        use = {use.name: use for use in workload.task(node.task).uses}[node.use]
        assert node.tokens == (blocks[node.block].tokens or use.tokens)


@given(workloads(), st.integers(2, 5))
def test_flows_grow_with_the_batch(workload: Workload, factor: int) -> None:
    before = operator_graph(workload).edges
    after = operator_graph(workload.with_batch_scale(factor)).edges
    assert all(after[edge]["bytes"] == factor * before[edge]["bytes"] for edge in before)


def test_the_graph_of_multitask_clip_is_as_large_as_its_towers() -> None:
    graph = operator_graph(builtin_workload("multitask-clip").with_first_tasks(1))
    # vision: stem, 32 layers, head; text: stem, 24 layers, head; the loss.
    assert graph.number_of_nodes() == 34 + 26 + 1
    assert graph.number_of_edges() == 33 + 25 + 2
    assert graph.edges["image-text/vision/layers/0", "image-text/vision/layers/1"][
        "bytes"
    ] == pytest.approx(0.6579e6 * 1024, rel=1e-4)


def test_a_context_travels_within_its_use_as_far_as_it_is_attended_to() -> None:
    plain = TransformerLayer(width=16, heads=4, mlp_width=8)
    across = TransformerLayer(width=16, heads=4, mlp_width=8, context_width=32)
    wide = TransformerLayer(width=32, heads=4, mlp_width=8)
    workload = Workload(
        name="w",
        modules=(
            Module(name="encoder", blocks=(Block(name="b", operator=wide),)),
            Module(
                name="decoder",
                blocks=(
                    Block(name="before", operator=plain),
                    Block(name="across", operator=across, repeat=2),
                    Block(name="behind", operator=plain),
                ),
            ),
            Module(name="after", blocks=(Block(name="b", operator=plain),)),
        ),
        tasks=(
            Task(
                name="t",
                batch_size=3,
                uses=(
                    ModuleUse(name="source", module="encoder", tokens=5),
                    ModuleUse(name="target", module="decoder", tokens=7, context_tokens=5, items=2),
                    ModuleUse(name="last", module="after", tokens=7),
                ),
                flows=(
                    DataFlow(source="source", target="target"),
                    DataFlow(source="target", target="last"),
                ),
            ),
        ),
    )
    graph = operator_graph(workload)
    own, context = 3 * 2 * 2 * 7 * 16, 3 * 2 * 2 * 5 * 32
    decoder = ["before/0", "across/0", "across/1", "behind/0"]
    names = ["t/source/b/0", *(f"t/target/{name}" for name in decoder), "t/last/b/0"]
    sizes = [graph.edges[ends]["bytes"] for ends in pairwise(names)]
    assert sizes == [3 * 2 * 5 * 32, own + context, own + context, own, own]
