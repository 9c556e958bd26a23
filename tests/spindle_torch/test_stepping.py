"""AdamW as it runs on GPUs, fused, tried on a CPU, which has the same kernel."""

import pytest
import torch

from spindle_torch.sharded_optimizer import GroupRange, ShardedOptimizer
from spindle_torch.stepping import adamw

SHAPES = ((7, 5), (9,), (1,))


def parameters() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))
        for shape in SHAPES
    ]


@pytest.fixture
def as_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have parameters say that they are on a GPU."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda _: True))


def test_a_cpu_steps_one_parameter_after_the_other() -> None:
    (group,) = adamw(parameters()).param_groups
    assert (group["fused"], group["foreach"]) == (False, False)


@pytest.mark.usefixtures("as_on_gpus")
def test_the_fused_step_is_adamw() -> None:
    plain, fused = parameters(), parameters()
    reference = torch.optim.AdamW(plain, lr=1e-3, foreach=False)
    optimizer = adamw(fused)
    assert optimizer.param_groups[0]["fused"]
    for step in range(3):
        for own in (plain, fused):
            for parameter in own:
                parameter.grad = (step + 1) * torch.cos(parameter.detach())
        reference.step()
        optimizer.step()
    for one, other in zip(plain, fused, strict=True):
        assert torch.allclose(one, other, rtol=1e-13, atol=1e-15)


@pytest.mark.usefixtures("as_on_gpus")
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_fused_steps_of_ranges_are_that_of_the_whole(num_ranks: int) -> None:
    """Ranges cut parameters anywhere, so that their parts begin at any address."""
    whole = parameters()
    optimizer = adamw(whole)
    held = [parameters() for _ in range(num_ranks)]
    ranks = [
        ShardedOptimizer(ranges={0: GroupRange.of(own, rank, num_ranks)}, learning_rate=1e-3)
        for rank, own in enumerate(held)
    ]
    for _ in range(2):
        for own in (whole, *held):
            for parameter in own:
                parameter.grad = torch.cos(parameter.detach())
        optimizer.step()
        for rank in ranks:
            item = rank.ranges[0]
            flat = item.flat_gradient()
            item.take_gradient(flat[item.begin : item.begin + item.own.numel()])
            rank.step()
        gathered = torch.cat([rank.ranges[0].own.detach() for rank in ranks])
        for rank in ranks:
            rank.ranges[0].numbers.copy_(gathered)
    for own in held:
        for one, other in zip(own, whole, strict=True):
            assert torch.allclose(one, other, rtol=1e-13, atol=1e-15)
