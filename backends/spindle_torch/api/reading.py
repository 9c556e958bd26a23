"""Numbers of tensors that leave torch: as arrays of numpy, lists, or bytes of another library."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["Reads"]

_LEAVING = frozenset(
    (
        torch.Tensor.numpy,
        torch.Tensor.tolist,
        torch.Tensor.__array__,
        torch.Tensor.__dlpack__,
    )
)


class Reads(TorchFunctionMode):
    """Tells of each tensor whose numbers leave, which the dispatcher doesn't see."""

    def __init__(self, tell: Callable[[torch.Tensor], None]) -> None:
        super().__init__()
        self.tell = tell

    def __torch_function__(
        self,
        function: Any,
        types: Sequence[type],
        arguments: Sequence[Any] = (),
        keywords: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the function, having told what it reads."""
        del types
        if function in _LEAVING and isinstance(arguments[0], torch.Tensor):
            self.tell(arguments[0])
        return function(*arguments, **(keywords or {}))
