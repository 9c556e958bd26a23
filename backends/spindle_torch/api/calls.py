"""Calls of leaves, watched or replaced: every leaf's forward goes through one function for a while.

Only the outermost leaf counts, so that a leaf within a leaf is a part of it. The modules stay what
they are: the instance's `forward` is put back at the end.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, Protocol

from torch import nn

from spindle_torch.api.blame import note_leaf

__all__ = ["Interceptor", "intercepted"]

Forward = Callable[..., Any]


class Interceptor(Protocol):
    """What is asked in place of a leaf's forward."""

    def call(
        self, name: str, forward: Forward, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        """Give what the leaf gives."""
        ...


@contextmanager
def intercepted(leaves: Mapping[str, nn.Module], interceptor: Interceptor) -> Iterator[None]:
    """Send the calls of all leaves to the interceptor."""
    within: list[str] = []
    with ExitStack() as stack:
        for name, module in leaves.items():
            stack.callback(_restore, module, module.__dict__.get("forward"))
            module.__dict__["forward"] = _wrapper(name, module.forward, interceptor, within)
        yield


def _wrapper(name: str, forward: Forward, interceptor: Interceptor, within: list[str]) -> Forward:
    @wraps(forward)  # some callers look at the signature
    def run(*arguments: Any, **keywords: Any) -> Any:
        if within:
            return forward(*arguments, **keywords)
        within.append(name)
        try:
            return interceptor.call(name, forward, arguments, keywords)
        except Exception as error:  # goes on to the user's code, which may know what to do
            note_leaf(error, name)
            raise
        finally:
            within.pop()

    return run


def _restore(module: nn.Module, own: Forward | None) -> None:
    if own is None:
        del module.__dict__["forward"]
    else:
        module.__dict__["forward"] = own
