"""What flows where: shapes of the built-in workloads, contexts, and what can't be joined."""

from dataclasses import replace
from itertools import pairwise

import pytest

from spindle_sim.errors import InputError
from spindle_sim.planner.contract import contract
from spindle_sim.workload import (
    BUILTIN_WORKLOADS,
    Block,
    ContrastiveLoss,
    DataFlow,
    Embedding,
    Module,
    ModuleUse,
    Operator,
    Projection,
    Task,
    TransformerLayer,
    Workload,
    builtin_workload,
)
from spindle_sim.workload.tiny import tiny
from spindle_torch.shapes import Activation, sites

LAYER = TransformerLayer(width=8, heads=2, mlp_width=16)


def chain(*operators: Operator, tokens: int = 4) -> Workload:
    """One task that runs modules m0, m1, ... one after the other, an operator each."""
    names = [f"m{index}" for index in range(len(operators))]
    return Workload(
        name="chain",
        modules=tuple(
            Module(name=name, blocks=(Block(name="b", operator=operator),))
            for name, operator in zip(names, operators, strict=True)
        ),
        tasks=(
            Task(
                name="t",
                batch_size=4,
                uses=tuple(
                    ModuleUse(name=name, module=name, tokens=tokens, context_tokens=4)
                    for name in names
                ),
                flows=tuple(DataFlow(source=a, target=b) for a, b in pairwise(names)),
            ),
        ),
    )


@pytest.mark.parametrize("name", sorted(BUILTIN_WORKLOADS))
def test_every_metaop_of_a_tiny_workload_has_a_site_that_fits_its_predecessors(name: str) -> None:
    workload = tiny(builtin_workload(name))
    found = sites(workload)
    nodes = contract(workload).nodes
    assert set(found) == set(nodes)
    for metaop_id, node in nodes.items():
        site = found[metaop_id]
        assert set(site.sources) == set(node.metaop.predecessors)
        assert site.num_ops == node.metaop.num_ops
        assert bool(site.data_tokens) or site.sources
        for source, given in zip(site.sources, site.inputs, strict=True):
            assert found[source].output == given


def test_a_context_travels_until_the_last_layer_that_attends_to_it() -> None:
    found = sites(tiny(builtin_workload("ofasys")))
    layers = found["image-captioning/decoder/layers"]
    assert layers.sources == (
        "image-captioning/encoder/layers",
        "image-captioning/target/embedding",
    )
    assert layers.context_input == 0
    own = Activation(items=1, tokens=2, width=32)
    assert layers.passed == replace(own, context_tokens=4, context_width=32)
    assert layers.output == own
    assert layers.passed.elements == 2 * 32 + 4 * 32


def test_a_language_model_reads_text_behind_the_images() -> None:
    site = sites(tiny(builtin_workload("qwen-val")))["vision-language/llm/embedding"]
    assert site.inputs[0].tokens + site.data_tokens == site.tokens


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (chain(LAYER, replace(LAYER, width=16)), "takes a width of 16, what flows in has 8"),
        (chain(LAYER, Embedding(vocabulary=9, width=8)), "what flows in takes all of them"),
        (chain(LAYER, ContrastiveLoss(width=8)), "compares two inputs, 1 flow in"),
        (chain(Projection(inner=8, columns=8, logits=True), LAYER), "nothing can follow it"),
        (chain(LAYER, replace(LAYER, context_width=16)), "attends to a context of width 16"),
        (builtin_workload("multitask-clip"), "give a module for 'vision/stem'"),
    ],
)
def test_what_cant_be_joined_is_refused_by_name(workload: Workload, message: str) -> None:
    with pytest.raises(InputError, match="task '") as caught:
        sites(workload)
    assert message in str(caught.value)


def test_every_problem_is_told_once() -> None:
    with pytest.raises(InputError) as caught:
        sites(builtin_workload("multitask-clip").with_first_tasks(2))
    assert len(caught.value.problems) == len(set(map(str, caught.value.problems))) == 2
