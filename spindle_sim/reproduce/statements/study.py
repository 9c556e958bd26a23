"""Sections 5.3 and 5.4: the case study (figure 9) and the breakdown (figure 10)."""

from collections.abc import Callable, Iterator
from itertools import islice
from statistics import mean, median

from spindle_sim.reproduce.cases import CASE_STUDY
from spindle_sim.reproduce.evidence import Evidence
from spindle_sim.reproduce.outcome import CaseResult, Outcome
from spindle_sim.reproduce.rules import Found, Rule, Statement, middle_half

__all__ = ["STUDY", "case_study"]

_BASELINES = ("seq", "uniform", "optimus", "stmm")
_TASK_LEVEL = ("uniform", "optimus")
_BEGINNING = 4  # the first quarter
Breakdown = Callable[[Outcome], float]


def case_study(evidence: Evidence, *names: str) -> tuple[Outcome, ...] | None:
    """Give these strategies in the case study; None where one is missing."""
    found = [
        evidence.outcome(CASE_STUDY.workload, CASE_STUDY.tasks, CASE_STUDY.gpus, name)
        for name in names
    ]
    known = tuple(one for one in found if one is not None)
    return known if len(known) == len(names) else None


def _best(evidence: Evidence) -> Found | None:
    found = case_study(evidence, "spindle", *_BASELINES)
    if found is None:
        return None
    ours, others = found[0], found[1:]
    return Found(
        holds=all(
            ours.iteration_s <= one.iteration_s and ours.utilization >= one.utilization
            for one in others
        ),
        how="; ".join(
            f"{one.strategy} {1e3 * one.iteration_s:.0f} ms at {one.utilization:.1%}"
            for one in found
        ),
    )


def _higher(system: str, than: str) -> Callable[[Evidence], Found | None]:
    """Compare two systems' utilization over the whole iteration."""

    def find(evidence: Evidence) -> Found | None:
        found = case_study(evidence, system, than)
        if found is None:
            return None
        return Found(
            holds=found[0].utilization > found[1].utilization,
            how=", ".join(f"{one.strategy} {one.utilization:.2%}" for one in found),
        )

    return find


def _uniform_begins(evidence: Evidence) -> Found | None:
    found = case_study(evidence, "uniform", "seq")
    if found is None:
        return None
    values = [value for _, value in found[0].over_time]
    first = mean(values[: len(values) // _BEGINNING])
    return Found(
        holds=first > found[1].utilization,
        how=f"mean utilization {first:.1%} in the first quarter of its iteration; Seq"
        f" {found[1].utilization:.1%}",
    )


def _uniform_declines(evidence: Evidence) -> Found | None:
    found = case_study(evidence, "uniform")
    if found is None:
        return None
    values = [value for _, value in found[0].over_time]
    half = len(values) // 2
    first, second = sum(values[:half]) / half, sum(values[half:]) / (len(values) - half)
    return Found(
        holds=second < first,
        how=f"mean utilization {first:.1%} in the first half of the iteration, {second:.1%} in the"
        " second",
    )


def _all_devices(evidence: Evidence) -> Found | None:
    found = case_study(evidence, "spindle", "seq")
    if found is None:
        return None
    pairs = list(zip(found[0].device_utilization, found[1].device_utilization, strict=True))
    higher = sum(ours > theirs for ours, theirs in pairs)
    return Found(
        holds=higher == len(pairs), how=f"higher than Seq's on {higher} of {len(pairs)} devices"
    )


def _all_metaops(evidence: Evidence) -> Found | None:
    """Compare MetaOps of many operators; a stem or a head is over before it can matter."""
    found = case_study(evidence, "spindle", "seq")
    if found is None:
        return None
    theirs = dict(found[1].metaop_utilization)
    pairs = [
        (ours, theirs[metaop])
        for metaop, ours in found[0].metaop_utilization
        if metaop.endswith("/layers")
    ]
    higher = sum(ours > other for ours, other in pairs)
    return Found(
        holds=higher == len(pairs),
        how=f"higher than Seq's for {higher} of the {len(pairs)} MetaOps of Transformer layers",
    )


def _underutilized(evidence: Evidence) -> Found | None:
    found = case_study(evidence, "seq", *_TASK_LEVEL)
    if found is None:
        return None
    seq = min(found[0].device_utilization)
    least = {one.strategy: min(one.device_utilization) for one in found[1:]}
    return Found(
        holds=any(value < seq for value in least.values()),
        how=f"least utilized device: seq {seq:.1%}, "
        + ", ".join(f"{name} {value:.1%}" for name, value in least.items()),
    )


def _both(evidence: Evidence) -> Iterator[tuple[CaseResult, Outcome, Outcome]]:
    for result in evidence.stated():
        spindle, seq = result.of("spindle"), result.of("seq")
        if spindle is not None and seq is not None:
            yield result, spindle, seq


def _shares(part: Breakdown, words: str) -> Callable[[Evidence], Found | None]:
    """Take the middle half of the shares over all cases of Spindle and Spindle-Seq."""

    def find(evidence: Evidence) -> Found | None:
        shares = [part(one) / one.isolated_s for _, *pair in _both(evidence) for one in pair]
        if not shares:
            return None
        return Found(
            values=middle_half(shares),
            how=f"{words}; the middle half of {len(shares)} iterations of Spindle and Seq, all from"
            f" {min(shares):.3f} to {max(shares):.3f}, median {median(shares):.3f}",
        )

    return find


def _computing(outcome: Outcome) -> float:
    return outcome.isolated_s - outcome.sync_s - outcome.optimizer_s - outcome.send_recv_s


def _send_recv(evidence: Evidence) -> Found | None:
    shares = [spindle.send_recv_s / spindle.isolated_s for _, spindle, _ in _both(evidence)]
    if not shares:
        return None
    return Found(
        values=middle_half(shares)[1:],
        how=f"upper end of the middle half of {len(shares)} cases; largest {max(shares):.3f}",
    )


def _sync_never_more(evidence: Evidence) -> Found | None:
    pairs = list(_both(evidence))
    if not pairs:
        return None
    above = [
        f"{result.case.name}: {spindle.sync_s / seq.sync_s:.2f}"
        for result, spindle, seq in pairs
        if spindle.sync_s > seq.sync_s * 1.005  # the average device, to half a percent
    ]
    return Found(
        holds=not above,
        how=f"at most Seq's in {len(pairs) - len(above)} of {len(pairs)} cases"
        + "".join(f"; {text}" for text in islice(above, 4)),
    )


def _sync_of_qwen(evidence: Evidence) -> Found | None:
    spindle, seq = (evidence.outcome("qwen-val", 3, 32, name) for name in ("spindle", "seq"))
    if spindle is None or seq is None or not seq.sync_s:
        return None
    return Found(
        values=(spindle.sync_s / seq.sync_s,),
        how=f"{1e3 * spindle.sync_s:.0f} ms of an average device against {1e3 * seq.sync_s:.0f} ms",
    )


STUDY: tuple[Statement, ...] = (
    Statement(
        id="fig9-shortest",
        section="5.3",
        text="Case study: Spindle has the shortest iteration and the highest utilization of all"
        " strategies built on it.",
        rule=Rule.HOLDS,
        find=_best,
    ),
    Statement(
        id="fig9-uniform-declines",
        section="5.3",
        text="Under Uniform utilization declines as tasks with light workloads finish.",
        rule=Rule.HOLDS,
        find=_uniform_declines,
    ),
    Statement(
        id="fig9-uniform-begins",
        section="5.3",
        text="Uniform improves utilization at the beginning of the iteration (over Seq's).",
        rule=Rule.HOLDS,
        find=_uniform_begins,
    ),
    Statement(
        id="fig9-optimus-over-uniform",
        section="5.3",
        text="Optimus partially mitigates Uniform's imbalance: its utilization is higher.",
        rule=Rule.HOLDS,
        find=_higher("optimus", "uniform"),
    ),
    Statement(
        id="fig9-stmm-over-seq",
        section="5.3",
        text="STMM enhances utilization compared to Seq.",
        rule=Rule.HOLDS,
        find=_higher("stmm", "seq"),
    ),
    Statement(
        id="fig9-all-devices",
        section="5.3",
        text="Spindle elevates the utilization of all devices over Seq's.",
        rule=Rule.HOLDS,
        find=_all_devices,
    ),
    Statement(
        id="fig9-all-metaops",
        section="5.3",
        text="Spindle elevates the utilization of all MetaOps over Seq's.",
        rule=Rule.HOLDS,
        find=_all_metaops,
    ),
    Statement(
        id="fig9-task-level",
        section="5.3",
        text="Task-level strategies leave devices underutilized, sometimes worse than Seq.",
        rule=Rule.HOLDS,
        find=_underutilized,
    ),
    Statement(
        id="fig10-forward-backward",
        section="5.4",
        text="Forward and backward typically account for 80-95 % of an iteration.",
        rule=Rule.TYPICALLY,
        paper=(0.80, 0.95),
        find=_shares(_computing, "all but synchronization, optimizer step and send/receive"),
    ),
    Statement(
        id="fig10-sync",
        section="5.4",
        text="Parameter synchronization usually consumes about 5-15 % of an iteration.",
        rule=Rule.TYPICALLY,
        paper=(0.05, 0.15),
        find=_shares(lambda one: one.sync_s, "without the optimizer step"),
    ),
    Statement(
        id="fig10-send-receive",
        section="5.4",
        text="Send and receive between stages typically don't exceed 6 % of an iteration.",
        rule=Rule.AT_MOST,
        paper=(0.06,),
        find=_send_recv,
    ),
    Statement(
        id="fig10-sync-never-more",
        section="5.4",
        text="Spindle's synchronization costs as much as Spindle-Seq's or less.",
        rule=Rule.HOLDS,
        find=_sync_never_more,
    ),
    Statement(
        id="fig10-sync-qwen-32",
        section="5.4",
        text="QWen-VAL on 32 GPUs: Spindle's synchronization takes 55 % of Spindle-Seq's.",
        rule=Rule.RATIO,
        paper=(0.55,),
        find=_sync_of_qwen,
    ),
)
