"""Plan and simulate multi-task multi-modal training: an open implementation of Spindle.

The names of the Python API, in the order in which they are used: `builtin_workload` or
`load_workload`, `parse_cluster`, `make_plan`, `validate_plan`, `save_plan` and `load_plan`,
`simulate`, `summarize`, `Run` with `write_report`, `write_trace`; `Estimator` for scaling curves
alone; `SpindleError` for whatever a user can get wrong. Each is imported on first use, so that
`import spindle_sim` costs nothing.
"""

from importlib import import_module

TYPE_CHECKING = False  # as checkers know it; importing `typing` would take as long as all the rest
if TYPE_CHECKING:
    from spindle_sim.cluster import parse_cluster
    from spindle_sim.errors import SpindleError
    from spindle_sim.estimate import Estimator
    from spindle_sim.metrics import summarize
    from spindle_sim.plan import load_plan, save_plan, validate_plan
    from spindle_sim.planner import make_plan
    from spindle_sim.report import Run, write_report, write_trace
    from spindle_sim.simulator import simulate
    from spindle_sim.workload import builtin_workload, load_workload

__all__ = [
    "Estimator",
    "Run",
    "SpindleError",
    "builtin_workload",
    "load_plan",
    "load_workload",
    "make_plan",
    "parse_cluster",
    "save_plan",
    "simulate",
    "summarize",
    "validate_plan",
    "write_report",
    "write_trace",
]

__version__ = "0.1.0"

_HOMES = {
    "Estimator": "estimate",
    "Run": "report",
    "SpindleError": "errors",
    "builtin_workload": "workload",
    "load_plan": "plan",
    "load_workload": "workload",
    "make_plan": "planner",
    "parse_cluster": "cluster",
    "save_plan": "plan",
    "simulate": "simulator",
    "summarize": "metrics",
    "validate_plan": "plan",
    "write_report": "report",
    "write_trace": "report",
}


def __getattr__(name: str) -> object:
    """Import a public name from the package that holds it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted([*globals(), *_HOMES])
