"""The folder of a run's checkpoints: which are whole, which is the latest; no torch.

A checkpoint is written to `step-N.tmp` and renamed once all of it is on the disk, so that a folder
without that ending was whole when it was made. What happened to it since is checked here.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from spindle_sim.errors import InputError, UsageError
from spindle_torch.checkpoint_index import ASIDE_NAME, FileEntry, Index, parse_index

__all__ = [
    "INDEX_NAME",
    "Found",
    "begin_writing",
    "check_files",
    "commit",
    "find_checkpoint",
    "is_whole_or_gone",
    "keep_latest",
    "make_room",
    "read_checkpoint",
    "steps_in",
]

INDEX_NAME = "index.json"
_STEP_NAME = re.compile(r"step-(0|[1-9][0-9]{0,17})")
_UNFINISHED = ".tmp"
_BLOCK_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A checkpoint that is whole, its index, and what was passed over to come to it."""

    folder: Path
    index: Index
    passed_over: tuple[str, ...] = ()

    @property
    def aside(self) -> Path | None:
        """The folder of what the plan of this checkpoint doesn't have, if there is one."""
        name = self.index.progress.aside
        return None if name is None else self.folder.parent / name


def find_checkpoint(path: Path) -> Found:
    """Give the checkpoint at `path`: that folder itself, or the latest whole one in it.

    Raises:
        InputError: there is none; one that was named itself isn't whole.
    """
    try:
        names = os.listdir(path)
    except (OSError, ValueError) as error:  # ValueError: of a name that no file can have
        raise InputError(f"{path}: {_why_not_listed(error)}") from error
    if path.name.endswith(_UNFINISHED):
        raise InputError(f"{path}: was never finished; take one of the whole ones beside it")
    if _STEP_NAME.fullmatch(path.name) or INDEX_NAME in names:
        return Found(folder=path, index=_with_aside(path))
    passed_over: list[str] = []
    unfinished = sorted(path.glob(f"step-*{_UNFINISHED}"))
    passed_over += [f"{item}: was never finished" for item in unfinished]
    for step in sorted(steps_in(path), reverse=True):
        folder = path / f"step-{step}"
        try:
            return Found(folder=folder, index=_with_aside(folder), passed_over=tuple(passed_over))
        except InputError as error:
            passed_over.append(str(error))
    what = "no checkpoint of spindle" if not passed_over else "no whole checkpoint"
    raise InputError(f"{path}: has {what} (step-N folders)", *passed_over)


def read_checkpoint(folder: Path) -> Index:
    """Give the index of a folder whose files are all there, each as long as it was written.

    Raises:
        InputError: the folder is no checkpoint, or not whole.
    """
    try:
        text = (folder / INDEX_NAME).read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(
            f"{folder}: is no whole checkpoint of spindle: {INDEX_NAME}: {reason}"
        ) from error
    index = parse_index(text, str(folder))
    named = _STEP_NAME.fullmatch(folder.name)
    if named and int(named[1]) != index.progress.step:
        raise InputError(
            f"{folder}: is the checkpoint of step {index.progress.step}; give its folder that name"
        )
    for name, entry in index.files.items():
        try:
            size_bytes = (folder / name).stat().st_size
        except OSError as error:
            raise InputError(f"{folder}: isn't whole: {name} is missing") from error
        if size_bytes != entry.size_bytes:
            raise InputError(
                f"{folder}: isn't whole: {name} has {size_bytes:,} bytes of {entry.size_bytes:,}"
            )
    return index


def check_files(folder: Path, files: Iterable[tuple[str, FileEntry]]) -> None:
    """Read files whole and compare them with what was written.

    Raises:
        InputError: one differs.
    """
    for name, entry in files:
        digest = hashlib.sha256()
        with (folder / name).open("rb") as stream:
            while block := stream.read(_BLOCK_BYTES):
                digest.update(block)
        if digest.hexdigest() != entry.sha256:
            raise InputError(f"{folder}: is corrupt: {name} isn't what was written")


def steps_in(folder: Path) -> tuple[int, ...]:
    """Give the steps of the checkpoints in a folder, ascending; none where there is no folder."""
    if not folder.is_dir():
        return ()
    found = (_STEP_NAME.fullmatch(item.name) for item in folder.iterdir())
    return tuple(sorted(int(match[1]) for match in found if match))


def is_whole_or_gone(folder: Path) -> bool:
    """Tell whether a folder has a whole checkpoint; if it has a damaged one, remove it."""
    if _is_whole(folder):
        return True
    _remove(folder)
    return False


def make_room(folder: Path, after: int | None) -> tuple[str, ...]:
    """See that a run can save into a folder; give what there is to tell.

    It goes on `after` a step of the folder's own run, or else the folder must have no checkpoints.
    Damaged ones that are later are renamed, so that they are in nobody's way.

    Raises:
        UsageError: the folder has whole checkpoints of another run, or of later steps, or can't
            be written to: that is found before the training, not after it.
    """
    _check_writable(folder)
    later = [step for step in steps_in(folder) if after is None or step > after]
    whole = [step for step in later if _is_whole(folder / f"step-{step}")]
    if whole:
        what = "another run's checkpoints" if after is None else "later checkpoints"
        raise UsageError(
            f"--checkpoint {folder}: has {what}, up to step {whole[-1]}; go on from there with"
            f" --resume {folder}, or give another folder"
        )
    notes = []
    for step in later:
        damaged = folder / f"step-{step}"
        name = next(
            name
            for number in count(1)
            if not (name := folder / f"{damaged.name}.damaged-{number}").exists()
        )
        damaged.rename(name)
        notes.append(f"{damaged}: isn't whole; now {name.name}")
    return tuple(notes)


def begin_writing(folder: Path) -> Path:
    """Give an empty folder to write to in place of `folder`, until it is committed.

    Raises:
        UsageError: it can't be made.
    """
    aside = folder.with_name(folder.name + _UNFINISHED)
    try:
        _remove(aside)  # what a run left that was killed
        aside.mkdir(parents=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{aside}: can't be made: {reason}") from error
    return aside


def commit(unfinished: Path) -> Path:
    """Make what was written the checkpoint that it is to be, at once; give its folder."""
    folder = unfinished.with_name(unfinished.name.removesuffix(_UNFINISHED))
    _to_disk(unfinished)
    unfinished.rename(folder)
    _to_disk(folder.parent)
    return folder


def keep_latest(folder: Path, number: int) -> None:
    """Remove all whole checkpoints but the latest, and what was kept aside for none that stays.

    Damaged ones count for nothing and stay: somebody may mend them.
    """
    steps = steps_in(folder)
    whole = [step for step in steps if _is_whole(folder / f"step-{step}")]
    for step in whole[:-number]:
        # Renamed first: a half-removed one would look like one that was damaged.
        going = folder / f"step-{step}"
        gone = going.with_name(going.name + _UNFINISHED)
        _remove(gone)
        going.rename(gone)
        _remove(gone)
    if len(whole) < len(steps):
        return  # nobody knows what the damaged ones need
    stay = whole[-number:]
    needed = {read_checkpoint(folder / f"step-{step}").progress.aside for step in stay}
    for item in folder.iterdir():
        if ASIDE_NAME.fullmatch(item.name) and item.name not in needed:
            _remove(item)


def _remove(folder: Path) -> None:
    """Remove a folder if there is one; of a link to it the link alone."""
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)


def _check_writable(folder: Path) -> None:
    """Refuse a folder that can't be made, or in which nothing can be.

    Raises:
        UsageError: so it is.
    """
    try:
        there = next(place for place in (folder, *folder.parents) if place.exists())
    except (OSError, ValueError) as error:
        raise UsageError(f"--checkpoint {folder}: {_why_not_listed(error)}") from error
    if not there.is_dir():
        raise UsageError(f"--checkpoint {folder}: {there} is a file, not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UsageError(f"--checkpoint {folder}: {there} can't be written to")


def _why_not_listed(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "doesn't exist"
    if isinstance(error, NotADirectoryError):
        return "is a file, not a folder of checkpoints"
    return (getattr(error, "strerror", None) or str(error)).lower()


def _is_whole(folder: Path) -> bool:
    try:
        read_checkpoint(folder)
    except InputError:
        return False
    return True


def _with_aside(folder: Path) -> Index:
    """Give the index, having looked at what was kept aside as well."""
    index = read_checkpoint(folder)
    if index.progress.aside is not None:
        read_checkpoint(folder.parent / index.progress.aside)
    return index


def _to_disk(folder: Path) -> None:
    """Have a folder's entries on the disk (POSIX; elsewhere folders can't be opened)."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
