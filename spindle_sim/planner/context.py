"""What a strategy plans with: the MetaGraph, the scaling curves and the settings in force."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from spindle_sim.cluster import Cluster
from spindle_sim.estimate import Estimator, ScalingCurve
from spindle_sim.plan import Plan
from spindle_sim.planner.allocate import Malleable
from spindle_sim.planner.lanes import Run
from spindle_sim.planner.metagraph import DraftSlice, MetaGraph
from spindle_sim.workload import Workload

SHORTEST_S = 1e-9  # an operator that costs nothing takes this long, so that it has a rate

__all__ = ["Accumulated", "Context", "NamedStrategy", "Settings", "Strategy", "WholeStrategy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is decided before allocation, mostly to fit the memory.

    `tp` is the tensor-parallel degree of each module (one degree for one parameter set);
    `recompute` how many operators of a MetaOp keep only their inputs; `rounds` the tasks that are
    trained one group after another, where a strategy lets that be chosen.
    """

    tp: tuple[tuple[str, int], ...]
    zero1: bool = False
    recompute: Mapping[str, int] = field(default_factory=dict)
    rounds: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulated:
    """What a context of one micro-batch is a part of: the whole workload, so many times as much."""

    micro_batches: int
    workload: Workload
    graph: MetaGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Everything that a strategy reads; nothing in it changes but what it remembers.

    `schedules` are those that `schedule_level` gave, for all contexts made from this one, `curves`
    and `useful` times likewise: tries under other settings, and other strategies, meet the same
    levels. Where gradients are accumulated, workload and graph are those of one micro-batch.
    """

    workload: Workload
    cluster: Cluster
    graph: MetaGraph
    estimator: Estimator
    settings: Settings
    seed: int = 0
    accumulated: Accumulated | None = None
    schedules: dict[object, list[tuple[Run, ...]]] = field(default_factory=dict, repr=False)
    curves: dict[tuple[str, int, bool, int], ScalingCurve] = field(default_factory=dict, repr=False)
    useful: dict[object, dict[int, float]] = field(default_factory=dict, repr=False)
    _tp: dict[str, int] = field(init=False, repr=False)
    _by_task: dict[str, tuple[str, ...]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Index the tensor-parallel degrees, and MetaOps by task."""
        object.__setattr__(self, "_tp", dict(self.settings.tp))
        by_task: dict[str, list[str]] = {}
        for name, node in self.graph.nodes.items():
            by_task.setdefault(node.metaop.task, []).append(name)
        found = {task: tuple(names) for task, names in by_task.items()}
        object.__setattr__(self, "_by_task", found)

    @property
    def micro_batches(self) -> int:
        """How often an iteration runs the workload."""
        return self.accumulated.micro_batches if self.accumulated else 1

    def tp(self, metaop: str) -> int:
        """Give the tensor-parallel degree of a MetaOp."""
        return self._tp[self.graph.nodes[metaop].metaop.module]

    def curve(self, metaop: str, *, recompute: bool = False) -> ScalingCurve:
        """Give the scaling curve of a MetaOp's operators, recomputed or not."""
        key = metaop, self.tp(metaop), recompute, self.micro_batches
        known = self.curves.get(key)
        if known is None:
            node = self.graph.nodes[metaop]
            known = self.curves[key] = self.estimator.curve(
                node.operator, node.metaop.backward, tp=self.tp(metaop), recompute=recompute
            )
        return known

    def times_s(self, metaop: str, num_devices: int | None = None) -> dict[int, float]:
        """Give T_m(n), forward and backward of one operator, for useful n up to `num_devices`.

        Where some operators are recomputed it is the mean of all. An allocation that is no faster
        than a smaller one is left out.
        """
        limit = num_devices or self.cluster.num_devices
        again = self.settings.recompute.get(metaop, 0)
        key = metaop, self.tp(metaop), again, self.micro_batches, limit
        known = self.useful.get(key)
        if known is None:
            known = self.useful[key] = self._useful(metaop, again, limit)
        return known

    def _useful(self, metaop: str, recomputed: int, limit: int) -> dict[int, float]:
        curve, again = self.curve(metaop), self.curve(metaop, recompute=True)
        share = recomputed / self.graph.nodes[metaop].metaop.num_ops
        useful: dict[int, float] = {}
        best = float("inf")
        for n, once_s, twice_s in zip(curve.allocations, curve.times_s, again.times_s, strict=True):
            time_s = max((1 - share) * once_s + share * twice_s, SHORTEST_S)
            if n <= limit and time_s < best * (1 - 1e-9):
                best = useful[n] = time_s
        return useful

    def malleable(self, metaop: str) -> Malleable:
        """Give a MetaOp as the allocator sees it."""
        times = self.times_s(metaop)
        return Malleable(
            id=metaop,
            num_ops=self.graph.nodes[metaop].metaop.num_ops,
            allocations=tuple(times),
            times_s=tuple(times.values()),
        )

    def draft(
        self,
        metaop: str,
        *,
        num_devices: int,
        stage: int,
        round_index: int = 0,
        first_op: int = 0,
        num_ops: int | None = None,
        devices: tuple[int, ...] | None = None,
    ) -> DraftSlice:
        """Give a draft slice under the settings; all operators where `num_ops` is left out."""
        count = self.graph.nodes[metaop].metaop.num_ops - first_op if num_ops is None else num_ops
        return DraftSlice(
            metaop=metaop,
            first_op=first_op,
            num_ops=count,
            round=round_index,
            stage=stage,
            num_devices=num_devices,
            tp=self.tp(metaop),
            devices=devices,
        )

    def metaops_of(self, task: str) -> tuple[str, ...]:
        """Give the MetaOps of a task in topological order."""
        return self._by_task.get(task, ())


class Strategy(Protocol):
    """Decides allocation, order and (some strategies) devices; placement is shared."""

    def __call__(self, context: Context) -> Sequence[tuple[DraftSlice, ...]]:
        """Give one draft plan, or several that look equally good, each by round and stage."""
        ...


class WholeStrategy(Protocol):
    """Makes a plan with all of its settings; those of the context are empty."""

    def __call__(self, context: Context, zero1: bool | None) -> Plan:  # noqa: FBT001
        """Give the plan; `zero1` says whether optimizer states must be sharded, None either."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedStrategy:
    """A strategy, what it is in a line, and how it may group tasks into rounds.

    One that isn't drafted makes its plan itself: the settings are what it is about. What it
    `considers` are strategies whose drafts are planned too, and taken where they end earlier;
    `considers_exposed` those that are only where an iteration is so many times as long as its
    computing: they take time to plan, and gain by moving or synchronizing less.
    """

    summary: str
    draft: Strategy | None = None
    whole: WholeStrategy | None = None
    one_task_a_round: bool = False
    chooses_rounds: bool = False
    considers: tuple[str, ...] = ()
    considers_exposed: tuple[tuple[str, float], ...] = ()

    @property
    def overlaps(self) -> bool:
        """Whether its plans synchronize beside the backward: all must be let, to be compared."""
        return self.whole is not None
