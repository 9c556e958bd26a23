"""ON WHAT: GPUs, device islands, links, clusters; the catalogue and the YAML reader."""

from spindle_sim.cluster.hardware import Cluster, Gpu

__all__ = ["Cluster", "Gpu"]
