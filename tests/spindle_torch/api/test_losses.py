"""Which losses can be divided over devices, and what they train."""

from typing import Any

import pytest
import torch
from torch import nn

from spindle_sim.errors import InputError
from spindle_torch.api import SpindleTask, split_tasks
from tests.spindle_torch.api.models import Block, drawing


@pytest.mark.parametrize("weight", [1e-2, 1e-3])
def test_a_term_that_couples_samples_is_found_however_small(weight: float) -> None:
    """Such as the balance of experts, a hundredth of a loss."""

    def loss(x: torch.Tensor) -> torch.Tensor:
        shares = x.softmax(-1).mean((0, 1))
        return x.square().mean() + weight * len(shares) * shares.square().sum()

    task = SpindleTask("t", batch_size=4, data=drawing(x=(3, 8)))
    task.add_module("model", nn.Linear(8, 8), inputs="x")
    task.add_module("loss", loss).add_flow("model", "loss")
    with pytest.raises(InputError, match="task 't': its loss is"):
        split_tasks(task)


@pytest.mark.parametrize("way", ["no_grad", "detach"])
def test_a_module_that_runs_and_never_trains_has_to_be_frozen(way: str) -> None:
    """Plain PyTorch leaves it as it is, but an optimizer of all parameters decays its weights."""

    class Distilling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student, self.teacher = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.set_grad_enabled(way != "no_grad"):
                wanted = self.teacher(x).detach()
            return nn.functional.mse_loss(self.student(x), wanted)

    model = Distilling()
    blocks = nn.ModuleList([nn.Sequential(Block(8)), nn.Sequential(Block(8))])
    model.add_module("blocks", blocks)  # so that it is cut
    task = SpindleTask.of_model("t", model, batch_size=4, data=drawing(x=(8,)), inputs="x")
    with pytest.raises(InputError, match=r"model\.teacher: runs, but no task's gradient reaches"):
        split_tasks(task)
    model.teacher.requires_grad_(requires_grad=False)
    split_tasks(task)


def test_a_loss_whose_backward_fails_is_told() -> None:
    def refuse(_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no way back")

    def loss(x: torch.Tensor) -> torch.Tensor:
        if x.requires_grad:
            hooked: Any = x
            hooked.register_hook(refuse)
        return x.square().mean()

    task = SpindleTask("t", batch_size=4, data=drawing(x=(8,)))
    task.add_module("a", nn.Linear(8, 8), inputs="x").add_module("loss", loss)
    with pytest.raises(InputError, match="task 't': the backward of its loss raised RuntimeError"):
        split_tasks(task.add_flow("a", "loss"))
