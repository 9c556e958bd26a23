"""Parts of all tasks put together: which hold the same parameters, which form a run of equal ones.

A unit is a module of the workload: `repeat` equal operators, or one. A use is what a task runs of
it. Contraction (section 3.1) then makes one MetaOp of each use.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from spindle_torch.api.capture import Capture
from spindle_torch.api.parts import Part, step_of
from spindle_torch.api.values import Value

__all__ = ["PartedTask", "Unit", "UnitUse", "unite"]

Numbers = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartedTask:
    """A task and its parts, in order."""

    name: str
    capture: Capture
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Operators that follow one another wherever they are used.

    `own` are the parameters of each by name; `tied_to` units whose parameters they use as well.
    """

    name: str
    own: tuple[tuple[str, ...], ...]
    tied_to: tuple[str, ...]
    coupled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitUse:
    """One run of a unit by a task: its parts, and the values that all of them hand on.

    `sources` are the names of uses whose outputs come in, `carried` the values that each part
    needs of them besides what the part before it gives. `passed` is what a part gives the next.
    """

    name: str
    task: str
    unit: str
    parts: tuple[Part, ...]
    sources: tuple[str, ...]
    carried: tuple[Value, ...]

    @property
    def outputs(self) -> tuple[Value, ...]:
        """What other uses may take."""
        return self.parts[-1].outputs

    def passed(self, index: int) -> tuple[Value, ...]:
        """Give what part `index` hands to the next."""
        return (*self.parts[index].outputs, *self.carried)


def unite(
    tasks: Sequence[PartedTask], numbers: Numbers
) -> tuple[tuple[Unit, ...], tuple[UnitUse, ...]]:
    """Give the units and their uses; `numbers` are the sizes of the parameters."""
    owners = _owners(tasks)
    starts = _starts(tasks, owners, numbers)
    lengths = Counter(stack for stack, _ in {p.stack for t in tasks for p in t.parts if p.stack})
    units: dict[tuple[str, ...], Unit] = {}
    uses: list[UnitUse] = []
    for task in tasks:
        found: dict[int, str] = {}  # which use makes a step
        taken: set[str] = set()
        for run in _runs(task, starts, owners, numbers):
            identity = tuple(_identity(task, part) for part in run)
            if identity not in units:
                name = _free(_name(task, run, lengths), {unit.name for unit in units.values()})
                units[identity] = _unit(name, identity, run, owners)
            unit = units[identity]
            name = _free(unit.name, taken)
            taken.add(name)
            uses.append(_use(task, name, unit.name, run, found))
            found.update((step, name) for part in run for step in part.steps)
    return _tied(units), tuple(uses)


def _identity(task: PartedTask, part: Part) -> str:
    """Name what the part holds; a part without parameters is its task's alone."""
    return "+".join(part.keys) if part.keys else f"{task.name}:{max(part.steps)}"


def _owners(tasks: Sequence[PartedTask]) -> dict[str, str]:
    """Give which part holds each parameter: the first one that uses it."""
    owners: dict[str, str] = {}
    for task in tasks:
        for part in task.parts:
            for name in part.parameters:
                owners.setdefault(name, _identity(task, part))
    return owners


def _starts(tasks: Sequence[PartedTask], owners: Mapping[str, str], numbers: Numbers) -> set[str]:
    """Give the parts that begin a run in any task, so that they do in all."""
    after = {
        _identity(task, part): (part.stack[0], part.stack[1] + 1)
        for task in tasks
        for part in task.parts
        if part.stack
    }
    at = {place: name for name, (stack, number) in after.items() for place in [(stack, number - 1)]}
    # Who lends parameters is alone, so that its first operator is the one that has them.
    starts = {
        owners[name]
        for task in tasks
        for part in task.parts
        for name in part.parameters
        if owners[name] != _identity(task, part)
    }
    starts |= {at[after[name]] for name in starts if name in after and after[name] in at}
    while True:
        found: set[str] = set()
        for task in tasks:
            for run in _runs(task, starts, owners, numbers):
                last = _identity(task, run[-1])
                found.add(_identity(task, run[0]))
                found.update(at[place] for place in [after.get(last)] if place in at)
        if found <= starts:
            return starts
        starts |= found


def _runs(
    task: PartedTask, starts: Collection[str], owners: Mapping[str, str], numbers: Numbers
) -> list[list[Part]]:
    runs: list[list[Part]] = []
    for part in task.parts:
        if (
            runs
            and _identity(task, part) not in starts
            and _continues(task, runs[-1], part, owners, numbers)
        ):
            runs[-1].append(part)
        else:
            runs.append([part])
    return runs


def _continues(
    task: PartedTask, run: Sequence[Part], part: Part, owners: Mapping[str, str], numbers: Numbers
) -> bool:
    """Tell whether a block is the next of a run: equal work, and nothing else between them."""
    last = run[-1]
    if last.stack is None or part.stack is None or last.coupled or part.coupled:
        return False
    given = frozenset(last.outputs)
    carried = part.inputs - given
    if (last.stack[0], last.stack[1] + 1) != part.stack or not given & part.inputs:
        return False
    if not carried <= run[0].inputs or any(
        carried != item.inputs - frozenset(before.outputs) for before, item in pairwise(run)
    ):
        return False  # what all need besides is carried along; they must need the same
    if any(given & other.inputs for other in task.parts if other is not part):
        return False
    return _work(task, last, owners, numbers) == _work(task, part, owners, numbers)


def _work(
    task: PartedTask, part: Part, owners: Mapping[str, str], numbers: Numbers
) -> tuple[object, ...]:
    """Give what must be equal in the blocks of a run (criterion 2), beside what is carried."""
    name = _identity(task, part)
    own = sorted(numbers[item] for item in part.parameters if owners[item] == name)
    borrowed = sorted(item for item in part.parameters if owners[item] != name)
    shapes = [(value.place, task.capture.shape(value)) for value in part.outputs]
    # Other operations are left out: the first block may have an input of another memory layout.
    tallies = [(item.gemms, item.attentions) for item in (part.tally, part.glue)]
    return own, borrowed, tallies, shapes


def _name(task: PartedTask, run: Sequence[Part], lengths: Mapping[str, int]) -> str:
    if len(run) == 1:
        own = run[0].label
        return f"{task.name}.{own}" if not run[0].keys else own
    stack, first = run[0].stack or ("", 0)
    return stack if len(run) == lengths[stack] else f"{stack}.{first}-{first + len(run) - 1}"


def _free(name: str, taken: Iterable[str]) -> str:
    taken = set(taken)
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}#{number}"
    return found


def _unit(
    name: str, identity: tuple[str, ...], run: Sequence[Part], owners: Mapping[str, str]
) -> Unit:
    own = tuple(
        tuple(sorted(item for item in part.parameters if owners[item] == known))
        for known, part in zip(identity, run, strict=True)
    )
    borrowed = {owners[item] for part in run for item in part.parameters} - set(identity)
    return Unit(
        name=name, own=own, tied_to=tuple(sorted(borrowed)), coupled=any(p.coupled for p in run)
    )


def _tied(units: Mapping[tuple[str, ...], Unit]) -> tuple[Unit, ...]:
    """Name the units that others borrow of in place of their parts."""
    names = {part: unit.name for identity, unit in units.items() for part in identity}
    return tuple(
        Unit(
            name=unit.name,
            own=unit.own,
            tied_to=tuple(sorted({names[part] for part in unit.tied_to})),
            coupled=unit.coupled,
        )
        for unit in units.values()
    )


def _use(
    task: PartedTask, name: str, unit: str, run: list[Part], found: Mapping[int, str]
) -> UnitUse:
    carried = frozenset[Value]()
    if len(run) > 1:
        carried = run[1].inputs - frozenset(run[0].outputs)
    inputs = sorted(run[0].inputs)
    return UnitUse(
        name=name,
        task=task.name,
        unit=unit,
        parts=tuple(run),
        sources=tuple(dict.fromkeys(found[step_of(value)] for value in inputs)),
        carried=tuple(sorted(carried)),
    )
