"""What running a model to split it leaves as it was: its buffers, and torch's random numbers."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

__all__ = ["standing"]


@contextmanager
def standing(root: nn.Module) -> Iterator[None]:
    """Put buffers (running means, counters) and the state of random numbers back at the end."""
    kept = [(module, dict(module._buffers)) for module in root.modules()]
    copies = [
        (buffer, buffer.detach().clone())
        for _, buffers in kept
        for buffer in buffers.values()
        if buffer is not None and not buffer.is_meta
    ]
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)
        for module, buffers in kept:
            module._buffers.update(buffers)
        with torch.no_grad():
            for buffer, copy in copies:
                buffer.copy_(copy)
