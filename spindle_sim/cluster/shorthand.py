"""Clusters in a word: "a800:2x8" is two nodes of eight A800, "h100:4" one node of four."""

import re
from dataclasses import replace
from pathlib import Path

from spindle_sim.cluster.catalogue import GPUS, NODE_NETWORKS
from spindle_sim.cluster.hardware import Cluster
from spindle_sim.cluster.reader import load_cluster
from spindle_sim.errors import InputError, UsageError, suggestion
from spindle_sim.units import parse_bandwidth

__all__ = ["parse_cluster"]

_SHORTHAND = re.compile(r"([A-Za-z0-9_-]+):(?:([0-9]{1,12})[xX])?([0-9]{1,12})")
_WANTED = "a GPU and its counts such as a800:2x8 (nodes x GPUs each), or a .yaml file"


def parse_cluster(
    text: str | Path,
    *,
    nics_per_node: int | None = None,
    nic_bandwidth: str | None = None,
    oversubscription: float | None = None,
) -> Cluster:
    """Give the cluster that "a800:2x8" or the YAML file at a path describes.

    The options replace what the shorthand implies or the file says; `nic_bandwidth` is one NIC's,
    with its unit: "400Gb/s".

    Raises:
        UsageError: the shorthand or an option is wrong.
        InputError: the file is wrong; every mistake in it is named.
    """
    if isinstance(text, Path) or text.lower().endswith((".yaml", ".yml")):
        cluster = load_cluster(text)
    else:
        cluster = _from_shorthand(text)
    given = {
        "nics_per_node": nics_per_node,
        "nic_bandwidth": nic_bandwidth,
        "oversubscription": oversubscription,
    }
    stated = [f"{name} {value}" for name, value in given.items() if value is not None]
    if not stated:
        return cluster
    try:
        return replace(
            cluster,
            nics_per_node=cluster.nics_per_node if nics_per_node is None else nics_per_node,
            nic_bandwidth_bytes_per_s=(
                cluster.nic_bandwidth_bytes_per_s
                if nic_bandwidth is None
                else parse_bandwidth(nic_bandwidth)
            ),
            oversubscription=(
                cluster.oversubscription if oversubscription is None else oversubscription
            ),
            source="; ".join(
                part for part in (cluster.source, f"given: {', '.join(stated)}") if part
            ),
        )
    except InputError as error:
        raise UsageError(*error.problems) from error


def _from_shorthand(text: str) -> Cluster:
    match = _SHORTHAND.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"cluster {text!r}: expected {_WANTED}")
    key = match[1].lower()
    if key not in GPUS:
        raise UsageError(f"cluster {text!r}: no GPU {match[1]!r}; {suggestion(key, GPUS)}")
    network = NODE_NETWORKS[key]
    devices_per_node = int(match[3])
    try:
        return Cluster(
            name=text.strip().lower(),
            gpu=GPUS[key],
            num_nodes=int(match[2] or 1),
            devices_per_node=devices_per_node,
            island_size=devices_per_node,
            nics_per_node=network.nics_per_node,
            nic_bandwidth_bytes_per_s=network.nic_bandwidth_bytes_per_s,
            source=f"NICs: {network.source}",
        )
    except InputError as error:
        raise UsageError(*error.problems) from error
