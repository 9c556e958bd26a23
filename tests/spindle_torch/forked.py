"""A program with three forked ranks, of which one may fail: `python forked.py FOLDER FAULT`."""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from spindle_torch.forking import run_forked

RANKS = 3


def main(folder: Path, fault: str) -> int:
    """Sum the numbers of all ranks, the second of them after its fault."""

    def run(rank: int, store: Store) -> None:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
        total = torch.tensor([float(rank)])
        dist.all_reduce(total)
        if rank == 1 and fault == "raises":
            raise ValueError("the second rank is wrong")
        if rank == 1 and fault == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(total)
        (folder / f"sum-{rank}").write_text(f"{total.item():g}")

    return run_forked(folder, RANKS, run)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
