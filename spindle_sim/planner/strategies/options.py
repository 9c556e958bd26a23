"""The options of each task that are worth judging: of all its configurations those that pay.

Bounds that cost nothing come first, so that few configurations have to be played through: what a
rank computes at least, and whether another option is as fast, and as small or small enough.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from spindle_sim.cluster import Cluster
from spindle_sim.estimate import state_bytes
from spindle_sim.estimate.memory import GRADIENT_BYTES, OPTIMIZER_BYTES, PARAMETER_BYTES
from spindle_sim.planner.strategies.judge import Option, Runs
from spindle_sim.planner.strategies.parallel import ParallelConfig, Recompute, operator_s
from spindle_sim.planner.strategies.rounds import Sketch, TaskRounds
from spindle_sim.planner.strategies.space import (
    Space,
    configurations,
    recomputing,
    tensor_degrees,
)
from spindle_sim.planner.strategies.stages import recomputable

__all__ = ["Options"]


@dataclass(slots=True, kw_only=True)
class Options:
    """The options of all tasks, made when they are asked for."""

    cluster: Cluster
    space: Space
    rounds: Mapping[str, TaskRounds]
    narrow: bool = False
    limits_s: Mapping[str, float] = field(default_factory=dict)
    _known: dict[tuple[str, int], tuple[Option, ...]] = field(default_factory=dict)
    _works: dict[tuple[object, ...], float] = field(default_factory=dict)
    _runs: dict[Runs, Runs] = field(default_factory=dict)

    def widened(self, limit_s: float) -> "Options":
        """Give all options with which an iteration can be shorter than `limit_s`."""
        least = {task: self._least_s(task) for task in self.rounds}
        spare_s = limit_s - sum(least.values())
        limits = {task: least_s + spare_s for task, least_s in least.items()}
        return replace(self, narrow=False, limits_s=limits, _known={})

    def of(self, task: str, tp: int) -> tuple[Option, ...]:
        """Give a task's options at a tensor-parallel degree, fastest first."""
        key = task, tp
        if key not in self._known:
            found = self._paying(task, tp)
            self._known[key] = tuple(sorted(found, key=lambda option: option.round_s))
        return self._known[key]

    def made(self, task: str, config: ParallelConfig) -> Option:
        """Give one configuration of a task, played through."""
        rounds = self.rounds[task]
        sets = {node.metaop.id: node.metaop.parameter_set for node in rounds.nodes}
        sketch = rounds.sketch(config)
        return Option.of(sketch, rounds.round_s(sketch), sets, self._runs)

    def _paying(self, task: str, tp: int) -> Iterator[Option]:
        rounds, limit_s = self.rounds[task], self.limits_s.get(task, inf)
        sets = {node.metaop.id: node.metaop.parameter_set for node in rounds.nodes}
        roomy_bytes = self.cluster.usable_memory_bytes - self._most_states(tp)
        groups: dict[tuple[int, int], list[tuple[float, ParallelConfig]]] = {}
        for least_s, config in self._bounded(task, tp, limit_s):
            groups.setdefault((config.pp, config.dp), []).append((least_s, config))
        for members in groups.values():
            kept: list[Option] = []
            enough_s = inf  # the fastest of those that fit whatever else the devices hold
            for least_s, config in sorted(members, key=lambda member: member[0]):
                if least_s >= enough_s:
                    break
                sketch = rounds.sketch(config)
                if sketch.least_s > limit_s or any(_beats(option, sketch) for option in kept):
                    continue
                if not (self.narrow or self._may_fit(sketch)):
                    continue
                round_s = rounds.round_s(sketch, min(limit_s, enough_s))
                if round_s >= min(limit_s, enough_s):
                    continue
                option = Option.of(sketch, round_s, sets, self._runs)
                kept.append(option)
                if max(sketch.peak_bytes) <= roomy_bytes:
                    enough_s = min(enough_s, option.round_s)
            yield from kept

    def _bounded(
        self, task: str, tp: int, limit_s: float
    ) -> Iterator[tuple[float, ParallelConfig]]:
        """Give the configurations within a limit, each with its bound: the average rank's work."""
        nodes = self.rounds[task].nodes
        for config in configurations(nodes, self.cluster, self.space, tp, narrow=self.narrow):
            if self._bound_s(task, config) <= limit_s:
                for one in recomputing(nodes, self.space, config, narrow=self.narrow):
                    least_s = self._bound_s(task, one)
                    if least_s <= limit_s:
                        yield least_s, one

    def _bound_s(self, task: str, config: ParallelConfig) -> float:
        """Give what a round can't be shorter than, without cutting it into stages.

        A micro-batch goes through all ranks; a rank computes its part of each. Weighted by its
        part w of the work W of a micro-batch, the wait for those before it (here and back) and
        m w, summed up, are at least W / 2 + (m - 1 / 2) W / pp, since w^2 sums up to W^2 / pp
        at least. With several chunks a rank waits for the first ones only.
        """
        count, work_s = config.micro_batches(self.rounds[task].batch), self._work_s(task, config)
        waited = (config.pp - 1) / 2 if config.chunks == 1 else 0.0
        return max(work_s, (count + waited) * work_s / config.pp)

    def _work_s(self, task: str, config: ParallelConfig) -> float:
        """Give what one micro-batch computes at least, on all ranks together."""
        rounds = self.rounds[task]
        whole = config.recompute is Recompute.FULL and config.recompute_ops is None
        dp = config.dp if rounds.coupled else 0
        mode = whole, config.recompute is Recompute.SELECTIVE
        key = task, config.tp, dp, config.dp * config.micro_batches(rounds.batch), mode
        if key not in self._works:
            self._works[key] = sum(
                node.metaop.num_ops
                * sum(
                    operator_s(rounds.times, node, config, recompute=whole and recomputable(node))
                )
                for node in rounds.nodes
            )
        return self._works[key]

    def _may_fit(self, sketch: Sketch) -> bool:
        """Tell whether a device can hold its part of this task alone, sharded as far as may be."""
        stage = max(self.space.zero_stages)
        # A group is at least that of this task; another task's may be larger, up to all devices.
        sharers = self.cluster.num_devices // sketch.config.tp
        each = sum(
            size / (sharers if stage >= least else 1)
            for size, least in ((OPTIMIZER_BYTES, 1), (GRADIENT_BYTES, 2), (PARAMETER_BYTES, 3))
        )
        return all(
            each * parameters + peak <= self.cluster.usable_memory_bytes
            for parameters, peak in zip(sketch.parameters, sketch.peak_bytes, strict=True)
        )

    def _least_s(self, task: str) -> float:
        """Give what no configuration of the task is faster than."""
        nodes = self.rounds[task].nodes
        return min(
            self._bound_s(task, config)
            for tp in tensor_degrees(nodes, self.cluster, self.space)
            for config in configurations(nodes, self.cluster, self.space, tp)
        )

    def _most_states(self, tp: int) -> float:
        """Give what a device holds that has all parameters."""
        sizes = {
            node.metaop.parameter_set: node.metaop.num_ops * state_bytes(node.metaop, tp=tp)
            for rounds in self.rounds.values()
            for node in rounds.nodes
        }
        return sum(sizes.values())


def _beats(option: Option, sketch: Sketch) -> bool:
    """Tell whether an option is at least as fast and as small as a sketch can be."""
    return option.round_s <= sketch.least_s and all(
        own <= other for own, other in zip(option.sketch.peak_bytes, sketch.peak_bytes, strict=True)
    )
