"""Models that tests split: small, random, in float64, the same ones wherever they are made."""

from collections.abc import Callable

import torch
from torch import nn

from spindle_torch.api import Batch, Loader, SpindleTask, SplitModel, split_tasks


def drawing(**entries: tuple[int | str, ...]) -> Loader:
    """Give data: normal numbers of a shape, or with a string first whole numbers below it."""

    def load(step: int, first: int, last: int) -> Batch:
        return {
            name: torch.stack([_drawn(place, shape, step, n) for n in range(first, last)])
            for place, (name, shape) in enumerate(entries.items())
        }

    return load


def _drawn(place: int, shape: tuple[int | str, ...], step: int, sample: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(1_000_000 * place + 1000 * step + sample)
    sizes = [int(size) for size in shape]
    if shape and isinstance(shape[0], str):
        return torch.randint(sizes[0], sizes[1:], generator=draw)
    return torch.randn(sizes, generator=draw)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = x + self.mlp(self.norm(x))
        return made


class Classify(nn.Module):
    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits.mean(1), labels)


class Match(nn.Module):
    """A contrastive loss with a temperature of its own, over all pairs of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, b = (nn.functional.normalize(x.mean(1), dim=-1) for x in (a, b))
        logits = self.scale.exp() * a @ b.T
        return nn.functional.cross_entropy(logits, torch.arange(len(logits)))


def two_tasks() -> SplitModel:
    """Tasks of odd batches that share a trunk; one's output uses the other's word table."""
    trunk, words = nn.Sequential(*(Block(8) for _ in range(4))), nn.Embedding(11, 8)
    vision = SpindleTask("vision", batch_size=5, data=drawing(x=(3, 6), y=("4",)))
    vision.add_module("encoder", nn.Linear(6, 8), inputs="x").add_module("trunk", trunk)
    vision.add_module("head", nn.Linear(8, 4)).add_module("loss", Classify(), inputs="y")
    vision.add_flow("encoder", "trunk").add_flow("trunk", "head").add_flow("head", "loss")

    def speak(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy((x @ words.weight.T).mT, ids)

    text = SpindleTask("text", batch_size=3, data=drawing(ids=("11", 4)), loss_weight=0.5)
    text.add_module("words", words, inputs="ids").add_module("trunk", trunk)
    text.add_module("loss", speak, inputs="ids")
    text.add_flow("words", "trunk").add_flow("trunk", "loss")
    return split_tasks(vision, text)


def matching() -> SplitModel:
    """A coupled loss behind a frozen tower and one of which a bias is frozen."""
    towers = {name: nn.Sequential(*(Block(8) for _ in range(2))) for name in "ab"}
    towers["a"].requires_grad_(requires_grad=False)
    towers["b"][0].mlp[0].bias.requires_grad_(requires_grad=False)  # type: ignore[index, union-attr]
    task = SpindleTask("match", batch_size=3, data=drawing(a=(3, 8), b=(4, 8)))
    task.add_module("a", towers["a"], inputs="a").add_module("b", towers["b"], inputs="b")
    task.add_module("loss", Match(), coupled=True)
    task.add_flow("a", "loss", argument="a").add_flow("b", "loss", argument="b")
    return split_tasks(task)


class Unified(nn.Module):
    """One model of two tasks, by a switch; the text's blocks get a mask and a memory of images."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.words = nn.Linear(6, 8), nn.Embedding(11, 8)
        self.position = nn.Parameter(torch.randn(1, 3, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        reader = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.decoder = nn.TransformerDecoder(reader, 3)
        self.head = nn.Linear(8, 11)

    def forward(
        self, images: torch.Tensor, ids: torch.Tensor | None = None, task: str = "label"
    ) -> torch.Tensor:
        seen = self.encoder(self.patches(images) + self.position)
        if task == "label":
            logits: torch.Tensor = self.head(seen)
            return logits
        assert ids is not None
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        said: torch.Tensor = self.head(self.decoder(self.words(ids), seen, tgt_mask=mask))
        return said


def unified() -> SplitModel:
    """Two tasks of one model; captions are of unequal length."""
    model = Unified()
    label = SpindleTask.of_model(
        "label", model, batch_size=4, data=drawing(x=(3, 6), y=("11",)), inputs="x"
    )
    label.add_module("loss", Classify(), inputs="y").add_flow("model", "loss")

    def load(step: int, first: int, last: int) -> Batch:
        batch = dict(drawing(x=(3, 6), ids=("11", 5))(step, first, last))
        length = 2 + torch.arange(first, last)[:, None] % 4
        batch["said"] = batch["ids"].masked_fill(torch.arange(5) >= length, -100)
        return batch

    caption = SpindleTask.of_model(
        "caption",
        model,
        batch_size=4,
        data=load,
        inputs={"images": "x", "ids": "ids"},
        arguments={"task": "caption"},
        loss_count=lambda batch: (batch["said"] != -100).sum(),
    )
    caption.add_module(
        "words_loss",
        lambda logits, said: nn.functional.cross_entropy(logits.mT, said),
        inputs="said",
    )
    caption.add_flow("model", "words_loss")
    return split_tasks(label, caption)


def sequence_first() -> SplitModel:
    """Activations whose batch is the second dimension."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Linear(6, 8)
            layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
            self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.encoder(self.enter(x).transpose(0, 1))
            return made.sin().mean()

    return split_tasks(
        SpindleTask.of_model("t", Model(), batch_size=5, data=drawing(x=(3, 6)), inputs="x")
    )


def wordless() -> SplitModel:
    """Captions of which the later ones have no words that count: their mean is no number."""

    def load(step: int, first: int, last: int) -> Batch:
        batch = dict(drawing(x=(3, 6), said=("11", 3))(step, first, last))
        batch["said"][torch.arange(first, last) >= 2] = -100
        return batch

    task = SpindleTask(
        "t",
        batch_size=4,
        data=load,
        loss_count=lambda batch: (batch["said"] != -100).sum(),
    )
    task.add_module("enter", nn.Linear(6, 8), inputs="x")
    task.add_module("trunk", nn.Sequential(*(Block(8) for _ in range(3))))
    task.add_module("speak", nn.Linear(8, 11))
    task.add_module("loss", lambda x, y: nn.functional.cross_entropy(x.mT, y), inputs="said")
    task.add_flow("enter", "trunk").add_flow("trunk", "speak").add_flow("speak", "loss")
    return split_tasks(task)


PLAIN: dict[str, Callable[[], SplitModel]] = {
    "two_tasks": two_tasks,
    "matching": matching,
    "unified": unified,
    "sequence_first": sequence_first,
    "wordless": wordless,
}


def build(name: str) -> SplitModel:
    """Make a model, the same one wherever it is made; the default dtype is to be float64."""
    torch.manual_seed(0)
    if name in PLAIN:
        return PLAIN[name]()
    from tests.spindle_torch.api.published import PUBLISHED

    return PUBLISHED[name]()
