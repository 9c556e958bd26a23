"""Random encoder-decoders: contexts of another width or length, items, blocks before and behind."""

from hypothesis import strategies as st

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
)

__all__ = ["encoder_decoders"]

WIDTH, CONTEXT_WIDTH = 8, 12


@st.composite
def encoder_decoders(draw: st.DrawFn) -> Workload:
    """Give one or two tasks, each an encoder, its own text, and the decoder that they share."""
    tasks = tuple(_task(draw, f"t{index}") for index in range(draw(st.integers(1, 2))))
    attending = draw(st.sampled_from((False, False, True)))  # whether the last block does, too
    layer = TransformerLayer(width=WIDTH, heads=2, mlp_width=12)
    across = TransformerLayer(width=WIDTH, heads=2, mlp_width=12, context_width=CONTEXT_WIDTH)
    encoder = TransformerLayer(width=CONTEXT_WIDTH, heads=2, mlp_width=12)
    blocks = [
        Block(name="before", operator=layer, repeat=draw(st.integers(1, 2))),
        Block(name="across", operator=across, repeat=draw(st.integers(1, 4))),
        Block(name="between", operator=layer, repeat=draw(st.integers(1, 2))),
        Block(name="behind", operator=across if attending else layer, repeat=2),
        Block(name="head", operator=Projection(inner=WIDTH, columns=16, logits=True)),
    ]
    return Workload(
        name="random",
        modules=(
            Module(
                name="encoder",
                blocks=(Block(name="b", operator=encoder, repeat=draw(st.integers(1, 3))),),
                frozen=draw(st.booleans()),
            ),
            Module(
                name="text",
                blocks=(Block(name="b", operator=Embedding(vocabulary=16, width=WIDTH)),),
            ),
            Module(name="decoder", blocks=tuple(blocks[draw(st.integers(0, 1)) :])),
        ),
        tasks=tasks,
    )


def _task(draw: st.DrawFn, name: str) -> Task:
    source_tokens, target_tokens = draw(st.sampled_from((2, 4, 5))), draw(st.sampled_from((2, 3)))
    items = draw(st.sampled_from((1, 1, 2)))
    return Task(
        name=name,
        batch_size=draw(st.sampled_from((4, 8))),
        uses=(
            ModuleUse(name="source", module="encoder", tokens=source_tokens, items=items),
            ModuleUse(name="target", module="text", tokens=target_tokens),
            ModuleUse(
                name="answer",
                module="decoder",
                tokens=target_tokens,
                context_tokens=draw(st.sampled_from((source_tokens, 2))),
                items=draw(st.sampled_from((1, items))),
            ),
        ),
        flows=(
            DataFlow(source="source", target="answer"),
            DataFlow(source="target", target="answer"),
        ),
    )
