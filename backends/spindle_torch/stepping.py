"""The optimizer that every run has: AdamW."""

from collections.abc import Sequence

import torch

__all__ = ["LEARNING_RATE", "adamw"]

LEARNING_RATE = 1e-3


def adamw(
    parameters: Sequence[torch.nn.Parameter], learning_rate: float = LEARNING_RATE
) -> torch.optim.Optimizer:
    """Give AdamW for parameters of one device, one at least.

    On a GPU one kernel steps many of them: one after the other takes a dozen kernels for each, more
    time to launch than to run. It counts steps there, so that nothing waits for the host.
    """
    on_gpu = parameters[0].is_cuda
    return torch.optim.AdamW(parameters, lr=learning_rate, foreach=False, fused=on_gpu)
