"""What a timeline means, whichever backend made it: figures of merit, and why devices idle."""

from spindle_sim.metrics.batches import batch_notes
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
    "DeviceSummary",
    "EngineTime",
    "IdleKind",
    "IdleReason",
    "MetaOpSummary",
    "Summary",
    "batch_notes",
    "engine_time",
    "idle_reasons",
    "model_flops",
    "summarize",
    "utilization_over_time",
]
