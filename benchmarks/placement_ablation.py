"""Section 5.5.2: what Spindle's device placement saves against consecutive devices (sequential).

Both are planned in full: of the schedules tried, each placement keeps what suits it best. Overhead
is the time that transfers between stages add to forward and backward: the simulated end of compute,
less the same plan's end if every transfer were free. The paper reports 3-6 times more for
sequential placement, up to 27 % of the iteration time against up to 6 %.

    python benchmarks/placement_ablation.py            # all cases, about a minute
    python benchmarks/placement_ablation.py --quick    # four of them
"""

import sys
from dataclasses import dataclass
from statistics import median

from spindle_sim.cluster import parse_cluster
from spindle_sim.errors import InfeasibleError
from spindle_sim.plan import Plan, schedule
from spindle_sim.planner import make_plan
from spindle_sim.simulator import simulate
from spindle_sim.timeline import Kind
from spindle_sim.workload import builtin_workload

WORKLOADS = (
    ("multitask-clip", 4),
    ("multitask-clip", 7),
    ("multitask-clip", 10),
    ("ofasys", 4),
    ("ofasys", 7),
    ("qwen-val", 3),
)
CLUSTERS = ("a800:1x8", "a800:2x8", "a800:4x8", "a800:8x8")
QUICK_WORKLOADS = (("multitask-clip", 4), ("ofasys", 7))
QUICK_CLUSTERS = ("a800:2x8", "a800:8x8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """What transfers between stages cost one plan."""

    seconds: float
    iteration_s: float
    sent_bytes: float

    @property
    def share(self) -> float:
        """Part of the iteration."""
        return self.seconds / self.iteration_s


def _ratio(theirs: float, ours: float) -> str:
    return f"{theirs / ours:.1f}" if ours else "-"


def main() -> None:
    """Print one line for each workload and cluster."""
    quick = "--quick" in sys.argv[1:]
    print(
        f"{'workload':<15}{'tasks':>5}  {'cluster':<9}"
        f"{'spindle':>20}{'sequential':>22}{'times':>8}{'bytes':>8}{'iteration':>11}"
    )
    pairs = [
        pair
        for name, tasks in (QUICK_WORKLOADS if quick else WORKLOADS)
        for cluster in (QUICK_CLUSTERS if quick else CLUSTERS)
        if (pair := _case(name, tasks, cluster)) is not None
    ]
    ratios = [theirs.seconds / ours.seconds for ours, theirs in pairs if ours.seconds > 0]
    print(
        f"median {median(ratios):.1f} times; at most {max(ours.share for ours, _ in pairs):.1%} of"
        f" an iteration against {max(theirs.share for _, theirs in pairs):.1%}"
    )


def _case(name: str, tasks: int, cluster_name: str) -> tuple[Overhead, Overhead] | None:
    workload = builtin_workload(name).with_first_tasks(tasks)
    cluster = parse_cluster(cluster_name)
    ours = _overhead(make_plan(workload, cluster))
    label = f"{name:<15}{tasks:>5}  {cluster_name:<9}"
    try:
        theirs = _overhead(make_plan(workload, cluster, placement="sequential"))
    except InfeasibleError:
        print(f"{label}{_cell(ours):>20}{'out of memory':>22}")
        return None
    # Transfers may hide behind other slices altogether: then there is nothing to divide by.
    times = f"{theirs.seconds / ours.seconds:.1f}" if ours.seconds > 0 else "-"
    sent = _ratio(theirs.sent_bytes, ours.sent_bytes)
    print(
        f"{label}{_cell(ours):>20}{_cell(theirs):>22}{times:>8}{sent:>8}"
        f"{theirs.iteration_s / ours.iteration_s:>11.2f}"
    )
    return ours, theirs


def _overhead(plan: Plan) -> Overhead:
    timeline = simulate(plan)
    end_s = max(span.end_s for span in timeline.spans if span.kind is Kind.COMPUTE)
    return Overhead(
        seconds=end_s - schedule(plan).makespan_s,
        iteration_s=timeline.iteration_s,
        sent_bytes=sum(span.bytes for span in timeline.spans if span.kind is Kind.SEND),
    )


def _cell(overhead: Overhead) -> str:
    return f"{overhead.seconds * 1e3:.1f} ms ({overhead.share:.1%})"


if __name__ == "__main__":
    main()
