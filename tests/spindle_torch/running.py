"""Running probes and looking at what they leave."""

import multiprocessing
import os
import runpy
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from multiprocessing.context import ForkServerContext
from multiprocessing.forkserver import ensure_running
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

PROBE = Path(__file__).parent / "probe.py"
LIMIT_S = 600
# What a rank imports by itself or on the way, at its first optimizer step for one.
PRELOADED = ["pytest", "torch._dynamo", "spindle_torch.worker"]
# No threads may run in the process that ranks are forked from.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@cache
def forks() -> ForkServerContext:
    """Give what starts processes that have torch already: importing it takes seconds in each."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    ensure_running()
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
    return context


def run_probes(folder: Path, ranks: int, probe: Path = PROBE, *more: str) -> None:
    """Run a script with FOLDER RANK RANKS in a process for each rank, until all have ended.

    It is given `more`, too.
    """
    arguments = [[str(folder), str(rank), str(ranks), *more] for rank in range(ranks)]
    run_all(_run_script, [(str(probe), own) for own in arguments], folder)


def run_all(function: Callable[..., None], arguments: Sequence[tuple[Any, ...]], log: Path) -> None:
    """Call a function in a process for each of `arguments`; what they say goes below `log`."""
    processes = [start(function, own, log / f"said.{index}") for index, own in enumerate(arguments)]
    until_s = time.monotonic() + LIMIT_S
    for process in processes:
        process.join(max(0.0, until_s - time.monotonic()))
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    for index, code in enumerate(codes):
        assert code == 0, f"exit code {code}: {(log / f'said.{index}').read_text()}"


def start(function: Callable[..., None], arguments: tuple[Any, ...], said: Path) -> BaseProcess:
    """Start a process that calls a function, and writes all it says into a file."""
    process = forks().Process(target=_call, args=(function, arguments, str(said)), daemon=True)
    process.start()
    return process


def _call(function: Callable[..., None], arguments: tuple[Any, ...], said: str) -> None:
    with open(said, "ab", buffering=0) as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    torch.set_num_threads(1)
    try:
        function(*arguments)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # a group with a dead peer may never be taken down


def _run_script(script: str, arguments: list[str]) -> None:
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")


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
