"""WHO RUNS WHAT, WHERE, WHEN: the plan, its document and its validation."""

from spindle_sim.plan.document import dump_plan, input_hash, load_plan, parse_plan, save_plan
from spindle_sim.plan.model import (
    FORMAT_VERSION,
    Backward,
    DeviceMemory,
    Flow,
    InputHashes,
    MetaOp,
    Order,
    ParameterGroup,
    ParameterRange,
    Plan,
    Round,
    Slice,
)
from spindle_sim.plan.reading import plan_schema
from spindle_sim.plan.schedule import Schedule, ScheduledSlice, execution_order, schedule
from spindle_sim.plan.validate import Violation, validate_plan

__all__ = [
    "FORMAT_VERSION",
    "Backward",
    "DeviceMemory",
    "Flow",
    "InputHashes",
    "MetaOp",
    "Order",
    "ParameterGroup",
    "ParameterRange",
    "Plan",
    "Round",
    "Schedule",
    "ScheduledSlice",
    "Slice",
    "Violation",
    "dump_plan",
    "execution_order",
    "input_hash",
    "load_plan",
    "parse_plan",
    "plan_schema",
    "save_plan",
    "schedule",
    "validate_plan",
]
