"""Running a split model in one process: every part by itself, on shards of its own."""

import random
from collections.abc import Sequence

import torch

from spindle_torch.api.data import load_batch
from spindle_torch.api.parts import Part
from spindle_torch.api.replay import Replay
from spindle_torch.api.splitting import SplitModel
from spindle_torch.api.values import Value


def split_loss(split: SplitModel, task: str, *, seed: int, step: int = 0) -> torch.Tensor:
    """Give the loss of one task, each part run on random, uneven shards, values sent as rows."""
    draw = random.Random(seed)
    found, owner = split.captures[task], split.task(task)
    dtype = next(iter(split.parameters.values())).dtype
    replay = Replay(task=split.graphs[task], leaves=split.leaves.modules, capture=found)
    rows: dict[Value, torch.Tensor] = {}
    losses: list[torch.Tensor] = []
    for use in split.uses:
        if use.task != task:
            continue
        first = 0
        while first < len(use.parts):
            last = draw.randint(first + 1, len(use.parts))
            parts = use.parts[first:last]
            wanted = parts[-1].outputs
            made: dict[Value, list[torch.Tensor]] = {value: [] for value in wanted}
            taken = parts[0].inputs | (frozenset(use.carried))
            for begin, end in _shards(draw, owner.batch_size, whole=parts[0].coupled):
                batch = load_batch(task, owner.load, step, (begin, end), dtype)
                given = {
                    value: found.shape(value).unpack(rows[value][begin:end]).clone()
                    for value in taken
                }
                values, loss = replay.run(
                    _steps(parts),
                    given,
                    batch,
                    samples=end - begin,
                    dtype=dtype,
                    device=torch.device("cpu"),
                )
                for value in wanted:
                    made[value].append(found.shape(value).pack(values[value], end - begin))
                share = _share(split, task, (begin, end), step, dtype)
                if loss is not None and share:  # a mean over nothing is no number
                    losses.append(loss * share)
            rows.update((value, torch.cat(parts)) for value, parts in made.items())
            first = last
    return torch.stack(losses).sum()


def whole_loss(split: SplitModel, task: str, *, step: int = 0) -> torch.Tensor:
    """Give the loss of the model as it is, on the whole batch."""
    owner = split.task(task)
    dtype = next(iter(split.parameters.values())).dtype
    batch = load_batch(task, owner.load, step, (0, owner.batch_size), dtype)
    loss: torch.Tensor = split.graphs[task](batch)
    return loss


def check_split(split: SplitModel, *, seed: int, tolerance: float = 1e-12) -> None:
    """Check that losses and all gradients are those of the model that isn't split."""
    for task in split.tasks:
        found = []
        for parted in (False, True):
            split.root.zero_grad()
            loss = (
                split_loss(split, task.name, seed=seed) if parted else whole_loss(split, task.name)
            )
            torch.autograd.backward(loss)
            gradients = {
                name: None if item.grad is None else item.grad.clone()
                for name, item in split.parameters.items()
            }
            found.append((loss.detach(), gradients))
        (loss, gradients), (other, others) = found
        assert torch.allclose(loss, other, rtol=tolerance, atol=0), (task.name, loss, other)
        largest = max(item.norm().item() for item in gradients.values() if item is not None)
        for name, gradient in gradients.items():
            given = others[name]
            if gradient is None:
                assert given is None or not given.any(), name
                continue
            assert given is not None, f"{name} has no gradient"
            error = (given - gradient).norm().item()
            assert error <= tolerance * max(gradient.norm().item(), 1e-3 * largest), (name, error)


def _steps(parts: Sequence[Part]) -> frozenset[int]:
    return frozenset(step for part in parts for step in part.steps)


def _shards(draw: random.Random, batch: int, *, whole: bool) -> list[tuple[int, int]]:
    if whole:
        return [(0, batch)]
    cuts = sorted(draw.sample(range(1, batch), draw.randint(0, min(2, batch - 1))))
    return list(zip([0, *cuts], [*cuts, batch], strict=True))


def _share(
    split: SplitModel, task: str, span: tuple[int, int], step: int, dtype: torch.dtype
) -> float:
    owner = split.task(task)
    whole = (0, owner.batch_size)
    if owner.loss_count is None:
        return (span[1] - span[0]) / owner.batch_size
    part, all_ = (
        float(owner.loss_count(load_batch(task, owner.load, step, item, dtype)))
        for item in (span, whole)
    )
    return part / all_
