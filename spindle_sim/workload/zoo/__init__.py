"""The built-in workloads: the paper's three, a file for each model family."""

from spindle_sim.workload.zoo.catalogue import BUILTIN_WORKLOADS, builtin_workload

__all__ = ["BUILTIN_WORKLOADS", "builtin_workload"]
