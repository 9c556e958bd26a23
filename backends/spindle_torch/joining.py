"""How ranks find each other and agree on their devices: GPUs if each has one of its own, else CPUs.

All that is said in words (plans, clocks, notes, checkpoints) goes over gloo, which every run has:
a GPU's streams are left alone, and a host really waits. Rows, gradients and parameters go over the
groups of `groups.py`: NCCL's on GPUs.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from platform import node

import torch
import torch.distributed as dist

from spindle_sim.errors import UsageError
from spindle_torch.telling import all_gather_json

__all__ = ["Joined", "Seat", "agreed_device", "join"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where a rank is, what it was told to take, and the GPU that it would have, "" without one."""

    wanted: str
    host: str
    gpu: str = ""
    visible: int = 0  # GPUs that it sees


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The device of this rank, and what a user should know about the choice, if anything."""

    device: torch.device
    note: str = ""


def join(wanted: str, timeout_s: float) -> Joined:
    """Join the process group that torchrun describes; all ranks get devices of one kind.

    `wanted` is "cpu", "cuda", or "auto": GPUs where there are enough.

    Raises:
        UsageError: GPUs are wanted, and a rank has none of its own.
    """
    torch.set_num_threads(1)  # ranks share the cores, and sums must not depend on their number
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
    index, seat = _seat(wanted)
    kind, note = agreed_device(all_gather_json(seat, Seat))
    if kind == "cpu":
        return Joined(device=torch.device("cpu"), note=note)
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)  # before anything of NCCL
    return Joined(device=device, note=note)


def agreed_device(seats: Sequence[Seat]) -> tuple[str, str]:
    """Give the kind of device that all ranks take, and a note; seats are by rank.

    Raises:
        UsageError: GPUs are wanted, and a rank has none of its own; or not all want the same.
    """
    wanted = seats[0].wanted
    others = [str(rank) for rank, seat in enumerate(seats) if seat.wanted != wanted]
    if others:
        raise UsageError(
            f"rank {', '.join(others)} has another --device than rank 0; give all the same"
        )
    if wanted == "cpu":
        return "cpu", ""
    takers = Counter((seat.host, seat.gpu) for seat in seats)
    without = [
        rank for rank, seat in enumerate(seats) if not seat.gpu or takers[seat.host, seat.gpu] > 1
    ]
    if not without:
        return "cuda", ""
    first = seats[without[0]]
    ranks = sum(seat.host == first.host for seat in seats)
    found = f"{first.host} has {ranks} ranks, which see {first.visible} GPUs"
    if wanted == "cuda":
        listed = ", ".join(map(str, without))
        raise UsageError(
            f"--device cuda: rank {listed} has no GPU of its own ({found}), as NCCL asks for; plan"
            " for fewer devices, or run on CPUs (--device cpu)"
        )
    return "cpu", f"{found}: all ranks run on CPUs" if any(s.visible for s in seats) else ""


def _seat(wanted: str) -> tuple[int, Seat]:
    """Give the GPU that this rank would take, by index, and its seat."""
    visible = 0
    if wanted != "cpu" and torch.cuda.is_available() and dist.is_nccl_available():
        visible = torch.cuda.device_count()
    local = dist.get_node_local_rank(fallback_rank=0)
    # Where a launcher shows each rank a single GPU, that is its own.
    index = 0 if visible == 1 else local
    if index >= visible:
        return 0, Seat(wanted=wanted, host=node(), visible=visible)
    properties = torch.cuda.get_device_properties(index)
    gpu = str(getattr(properties, "uuid", index))
    return index, Seat(wanted=wanted, host=node(), gpu=gpu, visible=visible)
