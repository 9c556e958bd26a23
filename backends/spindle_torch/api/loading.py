"""A checkpoint's parameters back in the user's plain modules: to evaluate, keep or hand on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from spindle_sim.errors import InputError, UsageError
from spindle_torch.api.arguments import kind_of
from spindle_torch.api.splitting import SplitModel
from spindle_torch.checkpoint_folder import check_files, find_checkpoint, read_checkpoint
from spindle_torch.checkpoint_index import Index, TensorEntry, piece_name
from spindle_torch.checkpoint_state import model_key

__all__ = ["Loaded", "load_into"]

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What was loaded: `parameters` by their names, after so many steps of training.

    `left` are parameters that the checkpoint doesn't have, frozen or of what no task runs; they
    stay as they were.
    """

    step: int
    parameters: tuple[str, ...]
    left: tuple[str, ...] = ()


def load_into(modules: SplitModel | Mapping[str, nn.Module], folder: str | PathLike[str]) -> Loaded:
    """Put a checkpoint's parameters into modules, named as they were added to the tasks.

    All modules of a split model, or some by their names. `folder` is one checkpoint, or the latest
    whole one in it. What was trained before and isn't any more (kept aside) is found as well.
    Numbers get the dtype and device of the module's. Nothing is changed where something is wrong.

    Raises:
        InputError: there is no whole checkpoint, or it hasn't these parameters, or other shapes.
        UsageError: an argument isn't what it must be, or `train` gave the parameters up here.
    """
    root = _root(modules)
    if not isinstance(folder, str | PathLike):
        raise UsageError(f"load_into: {folder!r:.60} is no path; give the folder of checkpoints")
    found = find_checkpoint(Path(folder))
    sources = [(found.folder, found.index)]
    if found.aside is not None:
        sources.append((found.aside, read_checkpoint(found.aside)))
    placed, left = _placed(root, sources, _never_run(modules))
    for place, index in sources:
        entries = [index.tensors[item.key] for item in placed if item.folder == place]
        files = {chunk.file for entry in entries for chunk in entry.chunks}
        check_files(place, ((name, index.files[name]) for name in sorted(files)))
    numbers = [_read(item) for item in placed]
    with torch.no_grad():
        for item, tensor in zip(placed, numbers, strict=True):
            item.parameter.copy_(tensor)
    return Loaded(
        step=found.index.progress.step,
        parameters=tuple(item.name for item in placed),
        left=left,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """A parameter, and where its numbers lie."""

    name: str
    parameter: nn.Parameter
    folder: Path
    key: str
    entry: TensorEntry


def _root(modules: object) -> nn.ModuleDict:
    if isinstance(modules, SplitModel):
        return modules.root
    if not isinstance(modules, Mapping) or not modules:
        raise UsageError(
            f"load_into got {kind_of(modules)}; give what split_tasks gave, or a dict from the"
            ' names of modules to modules, such as {"trunk": trunk}'
        )
    for name, module in modules.items():
        if not isinstance(name, str) or not isinstance(module, nn.Module):
            raise UsageError(f"load_into: {name!r:.60} is {kind_of(module)}; give modules by names")
    return nn.ModuleDict(modules)


def _never_run(modules: object) -> frozenset[str]:
    """Give the parameters of a split model that no task runs: no checkpoint has them."""
    if not isinstance(modules, SplitModel):
        return frozenset()
    run = {name for unit in modules.units for names in unit.own for name in names}
    return frozenset(modules.parameters.keys() - run)


def _placed(
    root: nn.ModuleDict, sources: Sequence[tuple[Path, Index]], never_run: frozenset[str]
) -> tuple[list[_Placed], tuple[str, ...]]:
    """Find each parameter under any of its names: tied ones are saved under their first."""
    placed: list[_Placed] = []
    missing: list[str] = []
    wrong: list[str] = []
    frozen: list[str] = []
    for names, parameter in _named(root):
        item = next(iter(_places(names, parameter, sources)), None)
        if item is None:
            needed = parameter.requires_grad and never_run.isdisjoint(names)
            (missing if needed else frozen).append(names[0])
        elif item.entry.shape != tuple(parameter.shape):
            shapes = f"{item.entry.shape} there and {tuple(parameter.shape)} here"
            wrong.append(f"{item.folder}: {item.name} has the shape {shapes}")
        else:
            placed.append(item)
        if torch._debug_has_internal_overlap(parameter) == 1:
            raise UsageError(
                f"load_into: {names[0]} was given up by train() in this process; load in another"
                " one, into modules made anew"
            )
    empty = {name for name in root if not any(p.name.startswith(f"{name}.") for p in placed)}
    lost = [n for n in frozen if n.split(".", 1)[0] in empty and n not in never_run]
    missing += lost
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        wrong.append(
            f"{sources[0][0]}: has no {', '.join(missing[:_SHOWN])}{more}; {_has(sources)};"
            " what no task runs isn't saved: freeze it (requires_grad_(False)) to leave it as it is"
        )
    if wrong:
        raise InputError(*wrong)
    return placed, tuple(frozen)


def _named(root: nn.ModuleDict) -> list[tuple[list[str], nn.Parameter]]:
    """Give each parameter once, with all its names."""
    names: dict[int, list[str]] = {}
    objects: dict[int, nn.Parameter] = {}
    for name, parameter in root.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
        objects[id(parameter)] = parameter
    return [(found, objects[key]) for key, found in names.items()]


def _places(
    names: Sequence[str], parameter: nn.Parameter, sources: Sequence[tuple[Path, Index]]
) -> Iterator[_Placed]:
    for folder, index in sources:
        for name in names:
            entry = index.tensors.get(model_key(name))
            if entry is not None:
                yield _Placed(
                    name=name, parameter=parameter, folder=folder, key=model_key(name), entry=entry
                )


def _has(sources: Sequence[tuple[Path, Index]]) -> str:
    """Name the modules that a checkpoint has."""
    start = model_key("")
    keys = [key for _, index in sources for key in index.tensors if key.startswith(start)]
    modules = sorted({key.removeprefix(start).split(".", 1)[0] for key in keys})
    shown = [*modules[:_SHOWN], "..."] if len(modules) > _SHOWN else modules
    return f"it has the modules {', '.join(shown)}" if modules else "it has no parameters"


def _read(item: _Placed) -> torch.Tensor:
    tensor = torch.empty(item.entry.shape, dtype=getattr(torch, item.entry.dtype))
    for chunk in item.entry.chunks:
        box = tuple(
            slice(begin, begin + size)
            for begin, size in zip(chunk.offsets, chunk.sizes, strict=True)
        )
        name = piece_name(item.key, chunk.offsets)
        try:
            with safe_open(item.folder / chunk.file, framework="pt") as file:
                numbers: Any = file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise InputError(f"{item.folder}: is corrupt: {chunk.file}: {error}") from error
        if tuple(numbers.shape) != chunk.sizes:
            raise InputError(f"{item.folder}: is corrupt: {chunk.file}: {name} has another shape")
        tensor[box] = numbers
    return tensor
