"""Being told by autograd that the gradients of some parameters are complete."""

from collections.abc import Callable, Sequence

import torch
from torch.utils.hooks import RemovableHandle

__all__ = ["when_all_have_gradients"]


def when_all_have_gradients(
    parameters: Sequence[torch.nn.Parameter], tell: Callable[[], None]
) -> list[RemovableHandle]:
    """Have `tell` called once the next backward has added to the gradient of each parameter.

    It never is where one of them has no part in the backward. The handles take the hooks away.
    """
    missing = set(parameters)

    def accumulated(parameter: torch.Tensor) -> None:
        missing.discard(parameter)
        if not missing:
            tell()

    handles: list[RemovableHandle] = []
    for parameter in missing:
        handle = parameter.register_post_accumulate_grad_hook(accumulated)  # type: ignore[no-untyped-call]
        handles.append(handle)
    return handles
