"""Ranks that stay: they have met once, and run plan after plan."""

import multiprocessing
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType

import torch.distributed as dist

from tests.spindle_torch import probe
from tests.spindle_torch.running import start

__all__ = ["StandingRanks"]

LIMIT_S = 240


@dataclass
class StandingRanks(AbstractContextManager["StandingRanks"]):
    """Processes that run what `probe.py` does, one for each rank; new ones if any of them fails."""

    folder: Path
    ranks: int
    processes: list[BaseProcess] = field(default_factory=list)
    orders: list[Connection] = field(default_factory=list)
    launches: "count[int]" = field(default_factory=count)

    def run(self, plans: Sequence[Path]) -> None:
        """Run plans in both precisions; they leave files beside those of the plans."""
        if not self.processes:
            self._launch()
        for orders in self.orders:
            orders.send([str(path) for path in plans])
        for rank, orders in enumerate(self.orders):
            try:
                assert orders.poll(LIMIT_S), f"rank {rank} is still at work"
                orders.recv()
            except (AssertionError, EOFError):
                self._end()
                said = sorted(self.folder.glob("*.said"))
                raise AssertionError("\n".join(path.read_text() for path in said)) from None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Have the ranks part and end."""
        for orders in self.orders:
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
            arguments = (theirs, str(meeting), rank, self.ranks)
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


def _serve(orders: Connection, meeting: str, rank: int, ranks: int) -> None:
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=60),
    )
    while (paths := orders.recv()) is not None:
        for path in paths:
            for dtype in probe.STEPS:
                probe.run(Path(path), rank, dtype)
        orders.send(None)
    dist.destroy_process_group()
