"""Ranks that stay: they have met once, and run plan after plan."""

import multiprocessing
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map_only

from tests.spindle_torch import probe
from tests.spindle_torch.running import start

__all__ = ["Left", "StandingRanks"]

LIMIT_S = 240
Left = dict[str, list[dict[str, Any]]]  # by precision, what `probe.run` gives on each rank


@dataclass
class StandingRanks(AbstractContextManager["StandingRanks"]):
    """Processes that run what `probe.py` does, one for each rank; new ones if any of them fails.

    Each calls `planted` first, if it is given.
    """

    folder: Path
    ranks: int
    planted: Callable[[], None] | None = None
    processes: list[BaseProcess] = field(default_factory=list)
    orders: list[Connection] = field(default_factory=list)
    launches: "count[int]" = field(default_factory=count)

    def run(self, plans: Sequence[Path]) -> dict[Path, Left]:
        """Run plans in both precisions; give what they leave."""
        if not self.processes:
            self._launch()
        for orders in self.orders:
            with suppress(BrokenPipeError):  # it has ended, and is asked below
                orders.send([str(path) for path in plans])
        found: dict[Path, Left] = {path: {dtype: [] for dtype in probe.STEPS} for path in plans}
        for rank, orders in enumerate(self.orders):
            try:
                assert orders.poll(LIMIT_S), f"rank {rank} is still at work"
                left = tree_map_only(np.ndarray, torch.from_numpy, orders.recv())
                for path, own in zip(plans, left, strict=True):
                    for dtype in own:
                        found[path][dtype].append(own[dtype])
            except (AssertionError, EOFError, ConnectionError):
                self._end()
                said = sorted(self.folder.glob("*.said"))
                raise AssertionError("\n".join(path.read_text() for path in said)) from None
        return found

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Have the ranks part and end."""
        for orders in self.orders:
            with suppress(BrokenPipeError):
                orders.send(None)
        for process in self.processes:
            process.join(LIMIT_S)
        self._end()

    def _launch(self) -> None:
        for path in self.folder.glob("*.said"):
            path.unlink()
        meeting = self.folder / f"meeting.{next(self.launches)}"
        for rank in range(self.ranks):
            ours, theirs = multiprocessing.Pipe()
            arguments = (theirs, str(meeting), rank, self.ranks, self.planted)
            self.processes.append(start(_serve, arguments, self.folder / f"{rank}.said"))
            theirs.close()
            self.orders.append(ours)

    def _end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        for orders in self.orders:
            orders.close()
        self.processes.clear()
        self.orders.clear()


def _serve(
    orders: Connection, meeting: str, rank: int, ranks: int, planted: Callable[[], None] | None
) -> None:
    if planted is not None:
        planted()
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=60),
    )
    made: dict[tuple[int, ...], dist.ProcessGroup] = {}
    while (paths := orders.recv()) is not None:
        left = [
            {dtype: probe.run(Path(path), rank, dtype, made=made) for dtype in probe.STEPS}
            for path in paths
        ]
        # Hundreds of tensors take long to pickle, and arrays don't.
        orders.send(tree_map_only(torch.Tensor, torch.Tensor.numpy, left))
    dist.destroy_process_group()
