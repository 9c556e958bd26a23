"""One forward of a task, watched: which leaves it calls, what flows between them, what it costs.

Data flow is read off the tensors themselves, below whatever Python code joins the leaves: each
storage carries the values and parameters that it depends on since the last leaf. So it works for
models that can't be traced, and what depends on the data alone (masks, positions, rotary
embeddings) depends on no leaf.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from spindle_sim.errors import InputError
from spindle_torch.api.calls import intercepted
from spindle_torch.api.calm import calmed, draws_at_random
from spindle_torch.api.kept import Kept, check_owned, storage_of
from spindle_torch.api.reading import Reads
from spindle_torch.api.tally import Tally, tensors_of
from spindle_torch.api.values import Value

__all__ = ["Origin", "Seen", "SeenCall", "watch"]


@dataclass(frozen=True, slots=True)
class Origin:
    """What a tensor depends on: values of calls, and parameters and draws outside of leaves.

    `draws` are numbers of the operations that drew at random, in the order in which they ran.
    """

    values: frozenset[Value] = frozenset()
    parameters: frozenset[str] = frozenset()
    draws: frozenset[int] = frozenset()

    def __or__(self, other: "Origin") -> "Origin":
        return Origin(
            self.values | other.values,
            self.parameters | other.parameters,
            self.draws | other.draws,
        )


@dataclass(slots=True, kw_only=True)
class SeenCall:
    """One call of a leaf: what its inputs depend on, what came out, and what it cost.

    Inputs that pass a boundary depend on `crossing`, the others, and whatever else the leaf reads
    (closures, objects), on `origin`.

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
    """One forward; its loss depends on `origin`. What it gives is exact to `rounding` of the
    largest number.

    `generators` are the states in which generators of the task's own began.
    """

    loss: torch.Tensor
    calls: list[SeenCall]
    origin: Origin
    before: Tally
    rounding: float
    generators: tuple[torch.Tensor, ...]


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
    watcher.kept.enter(list(batch.values()))
    # Without a record for a backward tensors stay the same objects; the fused path of attention
    # isn't what trains.
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), intercepted(leaves, watcher), Reads(watcher.refuse_reads), watcher:
            loss = task(batch)
        watcher.kept.check([loss], None, watcher.names)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return Seen(
        loss=loss,
        calls=watcher.calls,
        origin=watcher.origin_of([loss]),
        before=watcher.pending,
        rounding=watcher.rounding,
        generators=tuple(state for _, state in watcher.generators.values()),
    )


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
# Far above what is lost, and far below what another sample changes. Products of float32 on GPUs
# may be rounded as in TF32.
_ROUNDING = {torch.float64: 1e-7, torch.float32: 1e-4}
_COARSE = 1e-2
_READS = frozenset((torch.ops.aten._local_scalar_dense, torch.ops.aten.equal))


@dataclass(slots=True)
class _Place:
    """Where the watcher is: in which leaf, and what was counted there."""

    leaf: str | None = None
    tally: Tally = field(default_factory=Tally)
    read: Origin = Origin()


class _Watcher(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, *, samples: int, boundaries: frozenset[str], calm: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.samples = samples
        self.calm = calm
        self.boundaries = boundaries
        self.calls: list[SeenCall] = []
        self.pending = Tally()
        self.rounding = 0.0
        self.generators: dict[int, tuple[torch.Generator, torch.Tensor]] = {}
        self.kept = Kept()
        self._place = _Place()
        self._draws = 0
        self._origins: dict[int, Origin] = {}
        self._given: set[int] = set()  # ids of what leaves gave
        self._alive: list[torch.Tensor] = []  # a freed storage's address could be another's

    @property
    def names(self) -> list[str]:
        return [call.leaf for call in self.calls]

    def mark(self, tensor: torch.Tensor, origin: Origin) -> None:
        self._alive.append(tensor)
        self._origins[storage_of(tensor)] = origin

    def origin_of(self, values: object) -> Origin:
        origin = Origin()
        for tensor in tensors_of(values):
            origin |= self._origins.get(storage_of(tensor), Origin())
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
        tally, origin = self._place.tally, origin | self._read_within(index)
        outputs, made_spec = tree_flatten(made)
        outputs = self._handed_on(index, outputs)
        made = tree_unflatten(outputs, made_spec)
        self._place = _Place()
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

    def _read_within(self, index: int) -> Origin:
        """Give what the leaf that runs has read, but for what entered by its boundary."""
        read = self._place.read
        outer = [value for value in read.values if (value.call, value.enters) != (index, True)]
        return Origin(frozenset(outer), read.parameters, read.draws)

    def _handed_on(self, index: int, outputs: Sequence[Any]) -> list[Any]:
        """Give copies of what the leaf made: who reads the originals has them from elsewhere."""
        self._place.tally = Tally()  # copying is no part of the leaf
        copies = [
            item.clone()
            if isinstance(item, torch.Tensor) and self.kept.made_within(index, item)
            else item
            for item in outputs
        ]
        self.kept.give(tensors_of(copies))
        return copies

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
        read = tensors_of(list(named.values()))
        call = None if self._place.leaf is None else len(self.calls)
        self.kept.check(read, call, self.names)
        check_owned(read, self._origins, self._place.leaf or "the code between modules")
        own = named.get("generator")
        if own is not None and id(own) not in self.generators:
            self.generators[id(own)] = own, own.get_state()
        if self.calm:
            result = calmed(function, arguments, keywords, named)
        else:
            result = function(*arguments, **keywords)
        self.rounding = max(self.rounding, *map(_rounding, tensors_of(result)), 0.0)
        if call is not None:
            self._within_leaf(call, function, named, result)
            return result
        self.pending.count(function, named, result, self.samples)
        self._follow(function, named, result)
        return result

    def refuse_reads(self, tensor: torch.Tensor) -> None:
        """Refuse to give the numbers of a tensor to Python code outside of leaves."""
        origin = self.origin_of([tensor])
        if self._place.leaf is None and origin.values:
            leaf = self.calls[min(value.call for value in origin.values)].leaf
            raise InputError(
                f"{leaf}: the model decides by numbers that this module gave (an `if`, an .item()"
                " or the like behind it), so that what runs isn't known ahead; move the decision"
                " into a module that isn't cut, and name it in `whole`"
            )

    def _within_leaf(
        self,
        call: int,
        function: Any,
        named: Mapping[str, Any],
        result: object,
    ) -> None:
        assert self._place.leaf is not None, "no leaf runs"
        self._refuse_writes(self._place.leaf, function, named)
        self._place.tally.count(function, named, result, self.samples)
        read = tensors_of(list(named.values()))
        origin = self.origin_of(read)
        self._place.read |= origin
        counts = function.overloadpacket not in _VALUE_FREE and (
            origin != Origin() or self.kept.of_data(read)
        )
        depends = counts or draws_at_random(function, named)
        self.kept.make(call, read, tensors_of(result), depends=depends)

    def _follow(self, function: Any, named: Mapping[str, Any], result: object) -> None:
        read = tensors_of(list(named.values()))
        packet = function.overloadpacket
        origin = Origin() if packet in _VALUE_FREE else self.origin_of(read)
        if packet in _READS:
            for tensor in read:
                self.refuse_reads(tensor)
        if packet not in _VALUE_FREE and self.kept.of_data(read):
            self.kept.enter(tensors_of([_written(function, named), result]))
        if draws_at_random(function, named):
            origin |= Origin(draws=frozenset([self._draws]))
            self._draws += 1
        if origin == Origin():
            for tensor in tensors_of(result):
                self._alive.append(tensor)
            return
        for tensor in tensors_of([_written(function, named), result]):
            known = self._origins.get(storage_of(tensor), Origin())
            self.mark(tensor, known | origin)

    def _refuse_writes(self, leaf: str, function: Any, named: Mapping[str, Any]) -> None:
        if self.origin_of(_written(function, named)) != Origin():
            raise InputError(
                f"{leaf}: overwrites its input ({function}), which others may read; make that"
                " operation one that gives a new tensor (inplace=False)"
            )


def _written(function: Any, named: Mapping[str, Any]) -> list[Any]:
    """Give the arguments that the operation overwrites."""
    return [
        named[item.name]
        for item in function._schema.arguments
        if item.alias_info is not None and item.alias_info.is_write and item.name in named
    ]


def _rounding(tensor: torch.Tensor) -> float:
    if not tensor.is_floating_point():
        return 0.0
    return _ROUNDING.get(tensor.dtype, _COARSE) if tensor.device.type == "cpu" else _COARSE
