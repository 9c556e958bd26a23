"""One checkpoint written or read by all ranks together.

What is written where torch.distributed.checkpoint plans; its own `save` and `load` would tell that
by pickles.
"""

import torch.distributed as dist

from spindle_torch.agreement import together
from spindle_torch.checkpoint_planning import (
    Box,
    State,
    box_at,
    offered_boxes,
    place_of,
    read_items,
    share_out,
)
from spindle_torch.checkpoint_storage import FolderReader, FolderWriter, Written
from spindle_torch.telling import all_gather_json, gather_json

__all__ = ["read_state", "write_state"]


def write_state(state: State, writer: FolderWriter) -> None:
    """Write what the ranks hold; where several hold the same box, one of them does.

    Raises:
        UsageError: there can't be such a folder.
        ExecutionError: the file system doesn't take it.
    """
    rank = dist.get_rank()
    together(lambda: None if rank else writer.begin())
    shares, metadata = share_out(all_gather_json(offered_boxes(state), tuple[Box, ...]))
    own = together(lambda: writer.write(rank, shares[rank], lambda item: box_at(state, item)))
    written = gather_json(own, tuple[Written, ...])

    def finish() -> None:
        if written is not None:
            writer.finish(metadata, [item for files in written for item in files])

    together(finish)


def read_state(state: State, reader: FolderReader) -> None:
    """Read into what the ranks hold; everything in `state` must have been written.

    Raises:
        InputError: the checkpoint isn't what its index says.
    """
    items = read_items(state, reader.metadata)
    together(lambda: reader.read(items, lambda item: place_of(state, item)))
