"""OFASys (section 5.1): an encoder-decoder language model with light adaptors, in seven tasks.

The paper prints 0.66 B and no composition. The one here is a guess from the published code
(OFA-Sys/OFASys: model/ofa.py, adaptor/, module/vit.py, module/subsample.py): OFA-large, ViT-L of
18 layers, the filter-bank subsampler and tied embeddings, 680 M in all (3 % above). Tasks, token
counts and batch sizes are guesses too, after the task families of its README.
"""

from spindle_sim.workload.cost import Gemm
from spindle_sim.workload.model import Block, DataFlow, Module, ModuleUse, Task, Workload
from spindle_sim.workload.operators import (
    BYTES_PER_ELEMENT,
    Custom,
    Embedding,
    Projection,
    TransformerLayer,
)
from spindle_sim.workload.zoo.stems import patch_stem

__all__ = ["ofasys"]

NOTE = (
    "OFA-large + ViT-L (18 layers) + filter-bank subsampler + tied embeddings, from the published"
    " code: the modules of all seven tasks together have 680 M parameters (the paper: 0.66 B);"
    " a selection of tasks may have fewer. Composition, tasks, token counts and batch sizes are"
    " guesses."
)
WIDTH, HEADS, MLP_WIDTH, LAYERS = 1024, 16, 4096, 12
VOCABULARY = 59_459  # about 59.5 k: BPE, locations, image codes (a guess)
IMAGE_TOKENS = 16 * 16  # 224 px in patches of 14
AUDIO_TOKENS = 375  # 15 s in frames of 10 ms, every fourth kept

# (task, encoder of its input, source text tokens, target tokens, global batch): a guess.
_TASKS = (
    ("image-captioning", "vision", 32, 24, 256),
    ("visual-grounding", "vision", 24, 8, 256),
    ("visual-question-answering", "vision", 32, 8, 256),
    ("speech-recognition", "audio", 16, 48, 256),
    ("text-to-motion", None, 40, 120, 128),
    ("text-to-sql", None, 384, 96, 128),
    ("summarization", None, 512, 64, 128),
)


def ofasys(image_tokens: int = IMAGE_TOKENS) -> Workload:
    """Give the workload of seven tasks; an image is `image_tokens` patches of 14 x 14."""
    tokens = {"vision": image_tokens, "audio": AUDIO_TOKENS, None: 0}
    return Workload(
        name="ofasys",
        modules=(_vision(image_tokens), _audio(), _text(), _encoder(), _decoder()),
        tasks=tuple(_task(*task, adaptor_tokens=tokens[task[1]]) for task in _TASKS),
        note=NOTE,
    )


def _task(
    name: str,
    adaptor: str | None,
    text_tokens: int,
    target_tokens: int,
    batch_size: int,
    *,
    adaptor_tokens: int,
) -> Task:
    """Give a task: adaptors feed the encoder, encoder and target text feed the decoder."""
    source_tokens = adaptor_tokens + text_tokens
    uses = [
        ModuleUse(name="source", module="text", tokens=text_tokens),
        ModuleUse(name="target", module="text", tokens=target_tokens),
        ModuleUse(name="encoder", module="encoder", tokens=source_tokens),
        ModuleUse(
            name="decoder", module="decoder", tokens=target_tokens, context_tokens=source_tokens
        ),
    ]
    ends = [("source", "encoder"), ("encoder", "decoder"), ("target", "decoder")]
    if adaptor:
        uses.insert(0, ModuleUse(name=adaptor, module=adaptor, tokens=adaptor_tokens))
        ends.insert(0, (adaptor, "encoder"))
    return Task(
        name=name,
        batch_size=batch_size,
        uses=tuple(uses),
        flows=tuple(DataFlow(source=source, target=target) for source, target in ends),
    )


def _vision(tokens: int) -> Module:
    """ViT-L/14 of 18 layers (vit_large in module/vit.py), then a linear to the model's width.

    It has the positions of 224 px: those of other images are interpolated.
    """
    kernel, positions, bucket = 3 * 14 * 14, IMAGE_TOKENS + 1, 42
    stem = patch_stem(
        patches=tokens,
        patch_size=kernel,
        width=WIDTH,
        tokens=tokens,
        parameters=kernel * WIDTH + positions * WIDTH + 2 * WIDTH,
        norm=True,
    )
    layer = TransformerLayer(width=WIDTH, heads=HEADS, mlp_width=MLP_WIDTH)
    adapter = Projection(
        inner=WIDTH,
        columns=WIDTH,
        bias=True,
        extra_parameters=(bucket * bucket + 1) * WIDTH,  # positions of a 42 x 42 grid
    )
    return Module(
        name="vision",
        blocks=(
            Block(name="stem", operator=stem),
            Block(name="layers", operator=layer, repeat=18),
            Block(name="adapter", operator=adapter),
        ),
    )


def _audio() -> Module:
    """Two 3x3 convolutions of stride 2 over 80 mel bins, then a linear (module/subsample.py).

    The second convolution alone is 134 GFLOP a sample: more than the 12 encoder layers.
    """
    rows, bins = (750, AUDIO_TOKENS), (39, 19)
    window, flat = 9 * WIDTH, WIDTH * bins[1]
    parameters = (9 + 1) * WIDTH + (window + 1) * WIDTH + (flat + 1) * WIDTH
    maps = [row * bin_ * WIDTH * BYTES_PER_ELEMENT for row, bin_ in zip(rows, bins, strict=True)]
    operator = Custom(
        name="conv-subsample",
        parameters=parameters,
        gemms=(
            Gemm(rows=rows[0] * bins[0], inner=9, columns=WIDTH),
            Gemm(rows=rows[1] * bins[1], inner=window, columns=WIDTH),
            Gemm(rows=rows[1], inner=flat, columns=WIDTH),
        ),
        traffic_bytes=float(2 * sum(maps)),  # a ReLU after each convolution
        kernels=8,
        output_bytes=float(BYTES_PER_ELEMENT * AUDIO_TOKENS * WIDTH),
        saved_bytes=float(sum(maps)),
    )
    return Module(name="audio", blocks=(Block(name="subsample", operator=operator),))


def _text() -> Module:
    """The general and text adaptors: tied token table, positions, and their projections.

    Both text sides have 1,026 learned positions (as OFA does) and two linears that make position
    queries and keys; what these two cost is left out, 0.6 % of the parameters.
    """
    positions = 2 * 1026 * WIDTH
    projections = 2 * 2 * (WIDTH * WIDTH + WIDTH)
    operator = Embedding(
        vocabulary=VOCABULARY, width=WIDTH, extra_parameters=positions + projections
    )
    return Module(name="text", blocks=(Block(name="embedding", operator=operator),))


def _encoder() -> Module:
    """OFA-large's 12 encoder layers, with OFA's norms after the attention and within the MLP."""
    layer = TransformerLayer(
        width=WIDTH,
        heads=HEADS,
        mlp_width=MLP_WIDTH,
        extra_parameters=2 * WIDTH + 2 * MLP_WIDTH,
    )
    return Module(name="encoder", blocks=(Block(name="layers", operator=layer, repeat=LAYERS),))


def _decoder() -> Module:
    """OFA-large's 12 decoder layers; the output matrix is the token table of the text adaptor."""
    layer = TransformerLayer(
        width=WIDTH,
        heads=HEADS,
        mlp_width=MLP_WIDTH,
        causal=True,
        context_width=WIDTH,
        extra_parameters=2 * 2 * WIDTH + 2 * MLP_WIDTH,
    )
    head = Projection(inner=WIDTH, columns=VOCABULARY, logits=True, tied=True)
    return Module(
        name="decoder",
        blocks=(
            Block(name="layers", operator=layer, repeat=LAYERS),
            Block(name="head", operator=head),
        ),
    )
