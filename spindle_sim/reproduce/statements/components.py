"""Sections 5.5 and 5.6, appendices C and D: planner, placement, changes, single tasks, memory."""

from statistics import mean

from spindle_sim.reproduce.cases import Case
from spindle_sim.reproduce.dynamic import courses
from spindle_sim.reproduce.evidence import Evidence, Point
from spindle_sim.reproduce.outcome import CaseResult, Outcome
from spindle_sim.reproduce.rules import TOLERANCE, Found, Rule, Statement
from spindle_sim.reproduce.statements.state_of_the_art import SOTA, largest
from spindle_sim.reproduce.statements.study import case_study

__all__ = ["COMPONENTS", "placements", "planning_times"]

_GIB = 2.0**30
_LEAST_OVERHEAD = 1e-3  # of an iteration: there is nothing to divide by where it is less


def _optimality(evidence: Evidence) -> Found | None:
    shares = {}
    for result in evidence.stated():
        spindle = result.of("spindle")
        if spindle is not None:
            shares[result.case.name] = spindle.end_of_compute_s / spindle.optimum_s - 1
    if not shares:
        return None
    most = max(shares, key=lambda name: shares[name])
    return Found(
        values=(max(0.0, shares[most]),),
        how=f"end of forward and backward over C*, largest of {len(shares)} cases: {most}"
        f" ({sum(value <= 0.07 for value in shares.values())} cases within 7 %)",  # noqa: PLR2004
    )


def planning_times(evidence: Evidence) -> dict[Case, float]:
    """Give the wall seconds that Spindle's plans took, by case."""
    times = {}
    for result in evidence.results:
        spindle = result.of("spindle")
        case = result.case
        unchanged = (evidence.batch_scale, "")
        if spindle is not None and (case.batch_scale, case.change.name) == unchanged:
            times[case] = spindle.planning_s
    return times


def _planning(evidence: Evidence) -> Found | None:
    times = planning_times(evidence)
    if not times:
        return None
    return Found(
        values=(max(times.values()),),
        how="seconds of wall time, the longest of all cases: see wall_clock",
    )


def placements(evidence: Evidence) -> list[tuple[CaseResult, Outcome, Outcome]]:
    """Give the cases that were planned with both placements: Spindle's outcome, sequential's."""
    found = []
    for result in evidence.stated():
        ours, theirs = result.of("spindle"), result.sequential
        if ours is not None and theirs is not None and theirs.feasible:
            found.append((result, ours, theirs))
    return found


def _share(outcome: Outcome) -> float:
    """Give what section 5.4 calls send and receive: 5.5.2 details the overhead named there."""
    return outcome.send_recv_s / outcome.isolated_s


def _placement_ratio(evidence: Evidence) -> Found | None:
    ratios = [
        theirs.send_recv_s / ours.send_recv_s
        for _, ours, theirs in placements(evidence)
        if _share(ours) >= _LEAST_OVERHEAD
    ]
    if not ratios:
        return None
    ratios.sort()
    return Found(
        values=(ratios[0], ratios[-1]),
        how=f"least and most of {len(ratios)} cases where Spindle's overhead is at least 0.1 % of"
        f" the iteration; median {ratios[len(ratios) // 2]:.1f}",
    )


def _placement_most(evidence: Evidence) -> Found | None:
    found = placements(evidence)
    if not found:
        return None
    result, _, theirs = max(found, key=lambda one: _share(one[2]))
    return Found(values=(_share(theirs),), how=f"largest of {len(found)} cases: {result.case.name}")


def _placement_ours(evidence: Evidence) -> Found | None:
    found = placements(evidence)
    if not found:
        return None
    result, ours, _ = max(found, key=lambda one: _share(one[1]))
    return Found(values=(_share(ours),), how=f"largest of {len(found)} cases: {result.case.name}")


def _changes(evidence: Evidence) -> Found | None:
    found = {course.strategy: course for course in courses(evidence)}
    if "spindle" not in found or len(found) == 1:
        return None
    ours = found["spindle"]
    shortest = all(ours.total_s <= other.total_s for other in found.values())
    best = all(
        mine.iteration_s <= theirs.iteration_s
        for other in found.values()
        for mine, theirs in zip(ours.phases, other.phases, strict=True)
    )
    return Found(
        holds=shortest and best,
        how=", ".join(f"{name} {one.total_s:.0f} s" for name, one in found.items())
        + f"; fastest {'' if best else 'not '}in every phase",
    )


def _single(evidence: Evidence) -> Found | None:
    points: list[Point] = []
    for result in evidence.singles():
        for system in SOTA:
            points += evidence.speedups([result], "spindle", system)
    return largest(points)


def _single_stmm(evidence: Evidence) -> Found | None:
    points: list[Point] = list(evidence.speedups(evidence.singles(), "spindle", "stmm"))
    if not points:
        return None
    values = [point.value for point in points]
    return Found(
        holds=all(abs(value - 1) <= TOLERANCE for value in values),
        how=f"Spindle is {min(values):.2f} to {max(values):.2f} times as fast in {len(values)}"
        " cases",
    )


def _memory(evidence: Evidence) -> Found | None:
    """Compare device by device, as figure 15 does; "generally" is on most of them."""
    found = case_study(evidence, "spindle", *SOTA)
    if found is None:
        return None
    means = {one.strategy: mean(one.memory_bytes) for one in found}
    peaks = list(zip(*(one.memory_bytes for one in found), strict=True))
    lower = sum(ours < min(others) for ours, *others in peaks)
    return Found(
        holds=lower > len(peaks) / 2,
        how=f"less than both on {lower} of {len(peaks)} devices; mean peak of a device: "
        + ", ".join(f"{name} {value / _GIB:.1f} GiB" for name, value in means.items()),
    )


def _imbalance(outcome: Outcome) -> float:
    return max(outcome.memory_bytes) / mean(outcome.memory_bytes) - 1


def _balanced(evidence: Evidence) -> Found | None:
    found = case_study(evidence, "spindle")
    if found is None:
        return None
    return Found(
        holds=_imbalance(found[0]) <= TOLERANCE,
        how=f"the fullest device is {_imbalance(found[0]):.1%} above the mean; balanced is at most"
        " 10 %",
    )


def _imbalanced(evidence: Evidence) -> Found | None:
    found = case_study(evidence, "spindle", "optimus", "uniform")
    if found is None:
        return None
    ours, optimus, uniform = (_imbalance(one) for one in found)
    return Found(
        holds=optimus > max(ours, TOLERANCE) and uniform > optimus,
        how=f"fullest device above the mean: spindle {ours:.1%}, optimus {optimus:.1%}, uniform"
        f" {uniform:.1%}",
    )


COMPONENTS: tuple[Statement, ...] = (
    Statement(
        id="fig11-optimality",
        section="5.5.1",
        text="Spindle deviates from the theoretical optimum by less than 7 %, across task"
        " configurations and cluster sizes.",
        rule=Rule.AT_MOST,
        paper=(0.07,),
        find=_optimality,
    ),
    Statement(
        id="planning-time",
        section="5.5.1",
        text="Spindle generates plans within 3 seconds.",
        rule=Rule.AT_MOST,
        paper=(3.0,),
        find=_planning,
        wall_clock=True,
    ),
    Statement(
        id="placement-ratio",
        section="5.5.2",
        text="Sequential placement has 3-6 times the communication overhead between stages.",
        rule=Rule.RANGE,
        paper=(3.0, 6.0),
        find=_placement_ratio,
    ),
    Statement(
        id="placement-sequential",
        section="5.5.2",
        text="With sequential placement the overhead takes up to 27 % of the iteration.",
        rule=Rule.RATIO,
        paper=(0.27,),
        find=_placement_most,
    ),
    Statement(
        id="placement-spindle",
        section="5.5.2",
        text="With Spindle's placement it takes up to 6 %.",
        rule=Rule.AT_MOST,
        paper=(0.06,),
        find=_placement_ours,
    ),
    Statement(
        id="fig13-shortest",
        section="5.6",
        text="When task sets change, Spindle has the best efficiency in each and the shortest"
        " total time.",
        rule=Rule.HOLDS,
        find=_changes,
    ),
    Statement(
        id="single-task-max",
        section="appendix C",
        text="On single tasks Spindle is up to 1.48x as fast as the state of the art.",
        rule=Rule.RATIO,
        paper=(1.48,),
        find=_single,
    ),
    Statement(
        id="single-task-stmm",
        section="appendix C",
        text="On single tasks Spindle-STMM performs like Spindle.",
        rule=Rule.HOLDS,
        find=_single_stmm,
    ),
    Statement(
        id="memory-below",
        section="appendix D",
        text="Spindle generally takes less memory of a device than Megatron-LM and DeepSpeed.",
        rule=Rule.HOLDS,
        find=_memory,
    ),
    Statement(
        id="memory-balanced",
        section="appendix D",
        text="Spindle's memory is balanced over the devices.",
        rule=Rule.HOLDS,
        find=_balanced,
    ),
    Statement(
        id="memory-imbalanced",
        section="appendix D",
        text="Optimus has significant memory imbalances, Uniform even more.",
        rule=Rule.HOLDS,
        find=_imbalanced,
    ),
)
