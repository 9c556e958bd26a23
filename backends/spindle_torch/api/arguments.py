"""What a user gives to a task, looked at before anything runs: what is wrong, and what is right."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Integral, Real

from torch import nn

from spindle_sim.errors import InputError, suggestion
from spindle_sim.names import name_mistake

__all__ = [
    "FunctionModule",
    "Inputs",
    "as_module",
    "check_argument_names",
    "check_blocks",
    "check_flow",
    "check_module_name",
    "check_modules",
    "check_name",
    "check_task",
    "input_pairs",
    "kind_of",
]

Inputs = str | Sequence[str] | Mapping[str, str]
_OF_MODULES = frozenset(dir(nn.ModuleDict()))  # torch refuses them as names of submodules


class FunctionModule(nn.Module):
    """A plain function as a module."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: object, **named: object) -> object:
        """Give what the function gives."""
        return self.function(*arguments, **named)


def check_task(
    name: object,
    *,
    batch_size: object,
    loss_weight: object,
    loss_count: object,
    coupled_loss: object,
) -> None:
    """Check what describes a task.

    Raises:
        InputError: with all mistakes.
    """
    mistakes: list[str] = []
    if mistake := _name_mistake(name, part=True):
        mistakes.append(mistake)
    if not _is_whole(batch_size) or batch_size < 1:  # type: ignore[operator]
        mistakes.append(
            f"batch_size {batch_size!r:.60} is no whole number above 0; give the samples of an"
            " iteration over all devices"
        )
    if not _is_number(loss_weight) or not 0 <= loss_weight < math.inf:  # type: ignore[operator]
        mistakes.append(f"loss_weight {loss_weight!r:.60} is no number of at least 0")
    if loss_count is not None and not callable(loss_count):
        mistakes.append(
            f"loss_count is {kind_of(loss_count)}; give a function from a batch to a number"
        )
    if not isinstance(coupled_loss, bool):
        mistakes.append(f"coupled_loss {coupled_loss!r:.60} is neither True nor False")
    if mistakes:
        raise InputError(*(f"task {name!r:.60}: {mistake}" for mistake in mistakes))


def check_name(name: object) -> None:
    """Check the name of what is split.

    Raises:
        InputError: it can't be one.
    """
    if mistake := _name_mistake(name, part=False):
        raise InputError(mistake)


def check_module_name(task: str, name: object, taken: Collection[str]) -> None:
    """Check the name under which a module is added.

    Raises:
        InputError: it is taken, or can't be one.
    """
    if not isinstance(name, str) or name_mistake(name, part=True) or "." in name:
        raise InputError(
            f"task {task!r}: {name!r:.60} is no name for a module; give a word without dots and"
            " slashes"
        )
    if name in taken:
        raise InputError(f"task {task!r}: has two modules named {name!r}; rename one")
    if name in _OF_MODULES:
        raise InputError(
            f"task {task!r}: {name!r} is what torch calls a part of every module; rename it"
        )


def as_module(task: str, name: str, given: object) -> nn.Module:
    """Give the module, or the function as one.

    Raises:
        InputError: it is neither.
    """
    if isinstance(given, nn.Module):
        return given
    where = f"task {task!r}: module {name!r}"
    if isinstance(given, type):
        raise InputError(
            f"{where} is the class {given.__name__}; make one of it: {given.__name__}(...)"
        )
    if not callable(given):
        raise InputError(f"{where} is {kind_of(given)}; give a torch.nn.Module or a function")
    return FunctionModule(given)


def input_pairs(task: str, name: str, inputs: object) -> tuple[tuple[str | None, str], ...]:
    """Give the arguments' names (None: by position), each with the entry of the batch.

    Raises:
        InputError: `inputs` aren't names, or map what isn't.
    """
    pairs: list[tuple[object, object]]
    if isinstance(inputs, str):
        pairs = [(None, inputs)]
    elif isinstance(inputs, Mapping):
        pairs = list(inputs.items())
    elif isinstance(inputs, Sequence) and not isinstance(inputs, bytes):
        pairs = [(None, entry) for entry in inputs]
    else:
        pairs = [(inputs, inputs)]
    found: list[tuple[str | None, str]] = []
    for argument, entry in pairs:
        if not isinstance(entry, str) or not (argument is None or isinstance(argument, str)):
            raise InputError(
                f"task {task!r}: module {name!r}: inputs={inputs!r:.60} aren't names; give the name"
                ' of an entry of the batch, several, or {"argument": "entry"}'
            )
        found.append((argument, entry))
    return tuple(found)


def check_argument_names(task: str, name: str, arguments: object) -> None:
    """Check that a module's arguments are a dict by their names.

    Raises:
        InputError: they aren't.
    """
    if not isinstance(arguments, Mapping) or not all(isinstance(key, str) for key in arguments):
        raise InputError(
            f"task {task!r}: module {name!r}: arguments={arguments!r:.60} is no dict from names of"
            " arguments to values"
        )


def check_flow(where: str, argument: object, output: object) -> None:
    """Check how a flow enters a module and leaves another.

    Raises:
        InputError: a name isn't one.
    """
    if argument is not None and not isinstance(argument, str):
        raise InputError(f"{where}: argument={argument!r:.60} is no name of an argument")
    if output is not None and (isinstance(output, bool) or not isinstance(output, str | int)):
        raise InputError(
            f"{where}: output={output!r:.60} is neither a name nor a number of what its source"
            " gives"
        )


def check_modules(option: str, given: object, known: nn.Module) -> None:
    """Check that an option lists modules which are parts of what is split.

    Raises:
        InputError: it doesn't.
    """
    if isinstance(given, nn.Module) or not isinstance(given, Sequence | set | frozenset):
        raise InputError(f"{option}={kind_of(given)}; give a list of modules")
    parts = set(map(id, known.modules()))
    for module in given:
        if not isinstance(module, nn.Module):
            raise InputError(
                f"{option} lists {module!r:.60}, {kind_of(module)}; give the module itself"
            )
        if id(module) not in parts:
            raise InputError(
                f"{option} lists a {type(module).__name__} that is no part of any task; give the"
                " same object as lies in the task's module"
            )


def check_blocks(blocks: object, known: nn.Module) -> None:
    """Check that the classes of repeated blocks are ones that the model has.

    Raises:
        InputError: they aren't.
    """
    if isinstance(blocks, type) or not isinstance(blocks, Sequence | set | frozenset):
        raise InputError(f"blocks={blocks!r:.60}; give a list of classes, such as [MyLayer]")
    for kind in blocks:
        if not isinstance(kind, type):
            raise InputError(
                f"blocks lists {kind!r:.60}, {kind_of(kind)}; give the class itself: type(module)"
            )
        if not any(isinstance(module, kind) for module in known.modules()):
            names = {type(module).__name__ for module in known.modules()}
            raise InputError(
                f"blocks: no module is a {kind.__name__}; {suggestion(kind.__name__, names)}"
            )


def kind_of(value: object) -> str:
    """Give a word for what a value is."""
    if value is None:
        return "None"
    kind = type(value).__name__
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"


def _name_mistake(name: object, *, part: bool) -> str:
    if not isinstance(name, str):
        return f"name {name!r:.60} is {kind_of(name)}; give a word"
    mistake = name_mistake(name, part=part)
    return f"name {mistake}" if mistake else ""


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
