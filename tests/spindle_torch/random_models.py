"""Random multi-task models of every operator kind: shared, frozen, with fan-out and fan-in.

Hypothesis decides, so that it can shrink what fails; the first of several options is the plainest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from hypothesis import strategies as st

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

__all__ = ["models"]

WIDTH, VOCABULARY = 8, 16
T = TypeVar("T")


@dataclass(frozen=True)
class _Chooser:
    draw: st.DrawFn

    def choice(self, options: Sequence[T]) -> T:
        return self.draw(st.sampled_from(options))

    def sample(self, options: Sequence[T], count: int) -> list[T]:
        return self.draw(st.permutations(options))[:count]


@st.composite
def models(draw: st.DrawFn) -> Workload:
    """Give models of two or three tasks over seven modules."""
    rng = _Chooser(draw)
    tasks = tuple(_task(rng, f"t{index}") for index in range(rng.choice((2, 3))))
    used = {use.module for task in tasks for use in task.uses}
    if "head" in used:
        used.add("text")  # the head is tied to its table
        tasks = (*tasks, _text_task())
    modules = tuple(module for module in _modules(rng) if module.name in used)
    return Workload(name="random", modules=modules, tasks=tasks)


def _modules(rng: _Chooser) -> tuple[Module, ...]:
    matrix = Projection(
        inner=WIDTH,
        columns=WIDTH,
        bias=rng.choice((False, True)),
        norm_width=rng.choice((0, WIDTH)),
        extra_parameters=rng.choice((0, 5)),
    )
    table = Embedding(vocabulary=VOCABULARY, width=WIDTH, extra_parameters=rng.choice((0, 24)))
    head = Projection(inner=WIDTH, columns=VOCABULARY, logits=True, tied=True)
    return (
        _module("text", table, rng),
        _module("matrix", matrix, rng, repeat=rng.choice((1, 2))),
        _module("layers", _layer(rng), rng, repeat=rng.choice((1, 2, 4))),
        _module("causal", _layer(rng, causal=True), rng, repeat=rng.choice((1, 3))),
        _module("decoder", _layer(rng, context_width=WIDTH), rng, repeat=rng.choice((1, 3))),
        _module("head", head, rng),
        _module("loss", ContrastiveLoss(width=WIDTH, extra_parameters=rng.choice((0, 1))), rng),
    )


def _module(name: str, operator: object, rng: _Chooser, repeat: int = 1) -> Module:
    frozen = name in {"matrix", "layers"} and rng.choice((False, False, False, True))
    block = Block(name="b", operator=operator, repeat=repeat)  # type: ignore[arg-type]
    return Module(name=name, blocks=(block,), frozen=frozen)


def _layer(
    rng: _Chooser, *, causal: bool = False, context_width: int | None = None
) -> TransformerLayer:
    return TransformerLayer(
        width=WIDTH,
        heads=4,
        key_value_heads=rng.choice((None, 2)),
        mlp_width=12,
        gated=rng.choice((False, True)),
        causal=causal,
        norm=rng.choice(("layer", "rms")),
        query_value_bias=rng.choice((False, True)),
        key_bias=rng.choice((False, True)),
        output_bias=rng.choice((False, True)),
        mlp_bias=rng.choice((False, True)),
        context_width=context_width,
        extra_parameters=rng.choice((0, 3)),
    )


def _task(rng: _Chooser, name: str) -> Task:
    """Begin with two sources, add uses that read any earlier ones, and perhaps losses."""
    uses = [
        ModuleUse(name="u0", module="text", tokens=rng.choice((2, 3))),
        ModuleUse(name="u1", module=rng.choice(("matrix", "layers")), tokens=rng.choice((1, 4))),
    ]
    flows: list[DataFlow] = []
    for index in range(2, rng.choice((4, 5, 6))):
        sources = rng.sample(range(index), rng.choice((1, 2)))
        module = rng.choice(("matrix", "layers", "causal", "decoder"))
        context = uses[sources[0]].tokens if module == "decoder" else 0
        uses.append(
            ModuleUse(
                name=f"u{index}",
                module=module,
                tokens=rng.choice((1, 2, 4)),
                context_tokens=context,
                items=1,
            )
        )
        flows += [DataFlow(source=f"u{source}", target=f"u{index}") for source in sorted(sources)]
    if rng.choice((False, True)):
        pair = rng.sample(range(len(uses)), 2)
        flows += [DataFlow(source=f"u{source}", target="pairs") for source in sorted(pair)]
        uses.append(ModuleUse(name="pairs", module="loss", tokens=1))
    if rng.choice((False, True, True)):
        source = rng.choice(range(sum(use.name.startswith("u") for use in uses)))
        flows.append(DataFlow(source=f"u{source}", target="words"))
        uses.append(ModuleUse(name="words", module="head", tokens=uses[source].tokens))
    return Task(
        name=name, batch_size=rng.choice((4, 2, 3, 8, 12)), uses=tuple(uses), flows=tuple(flows)
    )


def _text_task() -> Task:
    """Train the table by itself, so that tasks share it."""
    return Task(
        name="text",
        batch_size=4,
        uses=(
            ModuleUse(name="u0", module="text", tokens=3),
            ModuleUse(name="words", module="head", tokens=3),
        ),
        flows=(DataFlow(source="u0", target="words"),),
    )
