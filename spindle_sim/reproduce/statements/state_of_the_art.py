"""Section 5.2, first half: Spindle against Megatron-LM and DeepSpeed (figure 8)."""

from collections.abc import Callable, Iterable

from spindle_sim.reproduce.evidence import Evidence, Point
from spindle_sim.reproduce.outcome import CaseResult
from spindle_sim.reproduce.rules import Found, Rule, Statement
from spindle_sim.units import counted

__all__ = ["SOTA", "STATE_OF_THE_ART", "largest", "over_both", "place"]

SOTA = ("megatron", "deepspeed")
Find = Callable[[Evidence], Found | None]


def place(point: Point) -> str:
    """Name the case of a value."""
    case = point.case
    tasks = counted(case.tasks, "task") if isinstance(case.tasks, int) else ", ".join(case.tasks)
    return f"{case.workload}, {tasks}, {case.gpus} GPUs"


def largest(points: Iterable[Point]) -> Found | None:
    """Give the largest value, and where it is."""
    known = sorted(points, key=lambda point: point.value)
    if not known:
        return None
    least, most = known[0], known[-1]
    return Found(
        values=(most.value,),
        how=f"largest of {len(known)} cases: {place(most)} (smallest: {least.value:.2f},"
        f" {place(least)})",
    )


def _over(system: str) -> Find:
    return lambda evidence: largest(evidence.speedups(evidence.stated(), "spindle", system))


def _range(workload: str, count: int, system: str) -> Find:
    def find(evidence: Evidence) -> Found | None:
        results = evidence.stated(workload, [count])
        points = evidence.speedups(results, "spindle", system)
        if not points:
            return None
        values = [point.value for point in points]
        shown = ", ".join(f"{point.value:.2f} on {point.case.gpus} GPUs" for point in points)
        return Found(values=(min(values), max(values)), how=shown)

    return find


def _best(workload: str, gpus: int) -> Find:
    """Take the highest speed-up over either system, over all task counts, on this many GPUs."""

    def find(evidence: Evidence) -> Found | None:
        results = [one for one in evidence.stated(workload) if one.case.gpus == gpus]
        return largest(_both(evidence, results))

    return find


def _both(evidence: Evidence, results: Iterable[CaseResult]) -> list[Point]:
    return over_both(evidence, "spindle", results)


def over_both(evidence: Evidence, system: str, results: Iterable[CaseResult]) -> list[Point]:
    """Give a system's speed-ups over Megatron-LM and over DeepSpeed."""
    kept = list(results)
    return [point for other in SOTA for point in evidence.speedups(kept, system, other)]


def _scaling(workload: str, count: int, system: str, sizes: tuple[int, int]) -> Find:
    def find(evidence: Evidence) -> Found | None:
        before, after = (evidence.outcome(workload, count, size, system) for size in sizes)
        if before is None or after is None:
            return None
        return Found(
            values=(before.iteration_s / after.iteration_s,),
            how=f"{1e3 * before.iteration_s:.0f} ms on {sizes[0]} GPUs,"
            f" {1e3 * after.iteration_s:.0f} ms on {sizes[1]}",
        )

    return find


def _always_fastest(evidence: Evidence) -> Found | None:
    others = [name for name in SOTA if list(evidence.speedups(evidence.stated(), "spindle", name))]
    points = _both(evidence, evidence.stated())
    if not others:
        return None
    slower = [point for point in points if point.value <= 1]
    return Found(
        holds=not slower,
        how=f"faster than {' and '.join(others)} in {len(points) - len(slower)} of {len(points)}"
        " comparisons" + "".join(f"; {place(one)}: {one.value:.3f}" for one in slower),
    )


def _more_tasks(evidence: Evidence) -> Found | None:
    pairs = []
    for workload, few, many in (("multitask-clip", 4, 10), ("ofasys", 4, 7)):
        ends = [
            largest(_both(evidence, evidence.stated(workload, [count]))) for count in (few, many)
        ]
        if ends[0] is None or ends[1] is None:
            return None
        pairs.append((workload, few, ends[0].values[0], many, ends[1].values[0]))
    return Found(
        holds=all(more > less for _, _, less, _, more in pairs),
        how="; ".join(
            f"{name}: at most {less:.2f} with {few} tasks, {more:.2f} with {many}"
            for name, few, less, many, more in pairs
        ),
    )


def _title(system: str) -> str:
    return {"megatron": "Megatron-LM", "deepspeed": "DeepSpeed", "spindle": "Spindle"}[system]


STATE_OF_THE_ART: tuple[Statement, ...] = (
    *(
        Statement(
            id=f"{system}-max",
            section="5.2",
            text=f"Speed-up over {_title(system)} of up to {value}x.",
            rule=Rule.RATIO,
            paper=(value,),
            find=_over(system),
        )
        for system, value in (("megatron", 1.67), ("deepspeed", 1.71))
    ),
    Statement(
        id="consistently-faster",
        section="5.2",
        text="Spindle consistently outperforms Megatron-LM and DeepSpeed across task"
        " configurations and cluster sizes.",
        rule=Rule.HOLDS,
        find=_always_fastest,
    ),
    Statement(
        id="more-tasks-more-gain",
        section="5.2",
        text="Spindle excels when handling a larger number of tasks.",
        rule=Rule.HOLDS,
        find=_more_tasks,
    ),
    *(
        Statement(
            id=f"{workload}-{count}-{system}-range",
            section="5.2",
            text=f"{count}-task {workload}: speed-up over {_title(system)} of {low}-{high}x.",
            rule=Rule.RANGE,
            paper=(low, high),
            find=_range(workload, count, system),
        )
        for workload, count, system, low, high in (
            ("multitask-clip", 10, "megatron", 1.31, 1.63),
            ("multitask-clip", 10, "deepspeed", 1.33, 1.71),
            ("ofasys", 7, "megatron", 1.31, 1.67),
            ("ofasys", 7, "deepspeed", 1.33, 1.71),
        )
    ),
    *(
        Statement(
            id=f"{workload}-best-{gpus}",
            section="5.2",
            text=f"{workload}: highest speed-up over both systems of {value}x on {gpus} GPUs.",
            rule=Rule.RATIO,
            paper=(value,),
            find=_best(workload, gpus),
        )
        for workload, gpus, value in (
            ("multitask-clip", 8, 1.37),
            ("multitask-clip", 16, 1.33),
            ("multitask-clip", 32, 1.71),
            ("ofasys", 8, 1.71),
            ("ofasys", 16, 1.46),
            ("ofasys", 32, 1.51),
            ("qwen-val", 32, 1.16),
            ("qwen-val", 64, 1.63),
        )
    ),
    *(
        Statement(
            id=f"{workload}-scaling-{system}",
            section="5.2",
            text=f"{count}-task {workload} from {sizes[0]} to {sizes[1]} GPUs: {_title(system)}"
            f" gets {value}x faster.",
            rule=Rule.RATIO,
            paper=(value,),
            find=_scaling(workload, count, system, sizes),
        )
        for workload, count, sizes, values in (
            ("multitask-clip", 4, (16, 32), (1.45, 1.21, 1.17)),
            ("qwen-val", 3, (32, 64), (1.78, 1.27, 1.26)),
        )
        for system, value in zip(("spindle", *SOTA), values, strict=True)
    ),
)
