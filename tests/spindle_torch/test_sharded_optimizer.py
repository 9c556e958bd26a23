"""Ranges of a parameter group, and AdamW on them, without processes."""

from itertools import pairwise

import pytest
import torch

from spindle_torch.sharded_optimizer import GroupRange, ShardedOptimizer

SHAPES = ((3, 2), (4,))  # ten numbers


def parameters() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))
        for shape in SHAPES
    ]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 12])
def test_ranges_stepped_one_by_one_and_gathered_are_the_step_of_the_whole(num_ranks: int) -> None:
    whole = parameters()
    reference = torch.optim.AdamW(whole, lr=1e-3, foreach=False)
    held = [parameters() for _ in range(num_ranks)]
    ranks = [
        ShardedOptimizer(ranges={0: GroupRange.of(own, rank, num_ranks)}, learning_rate=1e-3)
        for rank, own in enumerate(held)
    ]
    for step in range(3):
        for number, parameter in enumerate(whole):
            # The second is never touched by a sample in the first step.
            gradient = None if number > step else (step + 1) * torch.cos(parameter.detach())
            parameter.grad = torch.zeros_like(parameter) if gradient is None else gradient
            for own in held:
                own[number].grad = None if gradient is None else gradient.clone()
        reference.step()
        for rank in ranks:
            item = rank.ranges[0]
            if num_ranks > 1:  # what a reduce-scatter leaves of it
                flat = item.flat_gradient()
                item.take_gradient(flat[item.begin : item.begin + item.own.numel()])
            rank.step()
        gathered = torch.cat([rank.ranges[0].own.detach() for rank in ranks])
        for rank, own in zip(ranks, held, strict=True):
            assert all(parameter.grad is None for parameter in own)
            rank.ranges[0].numbers.copy_(gathered)
        for own, after in pairwise([whole, *held]):
            assert all(torch.equal(a, b) for a, b in zip(own, after, strict=True))
    length = -(-10 // num_ranks)
    assert [rank.num_state_numbers for rank in ranks] == [2 * length] * num_ranks


def test_a_rank_that_holds_no_trained_parameters_steps_nothing() -> None:
    optimizer = ShardedOptimizer(ranges={}, learning_rate=1e-3)
    optimizer.step()
    assert optimizer.num_state_numbers == 0
