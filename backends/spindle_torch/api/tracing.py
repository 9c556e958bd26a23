"""A task traced symbolically by torch.fx, its leaves as single nodes: one trace for each task.

Data flow that a trace shows must be what a run showed. A model that decides by the contents of
tensors, or that needs real ones, can't be traced; then the run alone tells (`watching.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from spindle_sim.errors import InputError
from spindle_torch.api.capture import Capture

__all__ = ["TracedCall", "check_trace", "trace"]

_SIZES = frozenset(("size", "dim", "numel", "ndimension", "type", "is_floating_point"))
_LIKE = ("_like", "new_zeros", "new_ones", "new_full", "new_empty")
# A trace runs the user's code on symbols, which may fail in any way that its author can think of.
_UNTRACEABLE = (
    fx.proxy.TraceError,
    InputError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    RuntimeError,
    TypeError,
    ValueError,
)
_ATTRIBUTES = frozenset(("shape", "dtype", "device", "ndim", "requires_grad"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCall:
    """A call of a leaf, and the numbers of the calls whose output flows into it."""

    leaf: str
    sources: frozenset[int]


def trace(
    task: nn.Module, leaves: Mapping[str, nn.Module]
) -> tuple[tuple[TracedCall, ...], frozenset[int]] | None:
    """Give the calls in order, and those that the loss depends on; None if it can't be traced."""
    tracer = _Tracer(leaves)
    try:
        graph = tracer.trace(task)
    except _UNTRACEABLE:
        return None
    numbers: dict[fx.Node, int] = {}
    origins: dict[fx.Node, frozenset[int]] = {}
    calls: list[TracedCall] = []
    for node in graph.nodes:
        sources = frozenset[int]().union(*(origins[item] for item in node.all_input_nodes))
        leaf = tracer.leaf_of(node)
        if leaf is not None:
            numbers[node] = len(calls)
            calls.append(TracedCall(leaf=leaf, sources=sources))
            sources = frozenset([numbers[node]])
        if node.op == "output":
            return tuple(calls), sources
        origins[node] = frozenset() if _is_size(node) else sources
    return None


def check_trace(
    task: str, found: Capture, traced: tuple[tuple[TracedCall, ...], frozenset[int]]
) -> None:
    """Check that the task ran as it was traced.

    Raises:
        InputError: a leaf got its input from other leaves, or other leaves ran.
    """
    calls, ends = traced
    ran = [call.leaf for call in found.calls]
    if ran != [call.leaf for call in calls]:
        raise InputError(
            f"task {task!r}: traced, it runs other modules than on its data; what runs must not"
            " depend on the samples"
        )
    returning = {number for number, call in enumerate(found.calls) if call.returned}
    seen = [(call.leaf, call.origin | call.crossing) for call in found.calls]
    wanted = [call.sources for call in calls]
    for (leaf, origin), sources in zip(
        [*seen, ("its loss", found.origin)], [*wanted, ends], strict=True
    ):
        unseen = sources - {value.call for value in origin.values} - returning
        if unseen:
            raise InputError(
                f"task {task!r}: {leaf} gets what {', '.join(ran[n] for n in sorted(unseen))} gave"
                " when it is traced, but not when it runs; a module in between may keep tensors of"
                " its own: name it in `whole`"
            )


class _Tracer(fx.Tracer):
    def __init__(self, leaves: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.names = {id(module): name for name, module in leaves.items()}

    def is_leaf_module(self, module: nn.Module, qualified_name: str) -> bool:
        if id(module) in self.names:
            return True
        if any(id(part) in self.names for part in module.modules()):
            return False
        return super().is_leaf_module(module, qualified_name)

    def leaf_of(self, node: fx.Node) -> str | None:
        if node.op != "call_module":
            return None
        return self.names.get(id(self.root.get_submodule(str(node.target))))


def _is_size(node: fx.Node) -> bool:
    """Tell whether a node gives what a tensor is like, not what is in it."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if name.endswith(_LIKE):
        return True
    if node.op == "call_method":
        return node.target in _SIZES
    if node.op == "call_function" and node.target is getattr:
        attribute: Any = node.args[1]
        return attribute in _ATTRIBUTES
    return False
