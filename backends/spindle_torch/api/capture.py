"""What a task computes, part by part, for any number of samples: two watched forwards compared."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import TreeSpec, tree_unflatten

from spindle_sim.errors import InputError
from spindle_torch.api.apart import (
    changed_leaf,
    check_additive,
    check_begun_alike,
    check_doubled,
    check_mean,
    doubled,
)
from spindle_torch.api.data import Count, count_in
from spindle_torch.api.recording import record
from spindle_torch.api.tally import Tally
from spindle_torch.api.values import TensorShape, Value, merged_shape
from spindle_torch.api.watching import Origin, Seen, watch

__all__ = ["Call", "Capture", "Samples", "capture", "plain_numbers"]

_TaskForward = Callable[[Mapping[str, torch.Tensor]], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a leaf.

    `shapes` are those of its output's tensors; `entering` those of the inputs that pass a boundary
    before it, by place, and `crossing` what they depend on. `origin` is what the other inputs
    depend on. `returned` are places of the output where an input comes back, and its place.
    """

    leaf: str
    origin: Origin
    shapes: tuple[TensorShape, ...]
    entering: tuple[tuple[int, TensorShape], ...]
    crossing: Origin
    returned: tuple[tuple[int, int], ...]
    before: Tally
    tally: Tally
    constants: tuple[Any, ...]
    spec: TreeSpec

    def output(self, tensors: Mapping[int, torch.Tensor]) -> Any:
        """Give the output as the leaf gives it, from its tensors by place."""
        place, items = 0, []
        for constant in self.constants:
            if constant is Ellipsis:
                items.append(tensors[place])
                place += 1
            else:
                items.append(constant)
        return tree_unflatten(items, self.spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """The calls of a task in order; its loss depends on `origin` and costs `before`.

    `reached` are the leaves that its gradient reaches.
    """

    calls: tuple[Call, ...]
    origin: Origin
    before: Tally
    reached: frozenset[str]

    def shape(self, value: Value) -> TensorShape:
        """Give the shape of a value."""
        call = self.calls[value.call]
        return dict(call.entering)[value.place] if value.enters else call.shapes[value.place]


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Batches of two sizes to run the task on: the samples of the first begin the second.

    `coupled_loss` where the loss compares them with each other; else it is a mean over as many
    things as `loss_count` gives for a batch, or over the samples.
    """

    counts: tuple[int, int]
    batches: tuple[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]]
    coupled_loss: bool = False
    loss_count: Count | None = None


def capture(
    name: str,
    task: _TaskForward,
    leaves: Mapping[str, nn.Module],
    *,
    samples: Samples,
    parameters: Mapping[str, nn.Parameter],
    boundaries: Collection[str],
    coupled: Collection[str],
) -> Capture:
    """Run the task twice on few samples, once more with gradients, and on all of them twice.

    Raises:
        InputError: it takes another path for other samples, mixes samples, has sizes that
            don't grow with them, or a loss that isn't their mean or has no gradient; the leaf is
            named.
    """

    def seen(batch: Mapping[str, torch.Tensor], count: int, *, calm: bool = False) -> Seen:
        return watch(
            task,
            leaves,
            batch,
            parameters=parameters,
            samples=count,
            boundaries=boundaries,
            calm=calm,
        )

    first, second = map(seen, samples.batches, samples.counts)
    paths = [[call.leaf for call in seen.calls] for seen in (first, second)]
    if paths[0] != paths[1]:
        other = next((a or b for a, b in zip(*paths, strict=False) if a != b), "the end")
        raise InputError(
            f"task {name!r}: runs other modules for other samples, first at {other}; what runs must"
            " not depend on the samples"
        )
    _check_generators(name, first, second)
    recorded = record(name, task, leaves, samples.batches[0], samples.counts[0])
    if not recorded.has_gradient:
        raise InputError(
            f"task {name!r}: its loss has no gradient: every parameter that leads to it is frozen,"
            " or it was cut off by detach(), .item(), argmax or no_grad(); a task must train"
            " something"
        )
    calls = [
        _merged(name, (first, second), index, samples.counts, kept)
        for index, kept in enumerate(recorded.saved)
    ]
    found = Capture(
        calls=tuple(calls), origin=first.origin, before=first.before, reached=recorded.reached
    )
    if not any(isinstance(item, FakeTensor) for item in parameters.values()):
        if not math.isfinite(second.loss.item()):
            raise InputError(
                f"task {name!r}: its loss is {second.loss.item()} for the first"
                f" {samples.counts[1]} samples of its data; it must be a number for any samples"
            )
        _check_apart(name, task, found, samples=samples, seen=seen, coupled=coupled)
    return found


def plain_numbers(outputs: Iterable[Any]) -> list[int | float | complex | None]:
    """Give the numbers of Python that a leaf gives, and None for everything else."""
    return [item if isinstance(item, int | float | complex) else None for item in outputs]


def _check_generators(name: str, first: Seen, second: Seen) -> None:
    """Check that generators of the task's own begin each forward alike."""
    states = zip(first.generators, second.generators, strict=False)
    if not all(torch.equal(one, other) for one, other in states):
        raise InputError(
            f"task {name!r}: draws random numbers by a torch.Generator of its own, which goes on"
            " from one forward to the next, on each device by itself, and isn't put back where a"
            " forward runs again for its backward; draw by torch's own (no generator=), or in the"
            " data"
        )


class _Watch(Protocol):
    def __call__(
        self, batch: Mapping[str, torch.Tensor], count: int, *, calm: bool = False
    ) -> Seen: ...


def _check_apart(
    name: str,
    task: _TaskForward,
    found: Capture,
    *,
    samples: Samples,
    seen: _Watch,
    coupled: Collection[str],
) -> None:
    """Check that samples don't depend on each other, nor the loss on how many there are.

    As the modules are, without chance; where that gives something else each time, evaluating.

    Raises:
        InputError: they do, or nobody can tell.
    """

    def look(batch: Mapping[str, torch.Tensor], count: int) -> Seen:
        return seen(batch, count, calm=True)

    unsteady = ""
    for training in (True, False):
        with nullcontext() if training else _evaluating(task):
            once, again = (look(samples.batches[0], samples.counts[0]) for _ in range(2))
            if [call.leaf for call in once.calls] != [call.leaf for call in found.calls]:
                continue
            unsteady = changed_leaf((once, again))
            if not unsteady:
                _check_samples(name, found, samples, look, coupled)
                return
    raise InputError(
        f"task {name!r}: {unsteady or 'it'} gives something else for the same samples when it runs"
        " again, so that nobody can tell whether it treats samples apart; draw random numbers by"
        " torch, not by numpy or Python, and count no calls (or don't while it evaluates: .eval())"
    )


def _check_samples(
    name: str,
    found: Capture,
    samples: Samples,
    seen: Callable[[Mapping[str, torch.Tensor], int], Seen],
    coupled: Collection[str],
) -> None:
    first, second = map(seen, samples.batches, samples.counts)
    check_begun_alike(name, (first, second), found.calls, samples.counts[0], coupled)
    count = samples.counts[1]
    if count > 1:
        twice = seen(doubled(samples.batches[1]), 2 * count)
        check_doubled(name, (second, twice), found.calls, count, coupled)
        if not samples.coupled_loss and not any(call.leaf in coupled for call in found.calls):
            check_mean(name, second, twice)
            singles = [
                {key: value[index : index + 1] for key, value in samples.batches[1].items()}
                for index in range(count)
            ]
            counted = samples.loss_count
            weights = [1.0 if counted is None else count_in(name, counted, one) for one in singles]
            losses = [seen(one, 1).loss.item() for one in singles]
            check_additive(name, second, losses, weights)


@contextmanager
def _evaluating(task: _TaskForward) -> Iterator[None]:
    """Have the task's modules evaluate, not train, for a while."""
    modules = list(task.modules()) if isinstance(task, nn.Module) else []
    training = [module.training for module in modules]
    for module in modules:
        module.training = False
    try:
        yield
    finally:
        for module, was in zip(modules, training, strict=True):
            module.training = was


def _merged(
    name: str, seen: tuple[Seen, Seen], index: int, counts: tuple[int, int], saved: float
) -> Call:
    first, second = (item.calls[index] for item in seen)
    where = f"task {name!r}: what {first.leaf} gives"
    if len(first.tensors) != len(second.tensors) or first.entering.keys() != second.entering.keys():
        raise InputError(f"{where} isn't the same for {counts[0]} and {counts[1]} samples")
    if plain_numbers(first.outputs) != plain_numbers(second.outputs):
        raise InputError(
            f"{where} has plain numbers of Python beside its tensors, which aren't the same for"
            f" {counts[0]} and {counts[1]} samples; give them as tensors, or compute them from"
            " sizes where they are used"
        )
    shapes = tuple(
        merged_shape(where, (a.shape, b.shape), a.dtype, counts)
        for a, b in zip(first.tensors, second.tensors, strict=True)
    )
    entering = tuple(
        (
            place,
            merged_shape(f"{where} (its input)", (tensor.shape, other.shape), tensor.dtype, counts),
        )
        for (place, tensor), other in zip(
            first.entering.items(), second.entering.values(), strict=True
        )
    )
    tally = first.tally.add(Tally(saved_bytes=saved))
    return Call(
        leaf=first.leaf,
        origin=first.origin,
        shapes=shapes,
        entering=entering,
        crossing=first.crossing,
        returned=tuple(first.returned.items()),
        before=first.before,
        tally=tally,
        constants=tuple(
            Ellipsis if isinstance(item, torch.Tensor) else item for item in first.outputs
        ),
        spec=first.spec,
    )
