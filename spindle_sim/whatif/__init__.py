"""WHAT IF: many workloads, clusters and strategies planned and simulated in parallel."""

from spindle_sim.whatif.point import Figures, Point, PointResult, evaluate
from spindle_sim.whatif.processes import in_processes
from spindle_sim.whatif.sensitivity import ChangeKind, Sensitivity, sensitivities, timed_as
from spindle_sim.whatif.sweep import sweep

__all__ = [
    "ChangeKind",
    "Figures",
    "Point",
    "PointResult",
    "Sensitivity",
    "evaluate",
    "in_processes",
    "sensitivities",
    "sweep",
    "timed_as",
]
