"""What a task computes, part by part, for any number of samples: two watched forwards compared."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import TreeSpec, tree_unflatten

from spindle_sim.errors import InputError
from spindle_torch.api.tally import Tally
from spindle_torch.api.values import TensorShape, Value, merged_shape
from spindle_torch.api.watching import Origin, Seen, watch, watch_saved

__all__ = ["Call", "Capture", "Samples", "capture"]

_CLOSE = 1e-2  # of the largest number: far above rounding, far below another sample's influence
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
    """The calls of a task in order; its loss depends on `origin` and costs `before`."""

    calls: tuple[Call, ...]
    origin: Origin
    before: Tally

    def shape(self, value: Value) -> TensorShape:
        """Give the shape of a value."""
        call = self.calls[value.call]
        return dict(call.entering)[value.place] if value.enters else call.shapes[value.place]


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Batches of two sizes to run the task on: the samples of the first begin the second."""

    counts: tuple[int, int]
    batches: tuple[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]]


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
    """Run the task twice on few samples, and once more with gradients.

    Raises:
        InputError: it takes another path for other samples, mixes samples, or has sizes that
            don't grow with them; the leaf is named.
    """
    first, second = (
        watch(
            task,
            leaves,
            batch,
            parameters=parameters,
            samples=count,
            boundaries=boundaries,
        )
        for count, batch in zip(samples.counts, samples.batches, strict=True)
    )
    paths = [[call.leaf for call in seen.calls] for seen in (first, second)]
    if paths[0] != paths[1]:
        other = next((a or b for a, b in zip(*paths, strict=False) if a != b), "the end")
        raise InputError(
            f"task {name!r}: runs other modules for other samples, first at {other}; what runs must"
            " not depend on the samples"
        )
    saved = watch_saved(task, leaves, samples.batches[0], samples.counts[0])
    calls = [
        _merged(name, (first, second), index, samples.counts, kept)
        for index, kept in enumerate(saved)
    ]
    found = Capture(calls=tuple(calls), origin=first.origin, before=first.before)
    has_numbers = not any(isinstance(item, FakeTensor) for item in parameters.values())
    if has_numbers and not (first.is_random or second.is_random):
        _check_samples_apart(name, (first, second), found, samples.counts, coupled)
    return found


def _merged(
    name: str, seen: tuple[Seen, Seen], index: int, counts: tuple[int, int], saved: float
) -> Call:
    first, second = (item.calls[index] for item in seen)
    where = f"task {name!r}: what {first.leaf} gives"
    if len(first.tensors) != len(second.tensors) or first.entering.keys() != second.entering.keys():
        raise InputError(f"{where} isn't the same for {counts[0]} and {counts[1]} samples")
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


def _check_samples_apart(
    name: str,
    seen: tuple[Seen, Seen],
    found: Capture,
    counts: tuple[int, int],
    coupled: Collection[str],
) -> None:
    """Check that the first samples give the same, whatever other samples come with them."""
    for call, first, second in zip(found.calls, seen[0].calls, seen[1].calls, strict=True):
        if call.leaf in coupled:
            return  # what comes behind it is mixed, and meant to be
        for shape, small, large in zip(call.shapes, first.tensors, second.tensors, strict=True):
            if not small.is_floating_point():
                continue
            begin = (
                large
                if shape.batch is None
                else large.narrow(shape.batch, 0, shape.sizes[shape.batch] * counts[0])
            )
            difference = (begin - small).abs().max() if small.numel() else torch.zeros(())
            if difference > _CLOSE * max(1e-6, small.abs().max().item() if small.numel() else 0):
                raise InputError(
                    f"task {name!r}: what {call.leaf} gives for a sample depends on the other"
                    " samples, which may be on other devices; name the module in `coupled`, or use"
                    " one that treats samples apart (LayerNorm for BatchNorm)"
                )
