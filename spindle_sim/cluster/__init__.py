"""ON WHAT: GPUs, device islands, links, clusters; the catalogue and the YAML reader."""

from spindle_sim.cluster.catalogue import GPUS
from spindle_sim.cluster.hardware import Cluster, Gpu
from spindle_sim.cluster.shorthand import parse_cluster

__all__ = ["GPUS", "Cluster", "Gpu", "parse_cluster"]
