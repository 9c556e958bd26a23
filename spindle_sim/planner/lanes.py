"""How a schedule without device names plays out: devices as interchangeable lanes.

Used to tell apart schedules that look alike before placement. A MetaOp that goes on with as many
devices keeps its lanes; another takes those that are free first, once its data has arrived. Nothing
waits for a stage's end.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spindle_sim.planner.moves import Moves

__all__ = ["Costs", "Lanes", "Run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """`num_ops` operators of a MetaOp on `num_devices` devices, in one stage of its level."""

    id: str
    stage: int
    num_devices: int
    num_ops: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """T_m(n) by MetaOp and n, what each MetaOp waits for, and what moving its data costs."""

    times_s: Mapping[str, Mapping[int, float]]
    predecessors: Mapping[str, Sequence[str]] = field(default_factory=dict)
    moves: Mapping[str, Moves] = field(default_factory=dict)

    def weighed(self, weight: float) -> "Costs":
        """Give costs with moves `weight` times as dear."""
        return replace(self, moves={m: move.weighed(weight) for m, move in self.moves.items()})


@dataclass(slots=True)
class Lanes:
    """When each device is free, and when each MetaOp ended last, and where."""

    free_s: list[float]
    ends_s: dict[str, float] = field(default_factory=dict)
    held: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def idle(cls, num_devices: int) -> "Lanes":
        """Give lanes that are all free at time 0."""
        return cls([0.0] * num_devices)

    @property
    def makespan_s(self) -> float:
        """When the last lane is free."""
        return max(self.free_s)

    def after(self, runs: Iterable[Run], costs: Costs) -> "Lanes":
        """Give the lanes after these runs, which are in order of stage."""
        lanes = Lanes(list(self.free_s), dict(self.ends_s), dict(self.held))
        stage: list[Run] = []
        for run in runs:
            if stage and run.stage != stage[0].stage:
                lanes._run_stage(stage, costs)
                stage = []
            stage.append(run)
        if stage:
            lanes._run_stage(stage, costs)
        return lanes

    def _run_stage(self, stage: Sequence[Run], costs: Costs) -> None:
        taken: set[int] = set()
        changed: list[Run] = []
        for run in stage:
            held = self.home(run.id, costs.predecessors)
            if len(held) == run.num_devices and taken.isdisjoint(held):
                taken.update(held)
                self._place(run, held, costs)
            else:
                changed.append(run)
        open_lanes = [(s, d) for d, s in enumerate(self.free_s) if d not in taken]
        heapq.heapify(open_lanes)
        for run in sorted(changed, key=lambda r: -r.num_devices * r.num_ops):
            lanes = tuple(heapq.heappop(open_lanes)[1] for _ in range(run.num_devices))
            self._place(run, lanes, costs)

    def home(self, metaop: str, predecessors: Mapping[str, Sequence[str]]) -> tuple[int, ...]:
        """Give the lanes that hold a MetaOp's data: its own, or those of what it follows."""
        if metaop in self.held:
            return self.held[metaop]
        before = [p for p in predecessors.get(metaop, ()) if p in self.held]
        return self.held[max(before, key=lambda p: self.ends_s[p])] if before else ()

    def homes(self, predecessors: Mapping[str, Sequence[str]]) -> dict[str, int]:
        """Give the number of lanes that hold each MetaOp's data."""
        return {metaop: len(self.home(metaop, predecessors)) for metaop in predecessors}

    def _place(self, run: Run, lanes: tuple[int, ...], costs: Costs) -> None:
        before = [self.ends_s.get(p, 0.0) for p in costs.predecessors.get(run.id, ())]
        ready_s = max([self.ends_s.get(run.id, 0.0), *before])
        home = self.home(run.id, costs.predecessors)
        if home != lanes and run.id in costs.moves:
            ready_s += costs.moves[run.id].seconds(len(home), len(lanes))
        start_s = max(ready_s, max(self.free_s[d] for d in lanes))
        end_s = start_s + run.num_ops * costs.times_s[run.id][run.num_devices]
        for d in lanes:
            self.free_s[d] = end_s
        self.ends_s[run.id] = end_s
        self.held[run.id] = lanes
