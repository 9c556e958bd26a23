"""The built-in workloads by name."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from spindle_sim.errors import UsageError, suggestion
from spindle_sim.workload.model import Workload
from spindle_sim.workload.zoo.multitask_clip import multitask_clip
from spindle_sim.workload.zoo.ofasys import ofasys
from spindle_sim.workload.zoo.qwen_val import qwen_val, qwen_val_open

__all__ = ["BUILTIN_WORKLOADS", "builtin_workload"]

BUILTIN_WORKLOADS: Mapping[str, Callable[[], Workload]] = MappingProxyType(
    {
        "multitask-clip": multitask_clip,
        "ofasys": ofasys,
        "qwen-val": qwen_val,
        "qwen-val-open": qwen_val_open,
    }
)


def builtin_workload(name: str) -> Workload:
    """Give the built-in workload of that name.

    Raises:
        UsageError: no built-in workload has it.
    """
    if name not in BUILTIN_WORKLOADS:
        hint = suggestion(name, BUILTIN_WORKLOADS)
        raise UsageError(f"no built-in workload {name!r}; {hint}")
    return BUILTIN_WORKLOADS[name]()
