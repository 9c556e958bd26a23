"""One checkpoint written or read by all ranks together, through torch.distributed.checkpoint."""

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from spindle_torch.checkpoint_planning import PieceLoadPlanner, PieceSavePlanner, State
from spindle_torch.checkpoint_storage import FolderReader, FolderWriter

__all__ = ["read_state", "write_state"]


def write_state(state: State, writer: FolderWriter) -> None:
    """Write what the ranks hold; where several hold the same box, one of them does.

    Raises:
        ExecutionError: the file system doesn't take it.
    """
    try:
        save({}, storage_writer=writer, planner=PieceSavePlanner(state))
    except CheckpointException as error:
        raise _cause(error) from None


def read_state(state: State, reader: FolderReader) -> None:
    """Read into what the ranks hold; everything in `state` must have been written.

    Raises:
        InputError: the checkpoint isn't what its index says.
    """
    try:
        load({}, storage_reader=reader, planner=PieceLoadPlanner(state))
    except CheckpointException as error:
        raise _cause(error) from None


def _cause(error: CheckpointException) -> BaseException:
    """Give what happened on the first rank that failed.

    torch's own exception is no `Exception`, which nobody who catches those would expect.
    """
    cause, _ = error.failures[min(error.failures)]
    return cause
