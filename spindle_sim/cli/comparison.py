"""One workload on one cluster under several strategies: plan, simulate, sum up; nothing printed."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spindle_sim.cli.console import Advance
from spindle_sim.errors import InfeasibleError

if TYPE_CHECKING:
    from spindle_sim.cluster import Cluster
    from spindle_sim.estimate import Profile
    from spindle_sim.metrics import IdleReason, Summary
    from spindle_sim.plan import Plan
    from spindle_sim.timeline import Timeline
    from spindle_sim.workload import Workload

__all__ = [
    "Comparison",
    "Outcome",
    "Result",
    "SimulationOptions",
    "compare_strategies",
    "simulate_plan",
]

NUM_REASONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationOptions:
    """How an iteration is simulated."""

    overlap_sync: bool = False
    jitter: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What is compared: one workload on one cluster, under several strategies."""

    workload: "Workload"
    cluster: "Cluster"
    strategies: tuple[str, ...]
    profile: "Profile | None" = None
    placement: str = "spindle"
    options: SimulationOptions = SimulationOptions()

    @property
    def num_steps(self) -> int:
        """How often `compare_strategies` calls its `advance`."""
        return 2 * len(self.strategies)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A plan and its simulated iteration. `compute_s` is the plan's makespan, transfers free."""

    plan: "Plan"
    timeline: "Timeline"
    summary: "Summary"
    compute_s: float
    idle_reasons: "tuple[IdleReason, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one strategy: a result, or why no plan is feasible.

    `planning_s` is wall time, so it differs from run to run.
    """

    strategy: str
    planning_s: float
    result: Result | None = None
    error: InfeasibleError | None = None


def compare_strategies(comparison: Comparison, advance: Advance) -> tuple[Outcome, ...]:
    """Plan and simulate under each strategy; one that is infeasible doesn't stop the others."""
    from spindle_sim.planner import make_plan

    outcomes = []
    for strategy in comparison.strategies:
        advance(f"planning {strategy}")
        begun_s = time.perf_counter()
        try:
            plan = make_plan(
                comparison.workload,
                comparison.cluster,
                strategy,
                profile=comparison.profile,
                placement=comparison.placement,
                seed=comparison.options.seed,
            )
        except InfeasibleError as error:
            planning_s = time.perf_counter() - begun_s
            outcomes.append(Outcome(strategy=strategy, planning_s=planning_s, error=error))
            advance(f"no plan of {strategy}")
            continue
        planning_s = time.perf_counter() - begun_s
        advance(f"simulating {strategy}")
        result = simulate_plan(plan, comparison.options)
        outcomes.append(Outcome(strategy=strategy, planning_s=planning_s, result=result))
    return tuple(outcomes)


def simulate_plan(plan: "Plan", options: SimulationOptions) -> Result:
    """Simulate one iteration of a plan and sum it up."""
    from spindle_sim.metrics import idle_reasons, summarize
    from spindle_sim.plan import schedule
    from spindle_sim.simulator import simulate

    timeline = simulate(
        plan, overlap_sync=options.overlap_sync, jitter=options.jitter, seed=options.seed
    )
    return Result(
        plan=plan,
        timeline=timeline,
        summary=summarize(plan, timeline),
        compute_s=schedule(plan).makespan_s,
        idle_reasons=idle_reasons(plan, timeline, NUM_REASONS),
    )
