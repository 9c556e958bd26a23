"""What of a rank's training goes into a checkpoint, and under which keys.

`model.NAME` is a parameter, `optim.NAME.STATE` a state that the optimizer keeps of it; NAME is
what the model calls it wherever it lies. Tensor-parallel shards and the ranges of ZeRO are boxes of
the whole: of the states, and in stage 3 of the parameters, too.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from spindle_torch.checkpoint_planning import Piece, State
from spindle_torch.drawing import Shard
from spindle_torch.pool import held_operators
from spindle_torch.sharded_optimizer import RangePart, ShardedOptimizer
from spindle_torch.training import Training

__all__ = [
    "boxes",
    "model_key",
    "model_state",
    "optimizer_state",
    "parameter_of",
    "prepare_optimizer",
    "trained_names",
]

_MODEL, _OPTIMIZER = "model.", "optim."

_COUNTER = "step"  # the one state that isn't as large as the parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """A parameter as this rank holds it; `speaks` where it is the one to say what it is."""

    name: str
    parameter: torch.nn.Parameter
    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    speaks: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stepped:
    """The states that the optimizer has of a parameter's flat numbers from `begin` on."""

    held: _Held
    states: dict[str, torch.Tensor]
    like: torch.Tensor
    begin: int = 0


def model_key(name: str) -> str:
    """Give the key of a parameter."""
    return _MODEL + name


def parameter_of(key: str) -> str:
    """Give the name of the parameter that a key belongs to."""
    if key.startswith(_OPTIMIZER):
        return key.removeprefix(_OPTIMIZER).rpartition(".")[0]
    return key.removeprefix(_MODEL)


def trained_names(training: Training) -> frozenset[str]:
    """Give the names of the parameters on this rank that are trained, by it or by another."""
    return frozenset(item.name for item in _held(training) if item.parameter.requires_grad)


def model_state(training: Training, *, all_held: bool) -> State:
    """Give the parameters, frozen ones too.

    With `all_held` every one that this rank holds. Else without those that are whole on each
    tensor-parallel shard where it isn't the first: rounding may have driven them apart, and one
    must be what is written.
    """
    apart = _divided(training.optimizer)
    found: dict[str, tuple[Piece, ...]] = {}
    for item in _held(training):
        parts = apart.get(id(item.parameter))
        if parts is None:
            whole = Piece(offsets=item.offsets, shape=item.shape, tensor=item.parameter.detach())
            pieces: tuple[Piece, ...] = (whole,)
        else:
            pieces = tuple(
                piece
                for part in parts
                for piece in _pieces(item, part.numbers.detach(), part.begin)
            )
        if pieces and (all_held or item.speaks):
            found[model_key(item.name)] = pieces
    return found


def optimizer_state(training: Training, *, all_held: bool) -> State:
    """Give the states of the optimizer, as boxes of tensors as large as the parameters."""
    found: dict[str, tuple[Piece, ...]] = {}
    for item in _stepped(training):
        if not (all_held or item.held.speaks):
            continue
        for name, tensor in item.states.items():
            key = f"{_OPTIMIZER}{item.held.name}.{name}"
            if tensor.dim() == 0:
                found[key] = (Piece(offsets=(), shape=(), tensor=tensor),)
            else:
                found[key] = tuple(_pieces(item.held, tensor, item.begin))
    return found


def prepare_optimizer(training: Training, keys: Iterable[str]) -> None:
    """Make the states that these keys stand for, to be read into.

    A parameter without any begins as a new one does: the optimizer counts its steps from 0.
    """
    saved: dict[str, list[str]] = {}
    for key in keys:
        if key.startswith(_OPTIMIZER):
            saved.setdefault(parameter_of(key), []).append(key.rpartition(".")[2])
    for item in _stepped(training):
        for name in saved.get(item.held.name, ()):
            item.states[name] = (
                torch.zeros((), dtype=torch.float32, device=item.like.device)
                if name == _COUNTER
                else torch.zeros_like(item.like)
            )


def boxes(begin: int, end: int, shape: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Give the boxes that a run of a tensor's flat numbers fills, in order: (offsets, sizes).

    At most two for each dimension but the last, and one.

    >>> list(boxes(1, 11, (4, 3)))
    [((0, 1), (1, 2)), ((1, 0), (2, 3)), ((3, 0), (1, 2))]
    """
    if begin >= end:
        return
    if len(shape) == 1:
        yield (begin,), (end - begin,)
        return
    row = math.prod(shape[1:])
    first, last = -(-begin // row), end // row
    if first > last:  # within one row
        yield from _within(last, begin - last * row, end - last * row, shape)
        return
    yield from _within(first - 1, begin - (first - 1) * row, row, shape)
    if first < last:
        yield (first, *(0 for _ in shape[1:])), (last - first, *shape[1:])
    yield from _within(last, 0, end - last * row, shape)


def _within(
    row: int, begin: int, end: int, shape: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], ...]]:
    if begin == math.prod(shape[1:]):
        return  # nothing of that row
    for offsets, sizes in boxes(begin, end, shape[1:]):
        yield (row, *offsets), (1, *sizes)


def _held(training: Training) -> Iterator[_Held]:
    held = held_operators(training.plan, tied=True)
    for key in (key for key, ranks in held.items() if training.rank in ranks):
        for name, parameter in training.model.named_parameters(key):
            shape, offsets = list(parameter.shape), [0] * parameter.dim()
            divided = parameter.divided if isinstance(parameter, Shard) else None
            if divided is not None:
                offsets[divided] = key.shard * shape[divided]
                shape[divided] *= key.num_shards
            yield _Held(
                name=name,
                parameter=parameter,
                offsets=tuple(offsets),
                shape=tuple(shape),
                speaks=divided is not None or key.shard == 0,
            )


def _stepped(training: Training) -> Iterator[_Stepped]:
    optimizer = training.optimizer
    held = {id(item.parameter): item for item in _held(training)}
    if isinstance(optimizer, ShardedOptimizer):
        for part in _parts(optimizer):
            yield _Stepped(
                held=held[id(part.parameter)],
                states=optimizer.state(part),
                like=part.numbers.detach(),
                begin=part.begin,
            )
    elif optimizer is not None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                yield _Stepped(
                    held=held[id(parameter)],
                    states=optimizer.state[parameter],
                    like=parameter.detach(),
                )


def _parts(optimizer: ShardedOptimizer) -> Iterator[RangePart]:
    for item in optimizer.ranges.values():
        for part in item.parts:
            if part.parameter is not None:
                yield part


def _divided(
    optimizer: torch.optim.Optimizer | ShardedOptimizer | None,
) -> dict[int, tuple[RangePart, ...]]:
    """Give what a rank has of each parameter that it doesn't hold whole; it may be nothing."""
    if not isinstance(optimizer, ShardedOptimizer):
        return {}
    return {
        id(parameter): tuple(part for part in item.parts if part.parameter is parameter)
        for item in optimizer.ranges.values()
        if item.is_divided
        for parameter in item.parameters
    }


def _pieces(held: _Held, tensor: torch.Tensor, begin: int) -> Iterator[Piece]:
    """Cut a parameter's numbers from `begin` on, or their states, into boxes.

    In the order of boxes the numbers lie one behind the other.
    """
    if tensor.numel() == held.parameter.numel():
        whole = tensor.view(held.parameter.shape)
        yield Piece(offsets=held.offsets, shape=held.shape, tensor=whole)
        return
    flat, first = tensor.view(-1), 0
    for offsets, sizes in boxes(begin, begin + len(flat), tuple(held.parameter.shape)):
        count = math.prod(sizes)
        yield Piece(
            offsets=tuple(a + b for a, b in zip(held.offsets, offsets, strict=True)),
            shape=held.shape,
            tensor=flat[first : first + count].view(sizes),
        )
        first += count
