"""One workload on one cluster under several strategies: plan, simulate, sum up; nothing printed."""

import time
from dataclasses import dataclass, replace
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
    "summed_up",
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

    @property
    def simulation(self) -> SimulationOptions:
        """How all are simulated: synchronizing beside the backward where one of them does.

        That is what a system's runtime can do, and would else pass for a strategy's merit.
        """
        from spindle_sim.planner import STRATEGIES

        overlaps = any(STRATEGIES[name].overlaps for name in self.strategies)
        return replace(self.options, overlap_sync=self.options.overlap_sync or overlaps)


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
    """Plan and simulate under each strategy; one that is infeasible doesn't stop the others.

    Where one strategy needs ZeRO-1 to fit the memory, all get it: it makes the optimizer step
    shorter, and would else pass for that strategy's merit.
    """
    planned = []
    for strategy in comparison.strategies:
        advance(f"planning {strategy}")
        planned.append(_planned(comparison, strategy, zero1=None))
    if any(plan is not None and plan.zero1 for plan, _ in planned):
        planned = [
            pair if pair[0] is None or pair[0].zero1 else _planned(comparison, strategy, zero1=True)
            for strategy, pair in zip(comparison.strategies, planned, strict=True)
        ]
    outcomes = []
    for strategy, (plan, outcome) in zip(comparison.strategies, planned, strict=True):
        advance(f"simulating {strategy}" if plan else f"no plan of {strategy}")
        if plan is not None:
            outcome = replace(outcome, result=simulate_plan(plan, comparison.simulation))
        outcomes.append(outcome)
    return tuple(outcomes)


def _planned(
    comparison: Comparison, strategy: str, *, zero1: bool | None
) -> "tuple[Plan | None, Outcome]":
    from spindle_sim.planner import make_plan

    begun_s = time.perf_counter()
    plan, error = None, None
    try:
        plan = make_plan(
            comparison.workload,
            comparison.cluster,
            strategy,
            profile=comparison.profile,
            placement=comparison.placement,
            seed=comparison.options.seed,
            zero1=zero1,
            overlap_sync=comparison.simulation.overlap_sync,
        )
    except InfeasibleError as refused:
        error = refused
    planning_s = time.perf_counter() - begun_s
    return plan, Outcome(strategy=strategy, planning_s=planning_s, error=error)


def simulate_plan(plan: "Plan", options: SimulationOptions) -> Result:
    """Simulate one iteration of a plan and sum it up."""
    from spindle_sim.simulator import simulate

    timeline = simulate(
        plan, overlap_sync=options.overlap_sync, jitter=options.jitter, seed=options.seed
    )
    return summed_up(plan, timeline)


def summed_up(plan: "Plan", timeline: "Timeline") -> Result:
    """Sum up an iteration of a plan."""
    from spindle_sim.metrics import idle_reasons, summarize
    from spindle_sim.plan import schedule

    return Result(
        plan=plan,
        timeline=timeline,
        summary=summarize(plan, timeline),
        compute_s=schedule(plan).makespan_s,
        idle_reasons=idle_reasons(plan, timeline, NUM_REASONS),
    )
