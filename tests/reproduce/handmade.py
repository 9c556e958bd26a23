"""Results made by hand: what a case gives, without planning or simulating anything."""

from spindle_sim.reproduce.cases import Case, Tasks
from spindle_sim.reproduce.evidence import Evidence
from spindle_sim.reproduce.outcome import CaseResult, Outcome

GIB = 2.0**30


def outcome(strategy: str, iteration_s: float, **more: object) -> Outcome:
    """Give an outcome of which only the iteration time, and what else is given, isn't plain."""
    known: dict[str, object] = {
        "forward_backward_s": 0.85 * iteration_s,
        "sync_s": 0.10 * iteration_s,
        "send_recv_s": 0.02 * iteration_s,
        "end_of_compute_s": 0.9 * iteration_s,
        "isolated_s": iteration_s,
        "makespan_s": 0.88 * iteration_s,
        "optimum_s": 0.87 * iteration_s,
        "utilization": 0.4,
        "device_utilization": (0.4, 0.4),
        "metaop_utilization": (("t/m/layers", 0.5),),
        "over_time": ((0.25, 0.6), (0.75, 0.2)),
        "memory_bytes": (GIB, GIB),
        "reload_bytes": 4e9,
    }
    return Outcome(strategy=strategy, iteration_s=iteration_s, **{**known, **more})  # type: ignore[arg-type]


def result(workload: str, tasks: Tasks, gpus: int, **times_s: float) -> CaseResult:
    """Give a case with these iteration times by strategy."""
    return CaseResult(
        case=Case(workload=workload, tasks=tasks, gpus=gpus),
        outcomes=tuple(outcome(name, time_s) for name, time_s in times_s.items()),
        state_bytes=6e9,
    )


def evidence(*results: CaseResult) -> Evidence:
    """Give the evidence of these results."""
    return Evidence(results=results)
