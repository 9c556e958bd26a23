"""QWen-VAL (section 5.1): a language model fed by a vision and an audio encoder, three tasks.

The published parts (Qwen-7B, ViT-bigG with Qwen-VL's adapter, Whisper-large-v2's encoder with
Qwen-Audio's projection) have 10.296 B parameters: `qwen-val-open`. The paper prints 9.25 B and no
composition; no sum of the parts gives that, so that `qwen-val` has the same layers and a
vocabulary cut to 24,250 rows. The three tasks are the paper's, batch sizes are guesses.
"""

from spindle_sim.workload.cost import Attention, Gemm
from spindle_sim.workload.model import Block, DataFlow, Module, ModuleUse, Task, Workload
from spindle_sim.workload.operators import (
    BYTES_PER_ELEMENT,
    Custom,
    Embedding,
    Projection,
    TransformerLayer,
)
from spindle_sim.workload.zoo.stems import patch_stem

__all__ = ["qwen_val", "qwen_val_open"]

_PARTS = (
    "Qwen-7B, ViT-bigG/14 at 448 px with Qwen-VL's adapter (256 tokens an image), Whisper-large-v2"
    " encoder (30 s, 752 tokens)"
)
NOTE = (
    f"{_PARTS}; vocabulary cut to 24,250 rows, so that the modules of all three tasks together have"
    " the paper's 9.25 B parameters (no sum of the published parts gives it); a selection of tasks"
    " may have fewer. Batch sizes and text lengths are guesses."
)
NOTE_OPEN = (
    f"{_PARTS}, as published: the modules of all three tasks together have 10.296 B parameters;"
    " a selection of tasks may have fewer. Batch sizes and text lengths are guesses."
)

LLM_WIDTH = 4096
IMAGE_PATCHES, IMAGE_TOKENS = 32 * 32, 256
AUDIO_FRAMES, AUDIO_TOKENS = 1500, 752  # 30 s; pairs averaged, a begin and an end token added
TEXT_TOKENS = 256  # a guess
VISION_WIDTH, AUDIO_WIDTH = 1664, 1280


def qwen_val() -> Workload:
    """Give the workload with the paper's total, 9.25 B parameters."""
    return _workload("qwen-val", vocabulary=24_250, note=NOTE)


def qwen_val_open() -> Workload:
    """Give the workload with the published parts, 10.296 B parameters."""
    return _workload("qwen-val-open", vocabulary=151_936, note=NOTE_OPEN)


def _workload(name: str, *, vocabulary: int, note: str) -> Workload:
    return Workload(
        name=name,
        modules=(_vision(), _audio(), _llm(vocabulary)),
        tasks=(
            _task("vision-language", ("vision",), 128),
            _task("audio-language", ("audio",), 128),
            _task("vision-audio-language", ("vision", "audio"), 64),
        ),
        note=note,
    )


def _task(name: str, encoders: tuple[str, ...], batch_size: int) -> Task:
    patches = {"vision": IMAGE_PATCHES, "audio": AUDIO_FRAMES}
    tokens = {"vision": IMAGE_TOKENS, "audio": AUDIO_TOKENS}
    llm_tokens = TEXT_TOKENS + sum(tokens[encoder] for encoder in encoders)
    return Task(
        name=name,
        batch_size=batch_size,
        uses=(
            *(ModuleUse(name=e, module=e, tokens=patches[e]) for e in encoders),
            ModuleUse(name="llm", module="llm", tokens=llm_tokens),
        ),
        flows=tuple(DataFlow(source=encoder, target="llm") for encoder in encoders),
    )


def _vision() -> Module:
    """ViT-bigG/14 (open_clip, without its text tower; 256 learned positions) and the adapter."""
    kernel = 3 * 14 * 14
    stem = patch_stem(
        patches=IMAGE_PATCHES,
        patch_size=kernel,
        width=VISION_WIDTH,
        tokens=IMAGE_PATCHES,
        parameters=kernel * VISION_WIDTH + 256 * VISION_WIDTH + 2 * VISION_WIDTH,
        norm=True,
    )
    layer = TransformerLayer(width=VISION_WIDTH, heads=16, mlp_width=8192)
    return Module(
        name="vision",
        blocks=(
            Block(name="stem", operator=stem),
            Block(name="layers", operator=layer, repeat=48),
            Block(name="adapter", operator=_adapter()),
        ),
    )


def _adapter() -> Custom:
    """Qwen-VL's resampler: 256 learned queries attend to the patches once; 91.8 M parameters.

    Keys and values are projected from 1,664 to 4,096 first; three norms; a square projection last.
    """
    d, heads = LLM_WIDTH, 32
    matrix = d * d
    parameters = (
        IMAGE_TOKENS * d  # queries
        + VISION_WIDTH * d  # projection of keys and values
        + 4 * (matrix + d)  # attention, with its biases
        + 3 * 2 * d  # norms
        + matrix  # output projection
    )
    context_bytes = BYTES_PER_ELEMENT * IMAGE_PATCHES * d
    query_bytes = BYTES_PER_ELEMENT * IMAGE_TOKENS * d
    return Custom(
        name="resampler",
        parameters=parameters,
        gemms=(
            Gemm(rows=IMAGE_PATCHES, inner=VISION_WIDTH, columns=d),
            Gemm(rows=IMAGE_PATCHES, inner=d, columns=d, count=2),
            Gemm(rows=IMAGE_TOKENS, inner=d, columns=d, count=3),
        ),
        attentions=(
            Attention(queries=IMAGE_TOKENS, keys=IMAGE_PATCHES, heads=heads, head_width=d // heads),
        ),
        traffic_bytes=float(4 * context_bytes + 6 * query_bytes),
        kernels=14,
        output_bytes=float(query_bytes),
        saved_bytes=float(
            BYTES_PER_ELEMENT * IMAGE_PATCHES * VISION_WIDTH + 4 * context_bytes + 5 * query_bytes
        ),
    )


def _audio() -> Module:
    """Whisper-large-v2's encoder as Qwen-Audio has it (audio.py): no key bias, sine positions."""
    layer = TransformerLayer(width=AUDIO_WIDTH, heads=20, mlp_width=5120, key_bias=False)
    adapter = Projection(
        inner=AUDIO_WIDTH,
        columns=LLM_WIDTH,
        bias=True,
        norm_width=AUDIO_WIDTH,
        extra_parameters=2 * LLM_WIDTH,  # the begin and the end token
    )
    return Module(
        name="audio",
        blocks=(
            Block(name="stem", operator=_audio_stem()),
            Block(name="layers", operator=layer, repeat=32),
            Block(name="adapter", operator=adapter, tokens=AUDIO_TOKENS),
        ),
    )


def _audio_stem() -> Custom:
    """Two one-dimensional convolutions of kernel 3 over 80 mel bins; the second halves time."""
    mel, window, width = 80 * 3, AUDIO_WIDTH * 3, AUDIO_WIDTH
    first_bytes = BYTES_PER_ELEMENT * 2 * AUDIO_FRAMES * width
    output_bytes = BYTES_PER_ELEMENT * AUDIO_FRAMES * width
    return Custom(
        name="conv-stem",
        parameters=(mel + 1) * width + (window + 1) * width,
        gemms=(
            Gemm(rows=2 * AUDIO_FRAMES, inner=mel, columns=width),
            Gemm(rows=AUDIO_FRAMES, inner=window, columns=width),
        ),
        traffic_bytes=float(2 * (first_bytes + 2 * output_bytes)),
        kernels=7,
        output_bytes=float(output_bytes),
        saved_bytes=float(2 * first_bytes + output_bytes),
    )


def _llm(vocabulary: int) -> Module:
    """Qwen-7B: 32 layers, SwiGLU of 11,008, biases of queries, keys and values only, untied."""
    layer = TransformerLayer(
        width=LLM_WIDTH,
        heads=32,
        mlp_width=11_008,
        gated=True,
        causal=True,
        norm="rms",
        output_bias=False,
        mlp_bias=False,
    )
    head = Projection(
        inner=LLM_WIDTH,
        columns=vocabulary,
        logits=True,
        extra_parameters=LLM_WIDTH,  # the last RMSNorm
    )
    return Module(
        name="llm",
        blocks=(
            Block(name="embedding", operator=Embedding(vocabulary=vocabulary, width=LLM_WIDTH)),
            Block(name="layers", operator=layer, repeat=32),
            Block(name="head", operator=head),
        ),
    )
