"""Names what of the user's failed: whatever their code raises becomes one line that says where.

The exception itself stays the cause of ours, with its traceback.
"""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from spindle_sim.errors import InputError, SpindleError

__all__ = ["blaming", "note_leaf"]

_LEAF = "in the module "
_NOT_THE_USERS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
_LONGEST = 600
# Its exceptions are how torch ends a forward that runs once more for a backward.
_RECOMPUTATION = "torch.utils.checkpoint"


@contextmanager
def blaming(what: str, given: str = "", leaf: str = "") -> Iterator[None]:
    """Say that `what` raised, if it does; `given` is what it got, `leaf` its name without a part.

    Raises:
        InputError: from what the user's code raised.
    """
    try:
        yield
    except SpindleError:
        raise
    except Exception as error:  # the user's code may raise anything
        if type(error).__module__ == _RECOMPUTATION:
            raise
        notes = [note for note in _notes(error) if note.startswith(_LEAF) and note != _LEAF + leaf]
        where = f" ({notes[0].removeprefix(_LEAF)})" if notes else ""
        raise InputError(f"{what}{where} raised {_described(error)}{given}") from error


def note_leaf(error: Exception, leaf: str) -> None:
    """Keep in an exception in which part of a module it was raised; it stays what it is."""
    if not isinstance(error, SpindleError) and not _notes(error):
        error.add_note(_LEAF + leaf)


def _notes(error: Exception) -> list[str]:
    return getattr(error, "__notes__", [])


def _described(error: Exception) -> str:
    """Give the exception in one line, and the last line of the user's own code that it came by."""
    text = " ".join(str(error).split())
    shown = type(error).__name__ + (f": {text:.{_LONGEST}}" if text else "")
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((*_NOT_THE_USERS, "<"))
    ]
    return f"{shown} ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else shown
