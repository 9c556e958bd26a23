"""Modules, tasks and workloads: what they refuse, and the parts that can be taken of one."""

from collections.abc import Callable

import pytest

from spindle_sim.errors import InputError
from spindle_sim.workload import (
    Block,
    ContrastiveLoss,
    Custom,
    DataFlow,
    Embedding,
    Gemm,
    Module,
    ModuleUse,
    OperatorCost,
    Projection,
    Task,
    TransformerLayer,
    Variant,
    Workload,
    builtin_workload,
)

LAYER = TransformerLayer(width=64, heads=4, mlp_width=256)
MODULE = Module(name="tower", blocks=(Block(name="layers", operator=LAYER, repeat=2),))
USE = ModuleUse(name="tower", module="tower", tokens=16)


def test_a_task_reports_all_of_its_mistakes_with_their_fields() -> None:
    with pytest.raises(InputError) as caught:
        Task(
            name="t",
            batch_size=0,
            uses=(USE, USE),
            flows=(DataFlow(source="towr", target="tower"), DataFlow(source="tower", target="x")),
        )
    assert [problem.path for problem in caught.value.problems] == [
        "batch_size",
        "uses[1]",
        "flows[0].source",
        "flows[1].target",
    ]


def test_flows_in_a_circle_are_refused_with_the_uses_on_it() -> None:
    uses = tuple(ModuleUse(name=name, module="tower", tokens=1) for name in "abc")
    flows = tuple(DataFlow(source=s, target=t) for s, t in ("ab", "bc", "cb"))
    with pytest.raises(InputError, match="among b, c form a cycle"):
        Task(name="t", batch_size=1, uses=uses, flows=flows)


def test_a_workload_names_every_unknown_module() -> None:
    uses = (USE, ModuleUse(name="other", module="towre", tokens=1))
    task = Task(name="t", batch_size=1, uses=uses)
    with pytest.raises(InputError, match="did you mean 'tower'") as caught:
        Workload(name="w", modules=(MODULE,), tasks=(task,))
    assert [problem.path for problem in caught.value.problems] == ["tasks[0].uses[1].module"]


def test_cross_attention_needs_something_to_attend_to() -> None:
    layer = TransformerLayer(width=64, heads=4, mlp_width=256, context_width=64)
    module = Module(name="tower", blocks=(Block(name="layers", operator=layer),))
    with pytest.raises(InputError, match="attends to a context"):
        Workload(name="w", modules=(module,), tasks=(Task(name="t", batch_size=1, uses=(USE,)),))


@pytest.mark.parametrize(
    "make",
    [
        *(
            lambda name=name, make=make: make(name)
            for name in ("a/b", "", " ", "a\x1b[1m", "a\a", " a", "a\n")
            for make in (
                lambda name: Block(name=name, operator=LAYER),
                lambda name: Module(name=name, blocks=MODULE.blocks),
                lambda name: ModuleUse(name=name, module="tower", tokens=1),
                lambda name: Task(name=name, batch_size=1, uses=(USE,)),
                lambda name: Workload(
                    name=name,
                    modules=(MODULE,),
                    tasks=(Task(name="t", batch_size=1, uses=(USE,)),),
                ),
            )
        ),
        lambda: Block(name="b", operator=LAYER, repeat=0),
        lambda: Block(name="b", operator=LAYER, tokens=0),
        lambda: Module(name="m", blocks=()),
        lambda: Module(name="m", blocks=MODULE.blocks * 2),
        lambda: ModuleUse(name="u", module="m", tokens=0),
        lambda: ModuleUse(name="u", module="m", tokens=1, items=0),
        lambda: ModuleUse(name="u", module="m", tokens=1, context_tokens=-1),
        lambda: Task(name="t", batch_size=1, uses=()),
        lambda: Workload(name="w", modules=(MODULE,), tasks=()),
        lambda: TransformerLayer(width=64, heads=5, mlp_width=1),
        lambda: TransformerLayer(width=64, heads=4, mlp_width=1, key_value_heads=3),
        lambda: TransformerLayer(width=64, heads=4, mlp_width=1, extra_parameters=-1),
        lambda: Embedding(vocabulary=0, width=1),
        lambda: Projection(inner=1, columns=0),
        lambda: ContrastiveLoss(width=0),
        lambda: Custom(name="c", parameters=-1),
        lambda: Custom(name="c", parameters=1, sharded_parameters=2),
        lambda: Custom(name="c", parameters=1, traffic_bytes=float("nan")),
        lambda: Custom(name="c", parameters=1, saved_bytes=float("inf")),
        lambda: Gemm(rows=-1, inner=1, columns=1),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_made(make: Callable[[], object]) -> None:
    with pytest.raises(InputError):
        make()


def test_operators_are_tied_to_parameter_sets_that_are_there() -> None:
    table = Module(name="table", blocks=(Block(name="x", operator=Custom(name="t", parameters=8)),))
    borrower = Custom(name="b", parameters=0, tied_to=("table/x",))
    module = Module(name="b", blocks=(Block(name="x", operator=borrower),))
    tasks = tuple(
        Task(name=name, batch_size=1, uses=(ModuleUse(name=name, module=name, tokens=1),))
        for name in ("table", "b")
    )
    workload = Workload(name="w", modules=(table, module), tasks=tasks)
    assert workload.with_tasks(["b"]).modules == (table, module)
    with pytest.raises(InputError, match="is tied to 'table/x', which is no parameter set"):
        Workload(name="w", modules=(module,), tasks=tasks[1:])


def test_a_custom_operator_has_the_figures_of_its_tokens() -> None:
    figures = OperatorCost(traffic_bytes=7.0)
    variant = Variant(tokens=3, context_tokens=1, cost=figures)
    operator = Custom(name="c", parameters=1, traffic_bytes=5.0, variants=(variant,))
    assert operator.cost(tokens=3, context_tokens=1) is figures
    assert operator.cost(tokens=3).traffic_bytes == 5.0


def test_the_first_tasks_come_with_the_modules_they_use_alone() -> None:
    part = builtin_workload("multitask-clip").with_first_tasks(4)
    assert [task.name for task in part.tasks] == [
        "image-text",
        "video-audio",
        "audio-text",
        "depth-vision",
    ]
    assert {module.name for module in part.modules} == {
        "vision",
        "text",
        "audio",
        "depth",
        "contrastive",
    }


def test_named_tasks_keep_the_workloads_order() -> None:
    part = builtin_workload("ofasys").with_tasks(["summarization", "image-captioning"])
    assert [task.name for task in part.tasks] == ["image-captioning", "summarization"]


@pytest.mark.parametrize("count", [0, 11, -1])
def test_more_tasks_than_there_are_cannot_be_taken(count: int) -> None:
    with pytest.raises(InputError, match="can't be taken"):
        builtin_workload("multitask-clip").with_first_tasks(count)


def test_an_unknown_task_is_refused_with_those_that_exist() -> None:
    with pytest.raises(InputError, match="image-text"):
        builtin_workload("multitask-clip").with_tasks(["nothing"])


def test_a_batch_scale_keeps_one_sample_at_least() -> None:
    workload = builtin_workload("qwen-val")
    assert [task.batch_size for task in workload.with_batch_scale(0.5).tasks] == [64, 64, 32]
    assert [task.batch_size for task in workload.with_batch_scale(1e-9).tasks] == [1, 1, 1]
    for scale in (0.0, -1.0, float("nan")):
        with pytest.raises(InputError, match="must be positive"):
            workload.with_batch_scale(scale)
