"""A rank for tests, with a planted fault: `faulty.py FAULT PLAN [options]`, started by torchrun."""

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist

from spindle_sim.plan import Slice
from spindle_torch.process import main
from spindle_torch.work import Work

FAULTY_RANK = 1


class Faulty:
    """The work of a rank; that of `FAULTY_RANK` comes to grief in its first forward."""

    def __init__(self, work: Work, fault: str) -> None:
        self.work = work
        self.fault = fault

    def __getattr__(self, name: str) -> object:
        return getattr(self.work, name)

    def forward(
        self, item: Slice, inputs: Mapping[int, torch.Tensor], micro_batch: int
    ) -> torch.Tensor | None:
        if dist.get_rank() == FAULTY_RANK:
            if self.fault == "raise":
                raise ArithmeticError("planted")
            if self.fault == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "stall":
                time.sleep(600)
            if self.fault == "freeze":
                os.kill(os.getpid(), signal.SIGSTOP)
        return self.work.forward(item, inputs, micro_batch)


def change_plan(path: Path) -> Path:
    """Give one rank a plan of its own, as valid as the others' but with another seed."""
    other = path.with_name("other")
    other.write_text(path.read_text().replace('"seed": 0', '"seed": 7'))
    return other


if __name__ == "__main__":
    fault, _mark, plan, *options = sys.argv[1:]
    if fault == "other-plan" and os.environ["RANK"] == str(FAULTY_RANK):
        plan = str(change_plan(Path(plan)))
    main([plan, *options], lambda work: Faulty(work, fault))  # type: ignore[arg-type, return-value]
