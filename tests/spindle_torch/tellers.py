"""Ranks for tests that tell each other things, and leave what they were told."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from spindle_sim.errors import InputError, PlanError, Problem, SpindleError, UsageError
from spindle_torch.agreement import from_first, together
from spindle_torch.telling import all_gather_json, broadcast_json, gather_json

__all__ = ["tell"]


def tell(folder: str, rank: int, ranks: int) -> None:
    """Be a rank, and leave a JSON object of what came of each way to tell something."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=60),
    )
    own = "é" * 1000 * rank  # of each rank another length, of the first none
    found: dict[str, object] = {
        "all": [len(each) for each in all_gather_json(own, str)],
        "first": gather_json((rank, 0.1 * rank), tuple[int, float]),
        "from_first": broadcast_json("of rank 0" if rank == 0 else None, str),
        "made_by_first": from_first(lambda: (rank, "made"), tuple[int, str]),
        "made": together(lambda: rank),
    }

    def fail() -> int:
        if rank == 1:
            raise InputError(Problem(message="is wrong", source="f", line=3), "is wrong, too")
        if rank == 2:
            raise UsageError("comes later")
        return rank

    def refuse() -> int:
        raise PlanError("no such plan")

    attempts: dict[str, Callable[[], int]] = {
        "together": lambda: together(fail),
        "by_first": lambda: from_first(refuse, int),
    }
    for name, attempt in attempts.items():
        try:
            attempt()
        except SpindleError as error:
            found[name] = [type(error).__name__, str(error)]
    (Path(folder) / f"told.{rank}").write_text(json.dumps(found))
    dist.destroy_process_group()
