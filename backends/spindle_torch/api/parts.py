"""A task as parts: what may run on devices of its own, with what flows in and out.

A part is a run of steps: entering a leaf, running it, computing the loss. Code between leaves
belongs to what follows it; before a stack of repeated blocks it is a part that joins what comes
before, so that the first block is as the others (criterion 2 of section 3.1).
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from spindle_sim.errors import InputError
from spindle_torch.api.capture import Call, Capture
from spindle_torch.api.tally import Tally
from spindle_torch.api.values import Value
from spindle_torch.api.watching import Origin

__all__ = ["Part", "check_draws", "join_small_parts", "loss_step", "split", "step_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Steps that run together; `keys` name what holds parameters among them, over all tasks.

    `inputs` are values of other parts, `outputs` those that other parts need; `draws` are random
    numbers that code between leaves drew for it. `stack` is the place among repeated blocks.
    """

    keys: tuple[str, ...]
    label: str
    steps: frozenset[int]
    inputs: frozenset[Value]
    outputs: tuple[Value, ...]
    parameters: frozenset[str]
    draws: frozenset[int]
    tally: Tally
    glue: Tally
    stack: tuple[str, int] | None = None
    coupled: bool = False
    ends: bool = False  # it gives the loss

    @property
    def last_step(self) -> int:
        """The step after which all its outputs are there."""
        return max(self.steps)


def step_of(value: Value) -> int:
    """Give the step that makes a value: a call's entrance, or the call."""
    return 2 * value.call + (not value.enters)


def loss_step(found: Capture) -> int:
    """Give the step that computes the loss."""
    return 2 * len(found.calls)


def split(
    found: Capture,
    *,
    held: Mapping[str, Collection[str]],
    stacks: Mapping[str, tuple[str, int]],
    coupled: Collection[str],
    coupled_loss: bool,
) -> tuple[Part, ...]:
    """Give the parts that the loss depends on, in order; `held` are the parameters of each leaf."""
    parts: list[Part] = []
    for index, call in enumerate(found.calls):
        inputs, glue = call.origin, call.before
        if call.entering:
            parts.append(_entrance(index, call, stacks[call.leaf][0]))
            values = frozenset(parts[-1].outputs)
            inputs, glue = inputs | Origin(values=values), Tally()
        parameters = inputs.parameters | set(held[call.leaf])
        parts.append(
            Part(
                keys=(call.leaf,) if parameters else (),
                label=call.leaf,
                steps=frozenset([2 * index + 1]),
                inputs=inputs.values,
                outputs=tuple(Value(index, place) for place in range(len(call.shapes))),
                parameters=parameters,
                draws=inputs.draws,
                tally=call.tally,
                glue=glue,
                stack=stacks.get(call.leaf),
                coupled=call.leaf in coupled,
            )
        )
    parts.append(
        Part(
            keys=(),
            label="loss",
            steps=frozenset([loss_step(found)]),
            inputs=found.origin.values,
            outputs=(),
            parameters=found.origin.parameters,
            draws=found.origin.draws,
            tally=found.before,
            glue=Tally(),
            coupled=coupled_loss,
            ends=True,
        )
    )
    return _needed(parts)


def join_small_parts(parts: Iterable[Part], apart: Collection[str]) -> tuple[Part, ...]:
    """Join neighbours that aren't repeated blocks, unless one of their keys is to stay `apart`.

    A part joins the only one that needs it, of the same module of the user, if that one needs
    nothing else, or if the part multiplies nothing (an embedding, a norm).
    """
    current = list(parts)
    while (pair := _joinable(current, apart)) is not None:
        first, second = current[pair[0]], current[pair[1]]
        current[pair[1]] = _joined(first, second)
        del current[pair[0]]
    return tuple(current)


def check_draws(task: str, parts: Iterable[Part]) -> None:
    """Check that random numbers drawn between leaves serve one part: each draws its own.

    Raises:
        InputError: several parts would have to draw the same.
    """
    users: dict[int, list[str]] = {}
    for part in parts:
        for number in part.draws:
            users.setdefault(number, []).append("the loss" if part.ends else part.label)
    for labels in users.values():
        if len(labels) > 1:
            raise InputError(
                f"task {task!r}: random numbers that are drawn between modules (noise, dropout)"
                f" reach {labels[0]} and {labels[1]}, which may run on different devices, and"
                " would draw others there; draw them in the data (a generator seeded by step and"
                " sample), or within a module that gives them on, such as the block that the"
                " dropout is of"
            )


def _entrance(index: int, call: Call, stack: str) -> Part:
    """Give the part that is the code before a stack of blocks."""
    crossing = call.crossing
    return Part(
        keys=(f">{call.leaf}",) if crossing.parameters else (),
        label=f"{stack}.input",
        steps=frozenset([2 * index]),
        inputs=crossing.values,
        outputs=tuple(Value(index, place, enters=True) for place, _ in call.entering),
        parameters=crossing.parameters,
        draws=crossing.draws,
        tally=call.before,
        glue=Tally(),
    )


def _needed(parts: list[Part]) -> tuple[Part, ...]:
    """Drop what the loss doesn't depend on, and outputs that nobody needs."""
    kept: list[Part] = []
    wanted: set[Value] = set()
    for part in reversed(parts):
        outputs = tuple(value for value in part.outputs if value in wanted)
        if outputs or not kept:
            kept.append(replace(part, outputs=outputs))
            wanted |= part.inputs
    return tuple(reversed(kept))


def _joinable(parts: list[Part], apart: Collection[str]) -> tuple[int, int] | None:
    for index, part in enumerate(parts):
        if part.stack or not set(part.keys).isdisjoint(apart):
            continue
        takers = [
            place for place, other in enumerate(parts) if other.inputs & frozenset(part.outputs)
        ]
        if len(takers) != 1:
            continue
        taker = parts[takers[0]]
        if part.coupled and not taker.ends:
            continue
        if (
            taker.stack
            or (taker.coupled and not part.coupled)
            or not set(taker.keys).isdisjoint(apart)
        ):
            continue
        alone = taker.inputs <= frozenset(part.outputs)
        is_light = not part.tally.gemms and not part.tally.attentions
        related = taker.ends or not taker.keys or _root(part.label) == _root(taker.label)
        if related and (alone or (is_light and not taker.ends and not part.coupled)):
            return index, takers[0]
    return None


def _joined(first: Part, second: Part) -> Part:
    # Named after what computes most of it.
    larger = second if second.keys and second.tally.flops > first.tally.flops else first
    return replace(
        second,
        keys=(*first.keys, *second.keys),
        label=larger.label,
        steps=first.steps | second.steps,
        inputs=first.inputs | (second.inputs - frozenset(first.outputs)),
        parameters=first.parameters | second.parameters,
        draws=first.draws | second.draws,
        coupled=first.coupled or second.coupled,
        tally=first.tally.add(second.tally),
        glue=first.glue.add(second.glue),
    )


def _root(label: str) -> str:
    return label.split(".", 1)[0]
