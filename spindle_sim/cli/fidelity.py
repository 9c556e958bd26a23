"""How far the simulator is off: the same plans simulated and executed, case by case.

What is simulated comes from a profile alone, never from an execution. A first profile serves to
plan; a second one, measured in turns with the iterations, times the same plans anew, so that a
host that grows slower or faster meanwhile does so for both.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spindle_sim.backend import Execution, ExecutionOptions, Validator
from spindle_sim.cluster import Cluster, Gpu
from spindle_sim.estimate import Estimator, Profile
from spindle_sim.estimate.probe import Profiling, to_profile
from spindle_sim.metrics import engine_time
from spindle_sim.plan import Plan
from spindle_sim.planner import make_plan
from spindle_sim.planner.contract import contract
from spindle_sim.planner.probes import probes, probes_of_plans, step_probes
from spindle_sim.planner.retime import retimed
from spindle_sim.simulator import simulate
from spindle_sim.workload import Workload

if TYPE_CHECKING:
    from spindle_sim.timeline import Timeline

__all__ = [
    "Case",
    "Order",
    "emulated_cases",
    "executed_cases",
    "host_cluster",
    "orders",
    "percentile",
]

_FIRST_ROUNDS = 5  # for the profile that plans are made from
_APART = 0.05  # strategies that differ by less may come in any order
_LONG_S = 10e-3
# Of a forward or backward, once scaled, in the mean, and for each rank: what ranks that share two
# cores take to wake up and to send is then little of it.
_EMULATED_S = 8e-3
_EMULATED_RANK_S = 1.5e-3
_DATE = "1970-01-01"  # profiles that are never written need none


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One plan in both; `spread` is the interquartile range of the executions over their median.

    `paired_error` is the median of the errors of single rounds, each simulated from what was
    measured in that round; None where nothing was measured. `long_share` is the part of the compute
    time in forwards and backwards of 10 ms and more, `engine_share` the part of the executed
    iteration in which ranks neither computed nor sent, received or waited.
    """

    workload: str
    strategy: str
    ranks: int
    simulated_s: float
    executed_s: float
    spread: float
    long_share: float
    engine_share: float
    paired_error: float | None = None

    @property
    def error(self) -> float:
        """How far the simulated iteration is off, relative; below 0 if it is too short."""
        return self.simulated_s / self.executed_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Two strategies of one workload on as many ranks that differ by more than 5 % in either."""

    workload: str
    ranks: int
    strategies: tuple[str, str]
    simulated_ratio: float
    executed_ratio: float

    @property
    def is_same(self) -> bool:
        """Whether the same one is faster in both."""
        return (self.simulated_ratio > 1) == (self.executed_ratio > 1)


def executed_cases(
    workload: Workload,
    ranks: int,
    strategies: Sequence[str],
    validator: Validator,
    options: ExecutionOptions,
) -> list[Case]:
    """Profile this host, plan, then measure parts and iterations in turns."""
    cluster, graph = host_cluster(ranks), contract(workload)
    steps = step_probes(workload)
    whole = [probe for probe in probes(graph, Estimator(cluster)) if probe.tp == 1]
    few = replace(options, iterations=min(_FIRST_ROUNDS, options.iterations))
    first = validator.validate((), whole, steps, few, num_processes=ranks).profiling
    assert first is not None, "probes were given"
    plans = [make_plan(workload, cluster, name, profile=_profile(first)) for name in strategies]
    parts = probes_of_plans(graph, plans)
    found = validator.validate(plans, parts, steps, options, num_processes=ranks)
    assert found.profiling is not None, "probes were given"
    rounds = [_Round.of(cluster, ranks) for ranks in found.rounds]
    return [
        _case(plan, [each.simulated(plan) for each in rounds], execution)
        for plan, execution in zip(plans, found.executions, strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    """What one round measured: of each rank, and of the one that took the longest for all of it.

    Ranks that share a slice go on at the pace of the slowest.
    """

    ranks: tuple[Estimator, ...]
    slowest: Estimator

    @classmethod
    def of(cls, cluster: Cluster, measured: Sequence[Profiling]) -> "_Round":
        """Take what each rank measured."""
        ranks = tuple(Estimator(cluster, _profile(item)) for item in measured)
        total_s = [
            sum(result.point.forward_s + result.point.backward_s for result in item.results)
            for item in measured
        ]
        return cls(ranks=ranks, slowest=ranks[total_s.index(max(total_s))])

    def simulated(self, plan: Plan) -> "Timeline":
        """Give an iteration of this round."""
        again = retimed(plan, self.slowest, ranks=self.ranks)
        return simulate(again, estimator=self.slowest)


def emulated_cases(
    workloads: Sequence[Workload],
    cluster: Cluster,
    strategies: Sequence[str],
    validator: Validator,
    options: ExecutionOptions,
) -> list[Case]:
    """Plan for a cluster, and execute with waiting in place of computing, all in the same ranks.

    Time is scaled by `options.time_scale`, or, where that is 0, until forwards and backwards of
    each workload take 20 ms in the mean on 8 ranks and 32 ms on 16.
    """
    plans: list[Plan] = []
    free: list[Timeline] = []
    scales: list[float] = []
    wanted_s = _EMULATED_S + _EMULATED_RANK_S * cluster.num_devices
    for workload in workloads:
        own = [make_plan(workload, cluster, name) for name in strategies]
        timelines = [simulate(plan, network=False) for plan in own]
        plans += own
        free += timelines
        scales += [options.time_scale or wanted_s / _mean_compute_s(timelines)] * len(own)
    found = validator.validate(
        plans,
        (),
        (),
        replace(options, emulate=True),
        num_processes=cluster.num_devices,
        time_scales=scales,
    )
    return [
        _case(plan, [timeline], execution, scale=scale)
        for plan, timeline, execution, scale in zip(
            plans, free, found.executions, scales, strict=True
        )
    ]


def _mean_compute_s(timelines: "Sequence[Timeline]") -> float:
    return statistics.fmean(
        span.duration_s
        for timeline in timelines
        for span in timeline.spans
        if span.kind == "compute"
    )


def host_cluster(ranks: int) -> Cluster:
    """Give this host as so many devices of one thread; its links are those that a profile measures.

    The bandwidths stand for what a profile leaves out, the peak is above that of any thread.
    """
    thread = Gpu(
        name="CPU thread",
        memory_bytes=64e9,
        memory_bandwidth_bytes_per_s=10e9,
        peak_flops=1e12,
        link="gloo over the loopback device",
        link_bandwidth_bytes_per_s=2e9,
        collective_bandwidth_bytes_per_s=1e9,
        source="round figures of a server's thread, all but the peak measured by the profile",
    )
    return Cluster(
        name=f"host-{ranks}",
        gpu=thread,
        num_nodes=1,
        devices_per_node=ranks,
        island_size=ranks,
        nics_per_node=1,
        nic_bandwidth_bytes_per_s=1e9,
        link_latency_s=100e-6,
    )


def orders(cases: Sequence[Case]) -> Iterator[Order]:
    """Give each pair of strategies that differ by more than 5 % simulated or executed."""
    for index, one in enumerate(cases):
        for other in cases[index + 1 :]:
            ratios = one.simulated_s / other.simulated_s, one.executed_s / other.executed_s
            alike = (one.workload, one.ranks) == (other.workload, other.ranks)
            if alike and max(abs(ratio - 1) for ratio in ratios) > _APART:
                yield Order(
                    workload=one.workload,
                    ranks=one.ranks,
                    strategies=(one.strategy, other.strategy),
                    simulated_ratio=ratios[0],
                    executed_ratio=ratios[1],
                )


def percentile(values: Sequence[float], share: float) -> float:
    """Give the least value that at least this share of all don't exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _profile(profiling: Profiling) -> Profile:
    return to_profile(profiling, name="this host", date=_DATE, tool="spindle validate-run")


def _case(
    plan: Plan, simulated: "Sequence[Timeline]", execution: Execution, *, scale: float = 1.0
) -> Case:
    """Compare an iteration, simulated for each round or once for all, with the executed ones."""
    middle_s = statistics.median(timeline.iteration_s for timeline in simulated)
    durations_s = [
        span.duration_s * scale
        for timeline in simulated
        for span in timeline.spans
        if span.kind == "compute"
    ]
    times_s = execution.iterations_s
    paired_error = None
    if len(simulated) > 1:
        paired_error = statistics.median(
            timeline.iteration_s / time_s - 1
            for timeline, time_s in zip(simulated, times_s, strict=True)
        )
    spread_s = 0.0
    if len(times_s) > 1:
        first_s, _, third_s = statistics.quantiles(times_s, n=4, method="inclusive")
        spread_s = third_s - first_s
    executed_s = statistics.median(times_s)
    return Case(
        workload=plan.workload.name,
        strategy=plan.strategy,
        ranks=plan.cluster.num_devices,
        simulated_s=middle_s * scale,
        executed_s=executed_s,
        spread=spread_s / executed_s,
        long_share=sum(x for x in durations_s if x >= _LONG_S) / sum(durations_s),
        engine_share=engine_time(execution.timeline).share,
        paired_error=paired_error,
    )
