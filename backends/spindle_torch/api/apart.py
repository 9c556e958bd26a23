"""Whether a task treats each sample by itself, and its loss is their mean: checked by running it.

Else devices that have other samples would compute something else, without anybody noticing.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import torch

from spindle_sim.errors import InputError
from spindle_torch.api.values import TensorShape
from spindle_torch.api.watching import Seen

__all__ = [
    "changed_leaf",
    "check_additive",
    "check_begun_alike",
    "check_doubled",
    "check_mean",
    "doubled",
]

_LEAST = 1e-6


class _Call(Protocol):
    @property
    def leaf(self) -> str: ...

    @property
    def shapes(self) -> tuple[TensorShape, ...]: ...


def doubled(batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Give the samples, and behind them the same ones from the last to the first."""
    return {name: torch.cat([value, value.flip(0)]) for name, value in batch.items()}


def check_begun_alike(
    task: str,
    seen: tuple[Seen, Seen],
    calls: Sequence[_Call],
    count: int,
    coupled: Collection[str],
) -> None:
    """Check that the first samples give the same, whatever other samples come behind them.

    Raises:
        InputError: a leaf mixes samples.
    """
    for call, first, second in zip(calls, seen[0].calls, seen[1].calls, strict=True):
        if call.leaf in coupled:
            return  # what comes behind it is mixed, and meant to be
        for shape, small, large in zip(call.shapes, first.tensors, second.tensors, strict=True):
            begin = (
                large
                if shape.batch is None
                else large.narrow(shape.batch, 0, shape.sizes[shape.batch] * count)
            )
            _check_alike(task, call.leaf, begin, small, rounding=seen[0].rounding)


def check_doubled(
    task: str,
    seen: tuple[Seen, Seen],
    calls: Sequence[_Call],
    count: int,
    coupled: Collection[str],
) -> None:
    """Check that `doubled` samples give the same twice, whatever other samples come before them.

    Raises:
        InputError: a leaf mixes samples.
    """
    for call, once, twice in zip(calls, seen[0].calls, seen[1].calls, strict=False):
        if call.leaf in coupled:
            return
        for shape, each, both in zip(call.shapes, once.tensors, twice.tensors, strict=False):
            if tuple(both.shape) != shape.full_sizes(2 * count):
                continue
            if shape.batch is None:
                _check_alike(task, call.leaf, both, each, rounding=seen[0].rounding)
                continue
            own = shape.pack(each, count)
            expected = torch.cat([own, own.flip(0)])
            found = shape.pack(both, 2 * count)
            _check_alike(task, call.leaf, found, expected, rounding=seen[0].rounding)


def check_mean(task: str, once: Seen, twice: Seen) -> None:
    """Check that samples have the same loss as each of them twice, as means do.

    Raises:
        InputError: it is a sum, or compares them with each other.
    """
    one, two = once.loss.item(), twice.loss.item()
    if abs(two - one) > once.rounding * max(_LEAST, abs(one)):
        raise InputError(
            f"task {task!r}: its loss is {one:g} for some samples and {two:g} for each of them"
            " twice; give their mean (reduction='mean'), or, if the loss compares samples with"
            " each other, name its module in `coupled` or say coupled_loss=True"
        )


def check_additive(task: str, seen: Seen, each: Sequence[float], counts: Sequence[float]) -> None:
    """Check that the loss of samples is the mean of each one's, weighted by its count.

    Raises:
        InputError: it isn't, as that of a squared mean, or of a mean over words that are masked.
    """
    total = sum(counts)
    if not total:
        return
    loss, close = seen.loss.item(), seen.rounding
    parts = [count * one / total for count, one in zip(counts, each, strict=True) if count]
    if abs(loss - sum(parts)) > close * max(_LEAST, abs(loss), *map(abs, parts)):
        raise InputError(
            f"task {task!r}: its loss is {loss:g} for some samples, but the mean of each one's is"
            f" {sum(parts):g}; where it is a mean over something else than samples (words that"
            " count), say over how many by `loss_count`; where it compares samples, say"
            " coupled_loss=True"
        )


def changed_leaf(seen: tuple[Seen, Seen]) -> str:
    """Give the first leaf that gave something else in the second of two runs; "" without one."""
    if [call.leaf for call in seen[0].calls] != [call.leaf for call in seen[1].calls]:
        return "what it runs"
    for first, second in zip(seen[0].calls, seen[1].calls, strict=True):
        pairs = zip(first.tensors, second.tensors, strict=False)
        rounding = seen[0].rounding
        if not all(_are_alike(one, other, rounding=rounding) for one, other in pairs):
            return first.leaf
    alike = _are_alike(seen[0].loss, seen[1].loss, rounding=seen[0].rounding)
    return "" if alike else "its loss"


def _check_alike(
    task: str, leaf: str, found: torch.Tensor, expected: torch.Tensor, *, rounding: float
) -> None:
    if not _are_alike(found, expected, rounding=rounding):
        raise InputError(
            f"task {task!r}: what {leaf} gives for a sample depends on the other"
            " samples, which may be on other devices; name the module in `coupled`, or use"
            " one that treats samples apart (LayerNorm for BatchNorm, batch_first=True)"
        )


def _are_alike(found: torch.Tensor, expected: torch.Tensor, *, rounding: float) -> bool:
    if found.shape != expected.shape:
        return False
    if not expected.is_floating_point() or not expected.numel():
        return True
    difference = (found - expected).abs().max()
    return bool(difference <= rounding * max(_LEAST, expected.abs().max().item()))
