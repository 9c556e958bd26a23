"""Saving a run's training, and going on with it: under the same plan or any other.

All ranks call these at one point of the run. What another plan trained and this one doesn't have
is kept aside, in a folder beside the checkpoints, until a plan has it again.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch.distributed as dist

from spindle_sim.backend import ExecutionOptions
from spindle_sim.errors import UsageError
from spindle_torch.agreement import from_first
from spindle_torch.checkpoint_exchange import write_state
from spindle_torch.checkpoint_folder import (
    Found,
    is_whole_or_gone,
    keep_latest,
    make_room,
)
from spindle_torch.checkpoint_index import Cursor, Progress
from spindle_torch.checkpoint_resume import Sources, agree_on, left_state, restore
from spindle_torch.checkpoint_state import model_state, optimizer_state
from spindle_torch.checkpoint_storage import FolderWriter
from spindle_torch.training import Training

__all__ = ["Saver", "begin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Saver:
    """Knows which steps a run has, and saves after those that it is told to."""

    training: Training
    options: ExecutionOptions
    tell: Callable[[str], None]
    first_step: int = 0
    cursors: Mapping[str, Cursor] = field(default_factory=dict)  # at the first step
    aside: str | None = None

    @property
    def last_step(self) -> int:
        """How many steps are done at the end of the run."""
        until = self.options.checkpoints.until_step
        return self.first_step + self.options.iterations if until is None else until

    def after_step(self, step: int) -> None:
        """Save if it is time to: `step` steps are done now.

        Raises:
            ExecutionError: the file system doesn't take it.
        """
        options = self.options.checkpoints
        if options.folder is None:
            return
        if step != self.last_step and (options.every is None or step % options.every):
            return
        folder = Path(options.folder)
        state = {
            **model_state(self.training, all_held=False),
            **optimizer_state(self.training, all_held=False),
        }
        write_state(state, FolderWriter(folder / f"step-{step}", self._progress(step)))
        self.tell(f"saved {folder / f'step-{step}'}")
        if options.keep is not None and dist.get_rank() == 0:
            keep_latest(folder, options.keep)

    def _progress(self, step: int) -> Progress:
        ran = {
            task.name: self.cursors.get(task.name, Cursor()).advanced(
                step - self.first_step, task.batch_size
            )
            for task in self.training.plan.workload.tasks
        }
        return Progress(
            step=step,
            seed=self.options.seed,
            dtype=self.options.dtype,
            cursors={**self.cursors, **ran},
            aside=self.aside,
        )


def begin(training: Training, options: ExecutionOptions, tell: Callable[[str], None]) -> Saver:
    """Begin a run, or go on where a checkpoint ends; `tell` is called on the first rank.

    Raises:
        InputError: there is no checkpoint, it isn't whole, or a parameter has another shape.
        UsageError: another seed is given, no step is left, or the folder has later checkpoints.
    """
    asked = options.checkpoints
    if asked.resume is None:
        saver = Saver(training=training, options=options, tell=tell)
        _make_room(saver, None)
        return saver
    found = agree_on(Path(asked.resume))
    progress = found.index.progress
    saver = Saver(
        training=training,
        options=options,
        tell=tell,
        first_step=progress.step,
        cursors=progress.cursors,
    )
    _check_progress(saver, progress)
    _make_room(saver, found)
    sources = restore(training, found)
    tasks = training.plan.workload.tasks
    training.read_from(
        {task.name: progress.cursors.get(task.name, Cursor()).batches for task in tasks},
        progress.step,
    )
    for note in (*found.passed_over, *sources.notes):
        tell(note)
    if progress.dtype != options.dtype:
        tell(f"saved in {progress.dtype}, goes on in {options.dtype}")
    return replace(saver, aside=_keep_aside(saver, found, sources))


def _check_progress(saver: Saver, progress: Progress) -> None:
    """Refuse what couldn't go on as the run began.

    Raises:
        UsageError: another seed is given, or no step is left.
    """
    seed = saver.options.seed
    if progress.seed != seed:
        raise UsageError(
            f"--seed {seed}: the checkpoint's run has seed {progress.seed}, which its data and"
            f" initial values come from; give --seed {progress.seed}"
        )
    if saver.last_step <= saver.first_step:
        raise UsageError(
            f"--until-step {saver.last_step}: the checkpoint is of step {progress.step} already, so"
            " that none is left to run; give a later one"
        )


def _make_room(saver: Saver, found: Found | None) -> None:
    if saver.options.checkpoints.folder is None:
        return
    folder = Path(saver.options.checkpoints.folder)
    goes_on = found is not None and _lies_in(found.folder, folder)
    after = saver.first_step if goes_on else None
    for note in from_first(lambda: make_room(folder, after), tuple[str, ...]):
        saver.tell(note)


def _lies_in(checkpoint: Path, folder: Path) -> bool:
    return checkpoint.resolve().parent == folder.resolve()


def _keep_aside(saver: Saver, found: Found, sources: Sources) -> str | None:
    """Keep what the plan leaves beside the checkpoints to come; give the name of its folder."""
    if saver.options.checkpoints.folder is None:
        if sources.dropped:
            saver.tell(f"dropped: {sources.dropped}; still in {found.folder}")
        return None
    folder = Path(saver.options.checkpoints.folder)
    if not any(sources.left):
        return None
    if not sources.left[0] and _lies_in(found.folder, folder):
        return found.index.progress.aside
    aside = folder / f"aside-{saver.first_step}-{_digest(sources)}"
    if not from_first(lambda: is_whole_or_gone(aside), bool):
        progress = replace(found.index.progress, aside=None)
        write_state(left_state(sources), FolderWriter(aside, progress))
    if sources.dropped:
        saver.tell(f"dropped: {sources.dropped}; kept in {aside}")
    return aside.name


def _digest(sources: Sources) -> str:
    """Give a name for what is left of these folders: the same for the same."""
    parts = [index.digest for index in sources.indexes]
    parts += [key for left in sources.left for key in sorted(left)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
