"""ON WHAT: GPUs, device islands, links, clusters; the catalogue and the YAML reader."""

from spindle_sim.cluster.catalogue import GPUS
from spindle_sim.cluster.hardware import Cluster, Gpu
from spindle_sim.cluster.reader import cluster_schema, load_cluster
from spindle_sim.cluster.shorthand import parse_cluster

__all__ = ["GPUS", "Cluster", "Gpu", "cluster_schema", "load_cluster", "parse_cluster"]
