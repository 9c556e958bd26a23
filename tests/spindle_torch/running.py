"""Running probes and looking at what they leave."""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

PROBE = Path(__file__).parent / "probe.py"


def run_probes(folder: Path, ranks: int, probe: Path = PROBE) -> None:
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, str(probe), str(folder), str(rank), str(ranks)],
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            for rank in range(ranks)
        ]
        ended = [process.communicate(timeout=600) for process in processes]
    for process, (_, errors) in zip(processes, ended, strict=True):
        assert process.returncode == 0, errors


def joined(parts: dict[str, torch.Tensor], name: str, whole: torch.Tensor) -> torch.Tensor:
    """Put the shards of a parameter together; whole ones are the same on every shard."""
    shards = [parts[key] for key in sorted(key for key in parts if key.split("@")[0] == name)]
    for dimension in range(whole.dim()):
        total = sum(shard.shape[dimension] for shard in shards)
        if total == whole.shape[dimension] and len(shards) > 1:
            return torch.cat(shards, dim=dimension)
    for shard in shards[1:]:
        assert torch.allclose(shard, shards[0], rtol=1e-9, atol=1e-12), name
    return shards[0]


def check_replicas(ranks: list[dict[str, Any]]) -> None:
    held: dict[str, torch.Tensor] = {}
    for rank in ranks:
        for name, parameter in rank["parameters"].items():
            assert torch.equal(held.setdefault(name, parameter), parameter), name
