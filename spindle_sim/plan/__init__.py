"""WHO RUNS WHAT, WHERE, WHEN: the plan, its document and its validation."""

from spindle_sim.plan.model import (
    FORMAT_VERSION,
    Backward,
    DeviceMemory,
    Flow,
    InputHashes,
    MetaOp,
    ParameterGroup,
    ParameterRange,
    Plan,
    Slice,
)

__all__ = [
    "FORMAT_VERSION",
    "Backward",
    "DeviceMemory",
    "Flow",
    "InputHashes",
    "MetaOp",
    "ParameterGroup",
    "ParameterRange",
    "Plan",
    "Slice",
]
