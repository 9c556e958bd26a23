"""Two tasks of one model in plain PyTorch: define, plan, simulate and train on two devices."""

import torch
from torch import nn

from spindle_sim import make_plan, parse_cluster, simulate
from spindle_torch.api import SpindleTask, split_tasks, train


def load(step: int, first: int, last: int) -> dict[str, torch.Tensor]:
    """Give samples [first, last) of a step, the same ones to whoever asks."""
    noise = torch.Generator().manual_seed(step)
    image, label = torch.randn(16, 49, 48, generator=noise), torch.arange(16) % 10
    text = (torch.arange(16)[:, None] + step + torch.arange(32)) % 100
    return {"image": image[first:last], "label": label[first:last], "text": text[first:last]}


torch.manual_seed(0)  # every rank builds this model, and must begin with the same parameters
layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
trunk = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)  # shared by both tasks
words, head = nn.Embedding(100, 128), nn.Linear(128, 10)

vision = SpindleTask("vision", batch_size=16, data=load)
vision.add_module("patches", nn.Linear(48, 128), inputs="image")
vision.add_module("trunk", trunk).add_module("head", head)
vision.add_module("loss", lambda x, y: nn.functional.cross_entropy(x.mean(1), y), inputs="label")
vision.add_flow("patches", "trunk").add_flow("trunk", "head").add_flow("head", "loss")

text = SpindleTask("text", batch_size=8, data=load).add_module("words", words, inputs="text")
text.add_module("trunk", trunk).add_module("speak", nn.Linear(128, 100))
text.add_module("loss", lambda x, y: nn.functional.cross_entropy(x.mT, y), inputs="text")
text.add_flow("words", "trunk").add_flow("trunk", "speak").add_flow("speak", "loss")

model = split_tasks(vision, text)
plan = make_plan(model.workload, parse_cluster("a800:1x2"))
result = train(model, plan, steps=5)
if result is not None:  # under torchrun: on rank 0
    print(f"simulated on A800s {simulate(plan).iteration_s * 1e3:.1f} ms")
    for step, losses in enumerate(result.losses, result.first_step):
        print(f"step {step}", *(f"{task} {loss:.4f}" for task, loss in sorted(losses.items())))
