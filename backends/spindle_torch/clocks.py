"""One clock for all ranks: offsets between the hosts' monotonic clocks, by ping-pong.

Processes of one host share its clock. Between hosts the offset of the round trip that was shortest
counts: its error is at most half of that round trip.
"""

import time
from collections.abc import Callable
from platform import node

import torch
import torch.distributed as dist

from spindle_torch.telling import all_gather_json

__all__ = ["measured_offset_s", "shared_clock"]

_ROUND_TRIPS = 50


def shared_clock(rank: int) -> Callable[[], float]:
    """Give a clock, in seconds, that agrees with that of rank 0; all ranks must call this.

    Readings travel between CPUs: to receive on a GPU lets the host go on at once.
    """
    hosts = all_gather_json(node(), str)
    offset_s = 0.0
    for other, host in enumerate(hosts):
        if host != hosts[0] and rank in (0, other):
            offset_s = measured_offset_s(rank, other)
    return lambda: time.perf_counter() + offset_s


def measured_offset_s(rank: int, other: int) -> float:
    """Give what `other` must add to its clock to agree with rank 0; 0 on rank 0 itself."""
    best_s, offset_s = float("inf"), 0.0
    reading = torch.zeros(1, dtype=torch.float64)
    for _ in range(_ROUND_TRIPS):
        if rank == 0:
            dist.recv(reading, src=other)
            reading[0] = time.perf_counter()
            dist.send(reading, dst=other)
            continue
        sent_s = time.perf_counter()
        dist.send(reading, dst=0)
        dist.recv(reading, src=0)
        trip_s = time.perf_counter() - sent_s
        if trip_s < best_s:
            best_s, offset_s = trip_s, reading.item() - (sent_s + trip_s / 2)
    return offset_s
