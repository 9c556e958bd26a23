"""Section 5.2, second half: the baselines built on Spindle (figure 8).

The paper's words are counted as follows: "most" is more than half of the cases, "many" at least a
third, "some" and "sometimes" at least one; "comparable" and "similar" is within 10 %.
"""

from collections.abc import Callable, Sequence

from spindle_sim.reproduce.evidence import Evidence, Point
from spindle_sim.reproduce.rules import TOLERANCE, Found, Rule, Statement
from spindle_sim.reproduce.statements.state_of_the_art import SOTA, largest, over_both, place

__all__ = ["BASELINES", "fastest_of_both"]

Find = Callable[[Evidence], Found | None]
_MOST, _MANY = 1 / 2, 1 / 3


def fastest_of_both(evidence: Evidence, system: str, workload: str | None = None) -> list[Point]:
    """Give a system's speed-up over the faster of Megatron-LM and DeepSpeed, in each case."""
    found = []
    for result in evidence.stated(workload):
        ours, others = result.of(system), [result.of(name) for name in SOTA]
        times = [one.iteration_s for one in others if one is not None]
        if ours is not None and len(times) == len(SOTA):
            found.append(Point(case=result.case, value=min(times) / ours.iteration_s))
    return found


def _share(
    points: Sequence[Point], more_than: float, words: str, *, at_least: bool
) -> Found | None:
    """Say whether the cases above 1 are more than that part of all, or at least it."""
    if not points:
        return None
    count = sum(point.value > 1 for point in points)
    part = count / len(points)
    return Found(
        holds=part >= more_than if at_least else part > more_than,
        how=f"{words} in {count} of {len(points)} cases",
    )


def _over_deepspeed(system: str) -> Find:
    return lambda evidence: largest(evidence.speedups(evidence.stated(), system, "deepspeed"))


def _seq_comparable(evidence: Evidence) -> Found | None:
    points = fastest_of_both(evidence, "seq")
    if not points:
        return None
    near = [point for point in points if abs(point.value - 1) <= TOLERANCE]
    values = [point.value for point in points]
    return Found(
        holds=len(near) > _MOST * len(points),
        how=f"within 10 % of the faster of both in {len(near)} of {len(points)} cases (from"
        f" {min(values):.2f} to {max(values):.2f} times as fast)",
    )


def _uniform_behind(evidence: Evidence) -> Found | None:
    points = [
        Point(case=one.case, value=1 / one.value) for one in fastest_of_both(evidence, "uniform")
    ]
    return _share(points, _MOST, "slower than the faster of both", at_least=False)


def _optimus_behind(evidence: Evidence) -> Found | None:
    points = evidence.speedups(evidence.stated(), "optimus", "deepspeed")
    if not points:
        return None
    behind = [point for point in points if point.value < 1]
    return Found(
        holds=bool(behind),
        how=f"behind DeepSpeed in {len(behind)} of {len(points)} cases"
        + (f", most in {place(min(behind, key=lambda one: one.value))}" if behind else ""),
    )


def _optimus_scales(evidence: Evidence) -> Found | None:
    points = evidence.speedups(evidence.stated(), "optimus", "deepspeed")
    sizes = sorted({point.case.gpus for point in points})
    if len(sizes) <= 1:
        return None
    best = {size: max(point.value for point in points if point.case.gpus == size) for size in sizes}
    return Found(
        holds=max(best, key=lambda size: best[size]) >= sizes[len(sizes) // 2],
        how="best speed-up over DeepSpeed: "
        + ", ".join(f"{value:.2f} on {size} GPUs" for size, value in best.items())
        + "; the best of all is to be among the larger half of the sizes",
    )


def _over(system: str) -> Find:
    return lambda evidence: largest(evidence.speedups(evidence.stated(), "spindle", system))


def _over_optimus(evidence: Evidence) -> Found | None:
    """Look, as the paper does, where Optimus has already surpassed both systems."""
    ahead = {point.case for point in fastest_of_both(evidence, "optimus") if point.value > 1}
    points = evidence.speedups(evidence.stated(), "spindle", "optimus")
    found = largest(point for point in points if point.case in ahead)
    if found is not None or not points:
        return found
    return Found(values=(0.0,), how=f"Optimus surpasses both in none of {len(points)} cases")


def _stmm_over_both(evidence: Evidence) -> Found | None:
    return largest(over_both(evidence, "stmm", evidence.stated()))


def _always_over(*systems: str) -> Find:
    """Say whether Spindle is faster than all of them in every case."""

    def find(evidence: Evidence) -> Found | None:
        points = {name: evidence.speedups(evidence.stated(), "spindle", name) for name in systems}
        if not all(points.values()):
            return None
        every = [(name, point) for name in systems for point in points[name]]
        slower = [(name, point) for name, point in every if point.value <= 1]
        return Found(
            holds=not slower,
            how=f"faster in {len(every) - len(slower)} of {len(every)} comparisons"
            + "".join(f"; {place(one)}: {one.value:.3f} of {name}'s" for name, one in slower),
        )

    return find


def _optimus_over_uniform(evidence: Evidence) -> Found | None:
    points = evidence.speedups(evidence.stated(), "optimus", "uniform")
    return _share(points, _MOST, "Optimus is faster", at_least=False)


def _optimus_at_8(evidence: Evidence) -> Found | None:
    results = [one for one in evidence.stated("multitask-clip", [4]) if one.case.gpus == 8]  # noqa: PLR2004
    return largest(evidence.speedups(results, "spindle", "optimus"))


def _stmm_better(evidence: Evidence) -> Found | None:
    points = fastest_of_both(evidence, "stmm")
    return _share(points, _MOST, "faster than the faster of both", at_least=False)


def _stmm_on_ofasys(evidence: Evidence) -> Found | None:
    points = fastest_of_both(evidence, "stmm", "ofasys")
    if not points:
        return None
    values = [point.value for point in points]
    return Found(
        holds=all(abs(value - 1) <= TOLERANCE for value in values),
        how=f"from {min(values):.2f} to {max(values):.2f} times as fast as the faster of both",
    )


def _optimus_over_stmm(evidence: Evidence) -> Found | None:
    points = evidence.speedups(evidence.stated(), "optimus", "stmm")
    return _share(points, _MANY, "Optimus is faster", at_least=True)


BASELINES: tuple[Statement, ...] = (
    Statement(
        id="seq-comparable",
        section="5.2",
        text="Spindle-Seq is comparable to Megatron-LM and DeepSpeed in most cases.",
        rule=Rule.HOLDS,
        find=_seq_comparable,
    ),
    Statement(
        id="uniform-max",
        section="5.2",
        text="Spindle-Uniform: at most 1.28x over DeepSpeed.",
        rule=Rule.RATIO,
        paper=(1.28,),
        find=_over_deepspeed("uniform"),
    ),
    Statement(
        id="uniform-behind",
        section="5.2",
        text="Spindle-Uniform generally underperforms the state of the art.",
        rule=Rule.HOLDS,
        find=_uniform_behind,
    ),
    Statement(
        id="optimus-max",
        section="5.2",
        text="Spindle-Optimus: up to 1.44x over DeepSpeed.",
        rule=Rule.RATIO,
        paper=(1.44,),
        find=_over_deepspeed("optimus"),
    ),
    Statement(
        id="optimus-larger-clusters",
        section="5.2",
        text="Spindle-Optimus does better especially on larger clusters.",
        rule=Rule.HOLDS,
        find=_optimus_scales,
    ),
    Statement(
        id="optimus-behind",
        section="5.2",
        text="Spindle-Optimus sometimes falls behind DeepSpeed.",
        rule=Rule.HOLDS,
        find=_optimus_behind,
    ),
    Statement(
        id="optimus-over-uniform",
        section="5.2",
        text="Spindle-Optimus shows better performance than Spindle-Uniform.",
        rule=Rule.HOLDS,
        find=_optimus_over_uniform,
    ),
    Statement(
        id="faster-than-task-level",
        section="5.2",
        text="Spindle is consistently more efficient than the task-level strategies.",
        rule=Rule.HOLDS,
        find=_always_over("uniform", "optimus"),
    ),
    Statement(
        id="over-optimus-max",
        section="5.2",
        text="Even where Spindle-Optimus has surpassed the state of the art, Spindle is up to 1.45x"
        " as fast.",
        rule=Rule.RATIO,
        paper=(1.45,),
        find=_over_optimus,
    ),
    Statement(
        id="over-optimus-clip-4-8",
        section="5.2",
        text="Spindle is 1.45x as fast as Spindle-Optimus with 4-task Multitask-CLIP on 8 GPUs.",
        rule=Rule.RATIO,
        paper=(1.45,),
        find=_optimus_at_8,
    ),
    Statement(
        id="stmm-max",
        section="5.2",
        text="Spindle-STMM: up to 1.20x over the state of the art.",
        rule=Rule.RATIO,
        paper=(1.20,),
        find=_stmm_over_both,
    ),
    Statement(
        id="stmm-better",
        section="5.2",
        text="Spindle-STMM performs better than the state of the art in most cases.",
        rule=Rule.HOLDS,
        find=_stmm_better,
    ),
    Statement(
        id="stmm-ofasys",
        section="5.2",
        text="On OFASys Spindle-STMM performs like the state of the art.",
        rule=Rule.HOLDS,
        find=_stmm_on_ofasys,
    ),
    Statement(
        id="optimus-over-stmm",
        section="5.2",
        text="Spindle-STMM underperforms Spindle-Optimus in many cases.",
        rule=Rule.HOLDS,
        find=_optimus_over_stmm,
    ),
    Statement(
        id="faster-than-stmm",
        section="5.2",
        text="Spindle consistently outperforms Spindle-STMM.",
        rule=Rule.HOLDS,
        find=_always_over("stmm"),
    ),
    Statement(
        id="over-stmm-max",
        section="5.2",
        text="Spindle is up to 1.59x as fast as Spindle-STMM.",
        rule=Rule.RATIO,
        paper=(1.59,),
        find=_over("stmm"),
    ),
)
