"""Models of timm and transformers, tiny and random; nothing is downloaded."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from spindle_torch.api import Batch, SpindleTask, SplitModel, split_tasks
from tests.spindle_torch.api.models import drawing
from tests.spindle_torch.api.torchvision_operators import define_missing_operators

define_missing_operators()

import timm  # noqa: E402
import transformers  # noqa: E402

TEXT = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "vocab_size": 50,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
VISION = {
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}


def vit() -> SplitModel:
    model = timm.create_model(
        "vit_tiny_patch16_224",
        depth=3,
        embed_dim=24,
        num_heads=2,
        img_size=32,
        patch_size=8,
        num_classes=5,
    )
    task = SpindleTask.of_model(
        "label", model, batch_size=4, data=drawing(x=(3, 32, 32), y=("5",)), inputs="x"
    )
    task.add_module("loss", nn.CrossEntropyLoss(), inputs="y").add_flow("model", "loss")
    return split_tasks(task)


def clip() -> SplitModel:
    """Its own contrastive loss, over all pairs of the batch."""
    config = transformers.CLIPConfig(
        text_config={
            **TEXT,
            "num_hidden_layers": 2,
            "max_position_embeddings": 8,
            "eos_token_id": 49,
        },
        vision_config=VISION,
        projection_dim=8,
    )
    task = SpindleTask.of_model(
        "match",
        transformers.CLIPModel(config),
        batch_size=4,
        data=drawing(ids=("49", 6), x=(3, 16, 16)),
        inputs={"input_ids": "ids", "pixel_values": "x"},
        arguments={"return_loss": True},
        coupled_loss=True,
    )
    return split_tasks(task)


def whisper_encoder() -> SplitModel:
    task = SpindleTask.of_model(
        "hear",
        transformers.WhisperModel(_whisper()).get_encoder(),
        batch_size=4,
        data=drawing(x=(4, 20)),
        inputs={"input_features": "x"},
    )
    task.add_module("loss", lambda hidden: hidden.square().mean())
    task.add_flow("model", "loss", output="last_hidden_state")
    return split_tasks(task)


def whisper() -> SplitModel:
    """All of it: every layer of the decoder attends to the encoder, and the head is tied."""
    model = transformers.WhisperForConditionalGeneration(_whisper())
    task = SpindleTask.of_model(
        "say",
        model,
        batch_size=4,
        data=drawing(x=(4, 20), y=("50", 6)),
        inputs={"input_features": "x", "decoder_input_ids": "y"},
        arguments={"use_cache": False},
    )
    return _speaking(task, "y")


def llama(*, tied: bool = False) -> SplitModel:
    """Texts of unequal length: a mask of the data's, and a mean over words that count."""
    config = transformers.LlamaConfig(
        **TEXT, num_hidden_layers=4, num_key_value_heads=1, tie_word_embeddings=tied
    )

    def load(step: int, first: int, last: int) -> Batch:
        batch = dict(drawing(ids=("50", 6))(step, first, last))
        batch["mask"] = (torch.arange(6) < 6 - torch.arange(first, last)[:, None] % 3).long()
        batch["said"] = batch["ids"].masked_fill(batch["mask"] == 0, -100)
        return batch

    task = SpindleTask.of_model(
        "say",
        _in_float64(transformers.LlamaForCausalLM(config)),
        batch_size=4,
        data=load,
        inputs={"input_ids": "ids", "attention_mask": "mask"},
        arguments={"use_cache": False},
        loss_count=lambda batch: (batch["said"] != -100).sum(),
    )
    return _speaking(task, "said")


def llava() -> SplitModel:
    """A frozen vision tower, a projector and a language model."""
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**VISION),
        text_config=transformers.LlamaConfig(**TEXT, num_hidden_layers=3, num_key_value_heads=1),
        image_token_id=49,
        image_seq_length=4,
    )
    model = _in_float64(transformers.LlavaForConditionalGeneration(config))
    model.model.vision_tower.requires_grad_(requires_grad=False)

    def load(step: int, first: int, last: int) -> Batch:
        batch = dict(drawing(ids=("48", 6), x=(3, 16, 16))(step, first, last))
        batch["ids"] = torch.cat([torch.full((last - first, 4), 49), batch["ids"]], dim=1)
        return batch

    task = SpindleTask.of_model(
        "describe",
        model,
        batch_size=4,
        data=load,
        inputs={"input_ids": "ids", "pixel_values": "x"},
        arguments={"use_cache": False},
    )
    return _speaking(task, "ids")


def t5() -> SplitModel:
    """A position bias that the first block gives to all others, and a table of three uses."""
    config = transformers.T5Config(
        vocab_size=50,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=3,
        num_heads=2,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    task = SpindleTask.of_model(
        "say",
        transformers.T5ForConditionalGeneration(config),
        batch_size=4,
        data=drawing(x=("50", 5), y=("50", 6)),
        inputs={"input_ids": "x", "decoder_input_ids": "y"},
        arguments={"use_cache": False},
    )
    return _speaking(task, "y")


PUBLISHED: dict[str, Callable[[], SplitModel]] = {
    "vit": vit,
    "clip": clip,
    "whisper_encoder": whisper_encoder,
    "whisper": whisper,
    "llama": llama,
    "llama_tied": lambda: llama(tied=True),
    "llava": llava,
    "t5": t5,
}


def _whisper() -> Any:
    return transformers.WhisperConfig(
        d_model=16,
        encoder_layers=3,
        decoder_layers=3,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_source_positions=10,
        num_mel_bins=4,
        vocab_size=50,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        dropout=0.0,
    )


def _speaking(task: SpindleTask, said: str) -> SplitModel:
    """Add a cross-entropy in the precision of the model: those of transformers are in float32."""
    task.add_module(
        "loss", lambda logits, words: nn.functional.cross_entropy(logits.mT, words), inputs=said
    )
    task.add_flow("model", "loss", output="logits")
    return split_tasks(task)


def _in_float64(model: Any) -> Any:
    """Replace norms that compute in float32 whatever the model's precision is."""
    for name, module in list(model.named_modules()):
        if type(module).__name__ == "LlamaRMSNorm":
            model.set_submodule(name, nn.RMSNorm(len(module.weight), eps=module.variance_epsilon))
    return model
