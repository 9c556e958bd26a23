"""A model without memory, run for its shapes: one that was built on torch's meta device.

Fake tensors stand for its parameters while it is split, so that a model of any size is measured on
any host. Nothing is computed: what depends on the contents of tensors can't be known.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

__all__ = ["is_shadow", "shadowed"]


def is_shadow(module: nn.Module) -> bool:
    """Tell whether the model has shapes only."""
    return any(parameter.is_meta for parameter in module.parameters())


@contextmanager
def shadowed(
    root: nn.Module, batches: Mapping[str, tuple[Mapping[str, torch.Tensor], ...]]
) -> Iterator[dict[str, tuple[dict[str, torch.Tensor], ...]]]:
    """Put fake tensors in place of all parameters and meta buffers; give fakes of the batches."""
    kept = [(module, dict(module._parameters), dict(module._buffers)) for module in root.modules()]
    fakes: dict[int, nn.Parameter] = {}
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        try:
            for module, parameters, buffers in kept:
                for name, parameter in parameters.items():
                    if parameter is not None:
                        module._parameters[name] = fakes.setdefault(id(parameter), _fake(parameter))
                for name, buffer in buffers.items():
                    if buffer is not None and buffer.is_meta:
                        module._buffers[name] = _empty(buffer)
            yield {
                task: tuple(
                    {name: mode.from_tensor(value) for name, value in batch.items()}
                    for batch in given
                )
                for task, given in batches.items()
            }
        finally:
            for module, parameters, buffers in kept:
                module._parameters.update(parameters)
                module._buffers.update(buffers)


def _fake(parameter: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(_empty(parameter), requires_grad=parameter.requires_grad)


def _empty(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
