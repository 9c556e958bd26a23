"""Links of this host: messages and all-reduces by size and number of ranks, over gloo or NCCL.

`python -m spindle_torch.links RESULT DEVICE SECONDS` is one rank, started by torchrun.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from spindle_sim.backend import ProfilingOptions
from spindle_sim.errors import ExecutionError
from spindle_sim.estimate.profile import LinkPoint
from spindle_sim.plan.atomic import write_atomically
from spindle_torch.child import run_child, tidy_end
from spindle_torch.groups import GroupMaker
from spindle_torch.joining import join

__all__ = ["SIZES_BYTES", "main", "measured_links"]

SIZES_BYTES = tuple(4**power * 1024 for power in range(9))  # 1 KiB to 64 MiB
_SHARE = 0.3  # of the whole time: the rest is for operators
_STARTUP_S = 60.0
_LEAST_RUNS = 3
_MOST_RUNS = 20
_ELEMENT_BYTES = 4


def measured_links(options: ProfilingOptions) -> tuple[LinkPoint, ...]:
    """Start the processes and give what they measured; sizes that take too long are left out.

    Raises:
        ExecutionError: they failed, or didn't end.
    """
    seconds = _SHARE * options.budget_s
    with tidy_end(), tempfile.TemporaryDirectory(prefix="spindle-links-") as name:
        folder = Path(name)
        result = folder / "links"
        command = [
            sys.executable,
            "-m",
            "spindle_torch.agent",
            str(folder),
            "--standalone",
            "--local-addr=127.0.0.1",
            f"--nproc-per-node={options.num_processes}",
            "-m",
            "spindle_torch.links",
            str(result),
            options.device,
            str(seconds),
        ]
        said = run_child(command, timeout_s=seconds + _STARTUP_S)
        if not result.exists():
            raise ExecutionError(f"the links couldn't be measured: {said}")
        rows = json.loads(result.read_text(encoding="utf-8"))
    return tuple(LinkPoint(**row) for row in rows)


def main(arguments: Sequence[str]) -> None:
    """Be one rank: measure with the others; rank 0 writes the points."""
    result, device_type, seconds = arguments
    device = join(device_type, _STARTUP_S).device
    sizes = _group_sizes(dist.get_world_size())
    share_s = float(seconds) / (1 + len(sizes))  # a late series isn't starved by those before it
    points = _points("transfer", [0, 1], _transfer, device, share_s)
    for ranks in sizes:
        points += _points("all_reduce", list(range(ranks)), _all_reduce, device, share_s)
    if dist.get_rank() == 0:
        write_atomically(result, json.dumps([asdict(point) for point in points]).encode())
    dist.barrier()
    dist.destroy_process_group()


def _group_sizes(world: int) -> list[int]:
    """Give 2, 4, 8 ... and the whole."""
    return sorted(
        {world, *(2**power for power in range(1, world.bit_length()) if 2**power < world)}
    )


def _points(
    operation: str,
    ranks: list[int],
    once: Callable[[torch.Tensor, dist.ProcessGroup], float],
    device: torch.device,
    share_s: float,
) -> list[LinkPoint]:
    """Measure one operation from the smallest size on, as long as there is time; that one always.

    Groups are made by members and others alike.
    """
    maker = GroupMaker(device=device, timeout=timedelta(seconds=_STARTUP_S))
    group = maker.group(tuple(ranks), dist.get_rank())
    until_s = time.monotonic() + share_s
    found: list[LinkPoint] = []
    for size_bytes in SIZES_BYTES:
        # Rank 0 decides, since clocks of ranks differ by a hair.
        in_time = size_bytes == SIZES_BYTES[0] or time.monotonic() < until_s
        go = torch.tensor([float(in_time)])
        dist.broadcast(go, src=0)
        if not go.item():
            break
        if dist.get_rank() in ranks:
            tensor = torch.zeros(size_bytes // _ELEMENT_BYTES, device=device)
            time_s = _median_s(partial(once, tensor, group), until_s, group, device)
            found.append(
                LinkPoint(
                    operation="transfer" if operation == "transfer" else "all_reduce",
                    reach="island",
                    ranks=len(ranks),
                    size_bytes=float(size_bytes),
                    time_s=time_s,
                )
            )
    return found


def _median_s(
    once: Callable[[], float], until_s: float, group: dist.ProcessGroup, device: torch.device
) -> float:
    """Give the median of the slowest rank's times, after one run that warms up."""
    once()
    times_s: list[float] = []
    while len(times_s) < _MOST_RUNS:
        # One more run is agreed on with the times: [the slowest's time, anybody out of time].
        took = torch.tensor([once(), float(time.monotonic() > until_s)], device=device)
        dist.all_reduce(took, op=dist.ReduceOp.MAX, group=group)
        times_s.append(took[0].item())
        if len(times_s) >= _LEAST_RUNS and took[1].item():
            break
    return statistics.median(times_s)


def _transfer(tensor: torch.Tensor, group: dist.ProcessGroup) -> float:
    """Give half a round trip, of messages posted as the engine posts them."""
    first = dist.get_rank() == 0
    begun_s = time.perf_counter()
    for sends in (first, not first):
        operation = dist.isend if sends else dist.irecv
        peer = 1 if first else 0
        for work in dist.batch_isend_irecv([dist.P2POp(operation, tensor, peer, group)]):
            work.wait()
    _synchronize(tensor)
    return (time.perf_counter() - begun_s) / 2


def _all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup) -> float:
    begun_s = time.perf_counter()
    dist.all_reduce(tensor, group=group)
    _synchronize(tensor)
    return time.perf_counter() - begun_s


def _synchronize(tensor: torch.Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)


if __name__ == "__main__":
    main(sys.argv[1:])
