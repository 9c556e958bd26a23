"""The published measurements that the estimates are fitted to and checked against, as they lie."""

import csv
from dataclasses import dataclass
from importlib import resources

from spindle_sim.cluster import GPUS, Cluster

__all__ = ["AllReduce", "Kernel", "all_reduces", "kernels", "one_node", "rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One measured kernel: m, n, k of a product; rows m and width n of an element-wise kernel."""

    gpu: str
    operation: str
    m: float
    n: float
    k: float
    fraction: float  # of peak
    time_s: float
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce:
    """One measured all-reduce within a node."""

    gpu: str
    ranks: int
    size_bytes: float
    time_s: float


def rows(name: str) -> list[dict[str, str]]:
    """Read a table of `spindle_traces/measured`, without its comment lines."""
    path = resources.files("spindle_traces").joinpath("measured", name)
    lines = path.read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def kernels(gpu: str, operation: str) -> list[Kernel]:
    """Give the kernels of one GPU whose operation begins with `operation`."""
    return [
        Kernel(
            gpu=row["gpu"],
            operation=row["op"],
            m=float(row["m"] or 0),
            n=float(row["n"] or 0),
            k=float(row["k"] or 0),
            fraction=float(row["fraction"] or 0),
            time_s=float(row["time_us"] or 0) * 1e-6,
            note=row["note"],
        )
        for row in rows("kernels.csv")
        if row["gpu"] == gpu and row["op"].startswith(operation)
    ]


def all_reduces(gpu: str) -> list[AllReduce]:
    """Give the all-reduces of "a100", "a800" or "h100", from 1 MiB on."""
    if gpu == "a100":
        found = [
            (int(row["ranks"]), float(row["bytes"]), float(row["time_us"]))
            for row in rows("a100_nccl_allreduce.csv")
        ]
    else:
        found = [
            (int(row["num_gpus"]), float(row["size_bytes"]), float(row["time_us"]))
            for row in rows("nccl_allreduce_a800_h100.csv")
            if row["gpu"].lower().startswith(gpu)
        ]
    return [
        AllReduce(gpu=gpu, ranks=ranks, size_bytes=size_bytes, time_s=time_us * 1e-6)
        for ranks, size_bytes, time_us in found
        if size_bytes >= 2**20
    ]


def one_node(gpu: str) -> Cluster:
    """Give a node of eight, as the measurements were taken on."""
    return Cluster(
        name=gpu,
        gpu=GPUS[gpu],
        num_nodes=1,
        devices_per_node=8,
        island_size=8,
        nics_per_node=1,
        nic_bandwidth_bytes_per_s=50e9,
    )
