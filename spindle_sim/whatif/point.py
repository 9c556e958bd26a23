"""One point of a sweep: a workload on a cluster under a strategy, and what came of it."""

from dataclasses import dataclass

from spindle_sim.cluster import Cluster
from spindle_sim.errors import InfeasibleError
from spindle_sim.estimate import Profile
from spindle_sim.metrics import summarize
from spindle_sim.planner import make_plan
from spindle_sim.simulator import simulate
from spindle_sim.workload import Workload

__all__ = ["Figures", "Point", "PointResult", "evaluate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What is planned and simulated; `labels` are (axis, value) as the user wrote them.

    `zero1` says whether optimizer states are sharded; without, the strategy decides.
    """

    labels: tuple[tuple[str, str], ...]
    workload: Workload
    cluster: Cluster
    strategy: str
    profile: Profile | None = None
    placement: str = "spindle"
    overlap_sync: bool = False
    seed: int = 0
    zero1: bool | None = None

    @property
    def name(self) -> str:
        """All of its labels."""
        return " ".join(value for _, value in self.labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One iteration in figures, all the same from run to run (see `metrics.Summary`)."""

    iteration_s: float
    samples_per_s: float
    model_flops_per_s: float
    utilization: float
    forward_backward_s: float
    sync_s: float
    send_recv_s: float
    idle_s: float
    peak_memory_bytes: float
    gpu_hours_per_iteration: float
    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PointResult:
    """The figures of a point, or why no plan is feasible; `profile` says whence its times.

    `zero1` tells whether the plan shards optimizer states.
    """

    figures: Figures | None = None
    error: str = ""
    profile: str = ""
    zero1: bool = False


def evaluate(point: Point) -> PointResult:
    """Plan and simulate one point; one that is infeasible is a result, too."""
    try:
        plan = make_plan(
            point.workload,
            point.cluster,
            point.strategy,
            profile=point.profile,
            placement=point.placement,
            seed=point.seed,
            overlap_sync=point.overlap_sync,
            zero1=point.zero1,
        )
    except InfeasibleError as error:
        return PointResult(error=str(error))
    summary = summarize(plan, simulate(plan, overlap_sync=point.overlap_sync, seed=point.seed))
    return PointResult(
        figures=Figures(
            iteration_s=summary.iteration_s,
            samples_per_s=summary.samples_per_s,
            model_flops_per_s=summary.model_flops_per_s,
            utilization=summary.utilization,
            forward_backward_s=summary.forward_backward_s,
            sync_s=summary.sync_s,
            send_recv_s=summary.send_recv_s,
            idle_s=summary.idle_s,
            peak_memory_bytes=summary.peak_memory_bytes,
            gpu_hours_per_iteration=summary.gpu_hours_per_iteration,
            rounds=len({item.round for item in plan.slices}),
        ),
        profile=plan.profile,
        zero1=plan.zero1,
    )
