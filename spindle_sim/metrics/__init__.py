"""What a timeline means, whichever backend made it: figures of merit, and why devices idle."""

from spindle_sim.metrics.batches import batch_notes
from spindle_sim.metrics.critical_path import (
    CriticalPath,
    PathKind,
    PathShare,
    PathStep,
    Why,
    critical_path,
)
from spindle_sim.metrics.idle import IdleKind, IdleReason, idle_reasons
from spindle_sim.metrics.overhead import EngineTime, engine_time
from spindle_sim.metrics.summary import (
    DeviceSummary,
    MetaOpSummary,
    Summary,
    model_flops,
    summarize,
    utilization_over_time,
)

__all__ = [
    "CriticalPath",
    "DeviceSummary",
    "EngineTime",
    "IdleKind",
    "IdleReason",
    "MetaOpSummary",
    "PathKind",
    "PathShare",
    "PathStep",
    "Summary",
    "Why",
    "batch_notes",
    "critical_path",
    "engine_time",
    "idle_reasons",
    "model_flops",
    "summarize",
    "utilization_over_time",
]
