"""Sections 3.2 and 5.1: scaling curves, the estimator, the models."""

from collections.abc import Callable

from spindle_sim.reproduce.batches import evaluated_workload
from spindle_sim.reproduce.evidence import Evidence
from spindle_sim.reproduce.rules import Found, Rule, Statement

__all__ = ["SETUP"]

_N = 16  # of figure 4
_LINEAR = 0.8  # of the perfect speed-up: "almost linear"


def _scalability(evidence: Evidence) -> Found | None:
    """Compare the vision tower of task 2 and the text tower of task 1, as the paper does."""
    if evidence.curves is None:
        return None
    vision = evidence.curves.curve("video-audio/vision/layers").speedup(_N) / _N
    text = evidence.curves.curve("image-text/text/layers").speedup(_N) / _N
    return Found(
        holds=vision >= _LINEAR > text,
        how=f"T(1) / T({_N}) over {_N}: {vision:.2f} for task 2's vision layers, {text:.2f} for"
        f" task 1's text layers; almost linear is at least {_LINEAR}",
    )


def _piecewise(evidence: Evidence) -> Found | None:
    if evidence.curves is None:
        return None
    errors = evidence.curves.errors
    shown = "; ".join(
        f"{one.workload} {one.piecewise_mean:.1%} against {one.single_mean:.1%}" for one in errors
    )
    return Found(
        holds=all(one.piecewise_mean < one.single_mean for one in errors),
        how=f"mean error on points left out one by one, piecewise against one alpha-beta"
        f" function: {shown}",
    )


def _profiling(evidence: Evidence) -> Found | None:
    if evidence.curves is None:
        return None
    errors = evidence.curves.errors
    return Found(
        values=tuple(one.profiling_s for one in errors),
        how="simulated GPU seconds to run every distinct operator at every batch of a device 23"
        f" times: {', '.join(f'{one.workload} {one.profiling_s:.0f} s' for one in errors)}",
    )


def _parameters(name: str, tasks: int) -> Callable[[Evidence], Found | None]:
    def find(_: Evidence) -> Found:
        count = evaluated_workload(name, tasks).parameters
        return Found(values=(count / 1e9,), how=f"{count:,} parameters")

    return find


SETUP: tuple[Statement, ...] = (
    Statement(
        id="fig4-scalability",
        section="3.2",
        text="Some MetaOps scale almost linearly (Task2-Vision), others much less (Task1-Text).",
        rule=Rule.HOLDS,
        find=_scalability,
    ),
    Statement(
        id="fig4-piecewise-fit",
        section="3.2",
        text="Piecewise alpha-beta modelling estimates these workloads more accurately than"
        " alpha-beta modelling.",
        rule=Rule.HOLDS,
        find=_piecewise,
    ),
    Statement(
        id="profiling-time",
        section="3.2",
        text="Profiling and estimating each model takes within 5 minutes.",
        rule=Rule.AT_MOST,
        paper=(300.0,),
        find=_profiling,
    ),
    *(
        Statement(
            id=f"parameters-{name}",
            section="5.1, table 2",
            text=f"{title} has {billions} B parameters.",
            rule=Rule.RATIO,
            paper=(billions,),
            find=_parameters(name, tasks),
        )
        for name, title, tasks, billions in (
            ("multitask-clip", "Multitask-CLIP", 10, 1.20),
            ("ofasys", "OFASys", 7, 0.66),
            ("qwen-val", "QWen-VAL", 3, 9.25),
        )
    ),
)
