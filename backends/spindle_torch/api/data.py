"""A task's data: any rank may ask for any samples of a step, and gets the same ones."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from spindle_sim.errors import InputError
from spindle_torch.api.arguments import kind_of
from spindle_torch.api.blame import blaming

__all__ = ["Batch", "Count", "Loader", "check_asked_apart", "count_in", "load_batch", "loader_of"]

Batch = Mapping[str, torch.Tensor]
Loader = Callable[[int, int, int], Batch]
"""From a step and the samples [first, last) of its global batch to tensors with a row for each."""
Count = Callable[[Mapping[str, torch.Tensor]], torch.Tensor | float]
"""From a batch to the number of things over which its loss is a mean."""
_WANTED = "give a function load(step, first, last), or a dataset of dicts with a length"


def loader_of(
    task: str, data: "Loader | torch.utils.data.Dataset[Batch]", batch_size: int
) -> Loader:
    """Give what loads samples [first, last) of a step.

    A dataset is run through in its order, again and again.

    Raises:
        InputError: it is neither a function of three arguments nor a dataset.
    """
    length = _length(f"task {task!r}: its data", data)
    if length is None:
        assert callable(data), "what has no length is a function"
        return data
    dataset: Any = data

    def load(step: int, first: int, last: int) -> Batch:
        numbers = [(step * batch_size + sample) % length for sample in range(first, last)]
        items = [dataset[number] for number in numbers]
        for number, item in zip(numbers, items, strict=True):
            if not isinstance(item, Mapping):
                raise InputError(
                    f"task {task!r}: item {number} of its data is {kind_of(item)}; it must"
                    ' be a dict from names to tensors, such as {"image": ..., "label": ...}'
                )
            if item.keys() != items[0].keys():
                raise InputError(
                    f"task {task!r}: item {number} of its data has the entries"
                    f" {', '.join(map(str, item))}, another one {', '.join(map(str, items[0]))};"
                    " they must be the same"
                )
        return {
            key: torch.stack([torch.as_tensor(item[key]) for item in items]) for key in items[0]
        }

    return load


def load_batch(
    task: str, load: Loader, step: int, span: tuple[int, int], dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Give the samples, their floating-point numbers as `dtype`.

    Raises:
        InputError: loading failed, or an entry isn't a tensor with a row for each sample.
    """
    first, last = span
    where = f"samples [{first}, {last}) of step {step}"
    with blaming(f"task {task!r}: its data, asked for {where},"):
        loaded: object = load(step, first, last)
    if not isinstance(loaded, Mapping):
        raise InputError(
            f"task {task!r}: its data gave {kind_of(loaded)} for {where}; they must give a"
            " dict from names to tensors"
        )
    batch: dict[str, torch.Tensor] = {}
    for name, value in loaded.items():
        if not isinstance(value, torch.Tensor) or not value.dim() or len(value) != last - first:
            found = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            raise InputError(
                f"task {task!r}: entry {name!r} of {where} is {found}; it must"
                f" be a tensor with {last - first} rows, one for each sample"
            )
        if value.layout != torch.strided:
            raise InputError(
                f"task {task!r}: entry {name!r} of {where} is sparse or nested; make it dense:"
                " to_dense(), or padded"
            )
        batch[name] = value.to(dtype) if value.is_floating_point() else value
    return batch


def check_asked_apart(task: str, load: Loader, samples: int, dtype: torch.dtype) -> None:
    """Check that the first samples of step 0 are the same ones however they are asked for.

    Raises:
        InputError: they aren't, or loading fails.
    """
    together = load_batch(task, load, 0, (0, samples), dtype)
    for first in range(samples):
        alone = load_batch(task, load, 0, (first, first + 1), dtype)
        if alone.keys() != together.keys():
            differing = sorted(alone.keys() ^ together.keys())
        else:
            differing = [
                name
                for name, value in alone.items()
                if not torch.equal(
                    value.nan_to_num(), together[name][first : first + 1].nan_to_num()
                )
            ]
        if differing:
            raise InputError(
                f"task {task!r}: its data give another {differing[0]!r} when asked for"
                f" samples [{first}, {first + 1}) of step 0 than among [0, {samples}); any device"
                " may ask for any samples, and must get the same ones: draw what is random by a"
                " generator seeded by step and sample"
            )


def count_in(task: str, count: Count, batch: Batch) -> float:
    """Give what a task's `loss_count` says of a batch.

    Raises:
        InputError: it raises, or gives no number.
    """
    with blaming(f"task {task!r}: its loss_count"):
        found = float(count(batch))
    if not 0 <= found < math.inf:
        raise InputError(f"task {task!r}: its loss_count gave {found:g}, expected at least 0")
    return found


def _length(where: str, data: object) -> int | None:
    """Give how many items a dataset has; None of a function."""
    if isinstance(data, type):
        raise InputError(f"{where} are the class {data.__name__}; make one of it")
    if data is None or isinstance(data, str | bytes | Mapping | torch.Tensor):
        raise InputError(f"{where} are {kind_of(data)}; {_WANTED}")
    if isinstance(data, torch.utils.data.DataLoader):
        raise InputError(
            f"{where} are a DataLoader, which makes batches of its own; give its dataset, or a"
            " function load(step, first, last)"
        )
    if isinstance(data, torch.utils.data.IterableDataset | Iterator):
        raise InputError(
            f"{where} can only be run through, but each rank asks for samples of its own; {_WANTED}"
        )
    if hasattr(data, "__getitem__"):
        if not hasattr(data, "__len__"):
            raise InputError(f"{where}: the dataset {type(data).__name__} has no len(); add one")
        if not len(data):
            raise InputError(f"{where} are empty; they need one item at least")
        return len(data)
    if not callable(data):
        raise InputError(f"{where} are {kind_of(data)}; {_WANTED}")
    _check_signature(where, data)
    return None


def _check_signature(where: str, load: Callable[..., object]) -> None:
    try:
        signature = inspect.signature(load)
    except ValueError:  # of a builtin nobody knows
        return
    try:
        signature.bind(0, 0, 1)
    except TypeError as error:
        raise InputError(
            f"{where}: the function takes {signature}, but is called with (step, first, last)"
        ) from error
