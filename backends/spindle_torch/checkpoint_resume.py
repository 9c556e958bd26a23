"""Going on from a checkpoint: what a plan finds in it, what is new, what it drops.

Every rank comes to the same answer from the same index.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from spindle_sim.errors import InputError
from spindle_torch.agreement import from_first
from spindle_torch.checkpoint_exchange import read_state
from spindle_torch.checkpoint_folder import Found, check_files, find_checkpoint, read_checkpoint
from spindle_torch.checkpoint_index import Index
from spindle_torch.checkpoint_planning import Piece, State
from spindle_torch.checkpoint_state import (
    model_key,
    model_state,
    optimizer_state,
    parameter_of,
    prepare_optimizer,
    trained_names,
)
from spindle_torch.checkpoint_storage import FolderReader
from spindle_torch.telling import all_gather_json
from spindle_torch.training import Training

__all__ = ["Sources", "agree_on", "left_state", "restore"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """A checkpoint and what was kept aside, and what a plan takes out of each.

    `folders` are one or two. `taken` are the keys taken from each; `left` those that stay: of the
    second only what the first doesn't have.
    """

    folders: tuple[Path, ...]
    indexes: tuple[Index, ...]
    taken: tuple[frozenset[str], ...]
    left: tuple[frozenset[str], ...]
    new: frozenset[str]  # parameters that are in neither

    @property
    def notes(self) -> tuple[str, ...]:
        """What to tell: which parameters were loaded, came back, or are new."""
        step = self.indexes[0].progress.step
        notes = [f"goes on after step {step} from {self.folders[0]}: {_counted(self.taken[0])}"]
        if any(self.taken[1:]):
            notes.append(f"back from {self.folders[1]}: {_counted(self.taken[1])}")
        if self.new:
            notes.append(f"new, with initial values: {_counted(map(model_key, self.new))}")
        return tuple(notes)

    @property
    def dropped(self) -> str:
        """What the plan doesn't have of the checkpoint itself; empty where it has all."""
        return _counted(self.left[0]) if self.left[0] else ""


def agree_on(path: Path) -> Found:
    """Give the checkpoint to go on from, which the first rank chooses.

    The ranks share out reading its files whole, to compare them with what was written.

    Raises:
        InputError: there is none that is whole, or it is corrupt.
    """
    found = from_first(lambda: find_checkpoint(path), Found)
    if read_checkpoint(found.folder).digest != found.index.digest:
        raise InputError(f"{found.folder}: isn't what rank 0 has there; all must see one folder")
    folders = [found.folder] if found.aside is None else [found.folder, found.aside]
    files = [(each, item) for each in folders for item in read_checkpoint(each).files.items()]
    for folder, item in files[dist.get_rank() :: dist.get_world_size()]:
        check_files(folder, [item])
    return found


def restore(training: Training, found: Found) -> Sources:
    """Put what was saved where this plan has it: parameters, and what the optimizer keeps of them.

    What is new keeps its initial values and has no states: its steps are counted from 0.

    Raises:
        InputError: a parameter has another shape, or the checkpoint is corrupt.
    """
    sources = _sources(found, training)
    for taken in sources.taken:
        prepare_optimizer(training, taken)
    held = {
        **model_state(training, all_held=True),
        **optimizer_state(training, all_held=True),
    }
    for folder, index, taken in zip(sources.folders, sources.indexes, sources.taken, strict=True):
        wanted = {key: pieces for key, pieces in held.items() if key in taken}
        read_state(wanted, FolderReader(folder, index))
    return sources


def left_state(sources: Sources) -> State:
    """Give this rank's share of what the plan leaves, read whole."""
    state: dict[str, tuple[Piece, ...]] = {}
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for folder, index, left in zip(sources.folders, sources.indexes, sources.left, strict=True):
        own = {}
        for key in sorted(left)[rank::ranks]:
            entry = index.tensors[key]
            tensor = torch.empty(entry.shape, dtype=getattr(torch, entry.dtype))
            offsets = tuple(0 for _ in entry.shape)
            own[key] = (Piece(offsets=offsets, shape=entry.shape, tensor=tensor),)
        read_state(own, FolderReader(folder, index))
        state |= own
    return state


def _sources(found: Found, training: Training) -> Sources:
    folders = [found.folder] if found.aside is None else [found.folder, found.aside]
    indexes = [read_checkpoint(folder) for folder in folders]
    shapes, trained = _wanted(training)
    taken: list[frozenset[str]] = []
    left: list[frozenset[str]] = []
    before: set[str] = set()
    for folder, index in zip(folders, indexes, strict=True):
        keys = index.tensors.keys() - before
        own = {
            key
            for key in keys
            if (name := parameter_of(key)) in (shapes if key == model_key(name) else trained)
        }
        _check_shapes(folder, index, {key: shapes[parameter_of(key)] for key in own})
        taken.append(frozenset(own))
        left.append(frozenset(keys - own))
        before |= keys
    return Sources(
        folders=tuple(folders),
        indexes=tuple(indexes),
        taken=tuple(taken),
        left=tuple(left),
        new=frozenset(name for name in shapes if model_key(name) not in before),
    )


def _wanted(training: Training) -> tuple[dict[str, tuple[int, ...]], set[str]]:
    """Give the shapes of the parameters that any rank holds, and which of them are trained."""
    trained = trained_names(training)
    own = {
        (name := parameter_of(key)): (pieces[0].shape, name in trained)
        for key, pieces in model_state(training, all_held=True).items()
    }
    everywhere = all_gather_json(own, dict[str, tuple[tuple[int, ...], bool]])
    merged = {name: item for held in everywhere for name, item in held.items()}
    shapes = {name: shape for name, (shape, _) in merged.items()}
    return shapes, {name for name, (_, is_trained) in merged.items() if is_trained}


def _check_shapes(folder: Path, index: Index, shapes: Mapping[str, tuple[int, ...]]) -> None:
    problems = [
        f"{folder}: {key}: has shape {index.tensors[key].shape}, but the plan's has {shape}; train"
        " it under another name, or go on with the workload that wrote it"
        for key, shape in sorted(shapes.items())
        if key == model_key(parameter_of(key)) and index.tensors[key].shape != shape
    ]
    if problems:
        raise InputError(*problems)


def _counted(keys: Iterable[str]) -> str:
    """Give how many parameters of which module: "12 parameters (text 8, vision 4)"."""
    names = {parameter_of(key) for key in keys}
    modules = Counter(re.split("[/.]", name)[0] for name in names)
    listed = ", ".join(f"{module} {count}" for module, count in sorted(modules.items()))
    plural = "" if len(names) == 1 else "s"
    return f"{len(names)} parameter{plural}" + (f" ({listed})" if listed else "")
