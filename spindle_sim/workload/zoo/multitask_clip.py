"""Multitask-CLIP (section 5.1): the six towers of ImageBind-Huge in ten contrastive tasks.

Sizes are those of the published ImageBind-Huge code (facebookresearch/ImageBind, commit 53680b02,
imagebind/models/imagebind_model.py), whose instance has 1,200,781,057 parameters: the paper's
1.20 B. The paper says "ten tasks of paired modalities" and gives neither the pairs nor the batch
sizes: both are guesses here. The first four tasks stand for its four-task workload.
"""

from spindle_sim.workload.model import Block, DataFlow, Module, ModuleUse, Task, Workload
from spindle_sim.workload.operators import (
    ContrastiveLoss,
    Embedding,
    Projection,
    TransformerLayer,
)
from spindle_sim.workload.zoo.stems import patch_stem

__all__ = ["multitask_clip"]

NOTE = (
    "Towers: ImageBind-Huge, from its published code; the modules of all ten tasks together have"
    " 1,200,781,057 parameters (the paper: 1.20 B); a selection of tasks may have fewer."
    " Task pairs and batch sizes are guesses: the paper gives neither."
)
EMBEDDING_WIDTH = 1024  # the space that every modality is projected to
TOKENS = {"vision": 257, "text": 77, "audio": 229, "depth": 197, "thermal": 197, "imu": 251}

# (task, first modality, second modality, global batch): a guess, see above.
_PAIRS = (
    ("image-text", "vision", "text", 1024),
    ("video-audio", "vision", "audio", 512),
    ("audio-text", "audio", "text", 512),
    ("depth-vision", "depth", "vision", 256),
    ("thermal-vision", "thermal", "vision", 256),
    ("imu-video", "imu", "vision", 256),
    ("depth-text", "depth", "text", 256),
    ("thermal-text", "thermal", "text", 256),
    ("imu-text", "imu", "text", 256),
    ("video-text", "vision", "text", 64),
)
_CLIPS_PER_VIDEO = {"video-text": 8}  # two-frame clips, averaged after the tower


def multitask_clip() -> Workload:
    """Give the workload of ten tasks over six towers."""
    return Workload(
        name="multitask-clip",
        modules=(_vision(), _text(), _audio(), _depth(), _thermal(), _imu(), _loss()),
        tasks=tuple(_task(*pair) for pair in _PAIRS),
        note=NOTE,
    )


def _task(name: str, first: str, second: str, batch_size: int) -> Task:
    items = {"vision": _CLIPS_PER_VIDEO.get(name, 1)}
    towers = tuple(
        ModuleUse(name=tower, module=tower, tokens=TOKENS[tower], items=items.get(tower, 1))
        for tower in (first, second)
    )
    return Task(
        name=name,
        batch_size=batch_size,
        uses=(*towers, ModuleUse(name="loss", module="contrastive", tokens=1)),
        flows=tuple(DataFlow(source=tower.name, target="loss") for tower in towers),
    )


def _vision() -> Module:
    """Images (repeated to two frames) or two-frame clips: conv3d 2x14x14 to 256 patches."""
    width, kernel, tokens = 1280, 3 * 2 * 14 * 14, TOKENS["vision"]
    pre_norm = 2 * width
    return Module(
        name="vision",
        blocks=(
            Block(
                name="stem",
                operator=patch_stem(
                    patches=tokens - 1,
                    patch_size=kernel,
                    width=width,
                    tokens=tokens,
                    parameters=kernel * width + width + tokens * width + pre_norm,
                    norm=True,
                ),
            ),
            _layers(32, width, 16),
            _head(width),
        ),
    )


def _text() -> Module:
    """CLIP's byte-pair tokens (49,408), causal; the logit scale is learned with this tower."""
    width = 1024
    return Module(
        name="text",
        blocks=(
            Block(
                name="stem",
                operator=Embedding(
                    vocabulary=49408, width=width, extra_parameters=TOKENS["text"] * width
                ),
            ),
            _layers(24, width, 16, causal=True),
            _head(width, extra_parameters=1),
        ),
    )


def _audio() -> Module:
    """Mel spectrogram of 2 s, 128 x 204, kernel 16 and stride 10: 12 x 19 patches."""
    return _patch_tower("audio", layers=12, width=768, heads=12, kernel=16 * 16)


def _depth() -> Module:
    """One-channel depth map of 224 x 224 in patches of 16 x 16."""
    return _patch_tower("depth", layers=12, width=384, heads=8, kernel=16 * 16)


def _thermal() -> Module:
    """One-channel thermal picture of 224 x 224 in patches of 16 x 16."""
    return _patch_tower("thermal", layers=12, width=768, heads=12, kernel=16 * 16)


def _imu() -> Module:
    """Six channels of 2,000 motion samples in windows of eight: a linear 48 -> 512."""
    return _patch_tower("imu", layers=6, width=512, heads=8, kernel=6 * 8)


def _patch_tower(name: str, *, layers: int, width: int, heads: int, kernel: int) -> Module:
    """Give a tower whose stem ends in a norm and whose attention learns a key and a value bias."""
    tokens = TOKENS[name]
    stem = patch_stem(
        patches=tokens - 1,
        patch_size=kernel,
        width=width,
        tokens=tokens,
        parameters=kernel * width + 2 * width + width + tokens * width,
        norm=True,
    )
    return Module(
        name=name,
        blocks=(
            Block(name="stem", operator=stem),
            # bias_k and bias_v: one learned token more among keys and values.
            _layers(layers, width, heads, extra_parameters=2 * width),
            _head(width),
        ),
    )


def _layers(
    repeat: int, width: int, heads: int, *, causal: bool = False, extra_parameters: int = 0
) -> Block:
    operator = TransformerLayer(
        width=width,
        heads=heads,
        mlp_width=4 * width,
        causal=causal,
        extra_parameters=extra_parameters,
    )
    return Block(name="layers", operator=operator, repeat=repeat)


def _head(width: int, *, extra_parameters: int = 0) -> Block:
    operator = Projection(
        inner=width,
        columns=EMBEDDING_WIDTH,
        norm_width=width,
        extra_parameters=extra_parameters,
    )
    return Block(name="head", operator=operator, tokens=1)


def _loss() -> Module:
    operator = ContrastiveLoss(width=EMBEDDING_WIDTH)
    return Module(name="contrastive", blocks=(Block(name="loss", operator=operator),))
