"""One forward of a task, watched: which leaves it calls, what flows between them, what it costs.

Data flow is read off the tensors themselves, below whatever Python code joins the leaves: each
storage carries the values and parameters that it depends on since the last leaf. So it works for
models that can't be traced, and what depends on the data alone (masks, positions, rotary
embeddings) depends on no leaf.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from spindle_sim.errors import InputError
from spindle_torch.api.calls import intercepted
from spindle_torch.api.calm import calmed
from spindle_torch.api.tally import Tally, number_bytes, tensors_of
from spindle_torch.api.values import Value

__all__ = ["Origin", "Seen", "SeenCall", "watch", "watch_saved"]


@dataclass(frozen=True, slots=True)
class Origin:
    """What a tensor depends on: values of calls, and parameters outside of leaves."""

    values: frozenset[Value] = frozenset()
    parameters: frozenset[str] = frozenset()

    def __or__(self, other: "Origin") -> "Origin":
        return Origin(self.values | other.values, self.parameters | other.parameters)


@dataclass(slots=True, kw_only=True)
class SeenCall:
    """One call of a leaf: what its inputs depend on, what came out, and what it cost.

    Inputs that pass a boundary depend on `crossing`, the others on `origin`.

    `before` is the cost of the code since the leaf before. Where the leaf is entered through a
    boundary, `entering` are the input tensors that code outside of leaves made, by their places.
    `returned` are places of the output where an input comes back as it is, and the input's place.
    """

    leaf: str
    origin: Origin
    crossing: Origin
    before: Tally
    tally: Tally
    entering: dict[int, torch.Tensor]
    spec: TreeSpec
    outputs: list[Any]
    returned: dict[int, int]

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The output's tensors, in the order of places."""
        return [item for item in self.outputs if isinstance(item, torch.Tensor)]


@dataclass(slots=True, kw_only=True)
class Seen:
    """One forward; its loss depends on `origin`."""

    loss: torch.Tensor
    calls: list[SeenCall]
    origin: Origin
    before: Tally


def watch(
    task: Callable[[Mapping[str, torch.Tensor]], torch.Tensor],
    leaves: Mapping[str, nn.Module],
    batch: Mapping[str, torch.Tensor],
    *,
    parameters: Mapping[str, nn.Parameter],
    samples: int,
    boundaries: Collection[str],
    calm: bool = False,
) -> Seen:
    """Run a forward of the task and give what was seen; leaves in `boundaries` have an entrance.

    A `calm` one draws no random numbers (`calm.py`).

    Raises:
        InputError: what the task computes depends on numbers that a leaf gave.
    """
    watcher = _Watcher(samples=samples, boundaries=frozenset(boundaries), calm=calm)
    for name, parameter in parameters.items():
        watcher.mark(parameter, Origin(parameters=frozenset([name])))
    # Without a record for a backward tensors stay the same objects; the fused path of attention
    # isn't what trains.
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), intercepted(leaves, watcher), watcher:
            loss = task(batch)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return Seen(
        loss=loss,
        calls=watcher.calls,
        origin=watcher.origin_of([loss]),
        before=watcher.pending,
    )


def watch_saved(
    task: Callable[[Mapping[str, torch.Tensor]], torch.Tensor],
    leaves: Mapping[str, nn.Module],
    batch: Mapping[str, torch.Tensor],
    samples: int,
) -> tuple[list[float], bool]:
    """Give the bytes that each call of a leaf keeps of one sample for its backward.

    And whether the loss has a gradient.
    """
    watcher = _SavingWatcher()
    with torch.enable_grad(), intercepted(leaves, watcher), watcher.packing():
        loss = task(batch)
    return [size_bytes / samples for size_bytes in watcher.saved], loss.requires_grad


# Their result depends on sizes and dtypes alone.
_VALUE_FREE = frozenset(
    getattr(torch.ops.aten, name)
    for name in (
        "zeros_like",
        "ones_like",
        "full_like",
        "empty_like",
        "rand_like",
        "randn_like",
        "new_zeros",
        "new_ones",
        "new_full",
        "new_empty",
        "new_empty_strided",
    )
)
_READS = frozenset((torch.ops.aten._local_scalar_dense, torch.ops.aten.equal))


@dataclass(slots=True)
class _Place:
    """Where the watcher is: in which leaf, and what was counted there."""

    leaf: str | None = None
    tally: Tally = field(default_factory=Tally)


class _Watcher(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, *, samples: int, boundaries: frozenset[str], calm: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.samples = samples
        self.calm = calm
        self.boundaries = boundaries
        self.calls: list[SeenCall] = []
        self.pending = Tally()
        self._place = _Place()
        self._origins: dict[int, Origin] = {}
        self._given: set[int] = set()  # ids of what leaves gave
        self._alive: list[torch.Tensor] = []  # a freed storage's address could be another's

    def mark(self, tensor: torch.Tensor, origin: Origin) -> None:
        self._alive.append(tensor)
        self._origins[_storage(tensor)] = origin

    def origin_of(self, values: object) -> Origin:
        origin = Origin()
        for tensor in tensors_of(values):
            origin |= self._origins.get(_storage(tensor), Origin())
        return origin

    def call(
        self,
        name: str,
        forward: Callable[..., Any],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> Any:
        index = len(self.calls)
        leaves, spec = tree_flatten((arguments, keywords))
        entering: dict[int, torch.Tensor] = {}
        crossing, before = Origin(), self.pending
        if name in self.boundaries:
            crossing, entering = self._enter(index, leaves)
            arguments, keywords = tree_unflatten(leaves, spec)
        others = [item for place, item in enumerate(leaves) if place not in entering]
        origin = self.origin_of(others)
        self.pending = Tally()
        self._place = _Place(leaf=name)
        made = forward(*arguments, **keywords)
        tally, self._place = self._place.tally, _Place()
        outputs, made_spec = tree_flatten(made)
        taken = {id(item): place for place, item in enumerate(leaves) if torch.is_tensor(item)}
        given = tensors_of(outputs)
        returned = {place: taken[id(item)] for place, item in enumerate(given) if id(item) in taken}
        self.calls.append(
            SeenCall(
                leaf=name,
                origin=origin,
                crossing=crossing,
                before=before,
                tally=tally,
                entering=entering,
                spec=made_spec,
                outputs=outputs,
                returned=returned,
            )
        )
        for place, tensor in enumerate(given):
            if place not in returned:
                # What gives a part of an input back depends on the input as well.
                value = Origin(frozenset([Value(index, place)]))
                self.mark(tensor, value | self.origin_of([tensor]))
                self._given.add(id(tensor))
        return made

    def _enter(self, index: int, leaves: list[Any]) -> tuple[Origin, dict[int, torch.Tensor]]:
        """Put copies in place of what no leaf gave, so that the originals stay what they are."""
        entering: dict[int, torch.Tensor] = {}
        crossing = Origin()
        for place, item in enumerate(leaves):
            if not isinstance(item, torch.Tensor) or id(item) in self._given:
                continue
            if self.origin_of([item]) != Origin():
                crossing |= self.origin_of([item])
                entering[place] = leaves[place] = item.clone()
                value = Value(index, place, enters=True)
                self.mark(entering[place], Origin(frozenset([value])))
        return crossing, entering

    def __torch_dispatch__(
        self,
        function: Any,
        types: Sequence[type],
        arguments: Sequence[Any] = (),
        keywords: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        keywords = keywords or {}
        named = {
            item.name: value
            for item, value in zip(function._schema.arguments, arguments, strict=False)
        } | dict(keywords)
        if self.calm:
            result = calmed(function, arguments, keywords, named)
        else:
            result = function(*arguments, **keywords)
        if self._place.leaf is not None:
            self._refuse_writes(self._place.leaf, function, named)
            self._place.tally.count(function, named, result, self.samples)
            return result
        self.pending.count(function, named, result, self.samples)
        self._follow(function, named, result)
        return result

    def _follow(self, function: Any, named: Mapping[str, Any], result: object) -> None:
        origin = self.origin_of(list(named.values()))
        packet = function.overloadpacket
        if origin == Origin() or packet in _VALUE_FREE:
            for tensor in tensors_of(result):
                self._alive.append(tensor)
            return
        if packet in _READS and origin.values:
            leaf = self.calls[min(value.call for value in origin.values)].leaf
            raise InputError(
                f"{leaf}: the model decides by numbers that this module gave (an `if`, an .item()"
                " or the like behind it), so that what runs isn't known ahead; move the decision"
                " into a module that isn't cut, and name it in `whole`"
            )
        for tensor in tensors_of([_written(function, named), result]):
            known = self._origins.get(_storage(tensor), Origin())
            self.mark(tensor, known | origin)

    def _refuse_writes(self, leaf: str, function: Any, named: Mapping[str, Any]) -> None:
        if self.origin_of(_written(function, named)) != Origin():
            raise InputError(
                f"{leaf}: overwrites its input ({function}), which others may read; make that"
                " operation one that gives a new tensor (inplace=False)"
            )


class _SavingWatcher:
    def __init__(self) -> None:
        self.saved: list[float] = []
        self._seen: set[int] = set()
        self._alive: list[torch.Tensor] = []
        self._within = False

    def call(
        self,
        name: str,
        forward: Callable[..., Any],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> Any:
        del name
        self.saved.append(0.0)
        self._within = True
        made = forward(*arguments, **keywords)
        self._within = False
        return made

    @contextmanager
    def packing(self) -> Iterator[None]:
        with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda packed: packed):
            yield

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        is_parameter = isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)
        if self._within and not is_parameter and _storage(tensor) not in self._seen:
            self._seen.add(_storage(tensor))
            self._alive.append(tensor)
            self.saved[-1] += number_bytes(tensor)
        return tensor


def _written(function: Any, named: Mapping[str, Any]) -> list[Any]:
    """Give the arguments that the operation overwrites."""
    return [
        named[item.name]
        for item in function._schema.arguments
        if item.alias_info is not None and item.alias_info.is_write and item.name in named
    ]


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
