"""The figures of each part as plain data: what the document holds and what the page draws."""

from collections.abc import Callable, Iterator
from dataclasses import asdict

from spindle_sim.reproduce.cases import (
    CASE_STUDY,
    GPUS_PER_NODE,
    SCALES,
    STATED,
    SYSTEMS,
    Case,
    part_cases,
)
from spindle_sim.reproduce.dynamic import (
    ITERATIONS,
    PLANNING_S,
    STORAGE_BYTES_PER_S,
    courses,
)
from spindle_sim.reproduce.evidence import Evidence
from spindle_sim.reproduce.outcome import CaseResult, Outcome
from spindle_sim.reproduce.run import Reproduction
from spindle_sim.reproduce.statements.components import placements

__all__ = ["Data", "part_data"]

Data = dict[str, object]
_SHOWN = (
    "iteration_s",
    "utilization",
    "rounds",
    "recomputed_metaops",
    "tensor_parallel",
    "zero_stage",
)
_BREAKDOWN = (
    "isolated_s",
    "forward_backward_s",
    "sync_s",
    "optimizer_s",
    "send_recv_s",
    "idle_s",
)


def part_data(reproduction: Reproduction) -> dict[str, Data]:
    """Give the data of every part that was run."""
    evidence = reproduction.evidence
    give: dict[str, Callable[[], Data]] = {
        "fig4": lambda: _curves(evidence),
        "fig8": lambda: {"cases": [_times(one) for one in _results(reproduction, "fig8")]},
        "fig9": lambda: _case_study(evidence),
        "fig10": lambda: {"cases": _breakdowns(reproduction)},
        "fig11": lambda: {"cases": _optima(reproduction)},
        "placement": lambda: {"cases": _placements(evidence)},
        "fig13": lambda: _courses(evidence),
        "fig14": lambda: {"cases": [_times(one) for one in _results(reproduction, "fig14")]},
        "fig15": lambda: _memory(evidence),
        "batches": lambda: {"rows": _scales(reproduction)},
    }
    made = {part: give[part]() for part in reproduction.options.judged_parts}
    return {part: data for part, data in made.items() if data}


def _case(case: Case) -> Data:
    tasks = case.tasks if isinstance(case.tasks, int) else list(case.tasks)
    return {"workload": case.workload, "tasks": tasks, "gpus": case.gpus}


def _results(reproduction: Reproduction, part: str) -> Iterator[CaseResult]:
    """Give the results of a part in the order of its cases."""
    options = reproduction.options
    known = {one.case.key: one for one in reproduction.evidence.results}
    for case in part_cases(part, options.gpus, options.batch_scale):
        yield known[case.key]


def _pick(outcome: Outcome, names: tuple[str, ...]) -> Data:
    return {name: getattr(outcome, name) for name in names}


def _times(result: CaseResult) -> Data:
    rows: Data = {}
    for outcome in result.outcomes:
        rows[outcome.strategy] = (
            _pick(outcome, _SHOWN) if outcome.feasible else {"error": outcome.error}
        )
    return {**_case(result.case), "strategies": rows}


def _curves(evidence: Evidence) -> Data:
    assert evidence.curves is not None, "figure 4 was run"
    return {
        "curves": [
            {"metaop": one.metaop, "points": [list(point) for point in one.points]}
            for one in evidence.curves.curves
        ],
        "errors": [asdict(one) for one in evidence.curves.errors],
    }


def _case_study(evidence: Evidence) -> Data:
    result = evidence.result(CASE_STUDY.workload, CASE_STUDY.tasks, CASE_STUDY.gpus)
    if result is None:
        return {}
    rows = {
        one.strategy: {
            "iteration_s": one.iteration_s,
            "utilization": one.utilization,
            "over_time": [list(point) for point in one.over_time],
            "devices": list(one.device_utilization),
            "metaops": dict(one.metaop_utilization),
        }
        for one in result.outcomes
        if one.feasible
    }
    return {**_case(result.case), "strategies": rows}


def _breakdowns(reproduction: Reproduction) -> list[Data]:
    rows = []
    for result in _results(reproduction, "fig10"):
        strategies = {
            name: _pick(outcome, _BREAKDOWN)
            for name in ("spindle", "seq")
            if (outcome := result.of(name)) is not None
        }
        rows.append({**_case(result.case), "strategies": strategies})
    return rows


def _optima(reproduction: Reproduction) -> list[Data]:
    rows = []
    for result in _results(reproduction, "fig11"):
        spindle = result.of("spindle")
        if spindle is not None:
            names = ("end_of_compute_s", "makespan_s", "optimum_s", "equation_11_s")
            over = spindle.end_of_compute_s / spindle.optimum_s - 1
            rows.append({**_case(result.case), **_pick(spindle, names), "over_optimum": over})
    return rows


def _placements(evidence: Evidence) -> list[Data]:
    return [
        {
            **_case(result.case),
            **{
                name: {
                    "overhead_s": outcome.send_recv_s,
                    "share": outcome.send_recv_s / outcome.isolated_s,
                    "isolated_s": outcome.isolated_s,
                }
                for name, outcome in (("spindle", ours), ("sequential", theirs))
            },
        }
        for result, ours, theirs in placements(evidence)
    ]


def _courses(evidence: Evidence) -> Data:
    found = courses(evidence)
    if not found:
        return {}
    return {
        "iterations_a_phase": ITERATIONS,
        "storage_bytes_per_s": STORAGE_BYTES_PER_S,
        "planning_s": PLANNING_S,
        "gpus": CASE_STUDY.gpus,
        "nodes": CASE_STUDY.gpus // GPUS_PER_NODE,
        "courses": [{**asdict(course), "total_s": course.total_s} for course in found],
    }


def _memory(evidence: Evidence) -> Data:
    result = evidence.result(CASE_STUDY.workload, CASE_STUDY.tasks, CASE_STUDY.gpus)
    if result is None:
        return {}
    rows = {one.strategy: list(one.memory_bytes) for one in result.outcomes if one.feasible}
    return {**_case(result.case), "strategies": rows}


def _scales(reproduction: Reproduction) -> list[Data]:
    """Give Spindle's largest and smallest speed-up for each workload, system and batch scale."""
    evidence, rows = reproduction.evidence, []
    for workload in STATED:
        for system in SYSTEMS[1:4]:
            row: Data = {"workload": workload, "over": system}
            for scale in SCALES:
                scaled = Evidence(
                    results=evidence.results, batch_scale=evidence.batch_scale * scale
                )
                points = scaled.speedups(scaled.stated(workload), "spindle", system)
                values = [point.value for point in points]
                row[f"x{scale:g}"] = [min(values), max(values)] if values else None
            if any(value for key, value in row.items() if key.startswith("x")):
                rows.append(row)
    return rows
