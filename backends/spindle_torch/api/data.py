"""A task's data: any rank may ask for any samples of a step, and gets the same ones."""

from collections.abc import Callable, Mapping

import torch

from spindle_sim.errors import InputError

__all__ = ["Batch", "Loader", "load_batch", "loader_of"]

Batch = Mapping[str, torch.Tensor]
Loader = Callable[[int, int, int], Batch]
"""From a step and the samples [first, last) of its global batch to tensors with a row for each."""


def loader_of(data: "Loader | torch.utils.data.Dataset[Batch]", batch_size: int) -> Loader:
    """Give what loads samples [first, last) of a step; a dataset is run through in its order."""
    if not hasattr(data, "__getitem__"):
        return data
    dataset = data
    length = len(dataset)  # type: ignore[arg-type]

    def load(step: int, first: int, last: int) -> Batch:
        numbers = [(step * batch_size + sample) % length for sample in range(first, last)]
        items = [dataset[number] for number in numbers]
        return {key: torch.stack([item[key] for item in items]) for key in items[0]}

    return load


def load_batch(
    task: str, load: Loader, step: int, span: tuple[int, int], dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Give the samples, their floating-point numbers as `dtype`.

    Raises:
        InputError: an entry isn't a tensor with a row for each sample.
    """
    first, last = span
    batch: dict[str, torch.Tensor] = dict(load(step, first, last))
    loaded: dict[str, object] = dict(batch)
    for name, value in loaded.items():
        if not isinstance(value, torch.Tensor) or not value.dim() or len(value) != last - first:
            found = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            raise InputError(
                f"task {task!r}: entry {name!r} of the batch [{first}, {last}) is {found}; it must"
                f" be a tensor with {last - first} rows, one for each sample"
            )
        if value.is_floating_point():
            batch[name] = value.to(dtype)
    return batch
