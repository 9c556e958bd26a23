"""Emulated work: each slice waits for its planned time; messages and groups are real and checked.

A row is one number that says which slice it left and which sample it is, so that whatever arrives
in the wrong place is found. Message sizes are not the plan's: this validates order and grouping.

Ranks that share a core wake up late, which devices of their own wouldn't. What a rank has slept too
long it takes off its next wait, less the time that passed in between: there it may have waited for
others, who were late, too. So lateness doesn't add up, and no message's or engine's time is hidden.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from spindle_sim.errors import ExecutionError
from spindle_sim.estimate import Estimator
from spindle_sim.estimate.memory import OPTIMIZER_BYTES
from spindle_sim.plan import Plan, Slice
from spindle_torch.intervals import held_samples
from spindle_torch.pool import PoolGroup, parameter_pool

__all__ = ["Emulation"]

_SAMPLES = 2**24  # more than any batch: a mark is slice * _SAMPLES + sample


@dataclass(slots=True, kw_only=True)
class Emulation:
    """Waits in place of one rank's computation, `time_scale` times as long as planned."""

    plan: Plan
    rank: int
    time_scale: float
    dtype: torch.dtype = torch.float64
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    pool: Sequence[PoolGroup] | None = None  # what is synchronized at once, if not whole groups
    _batches: dict[str, int] = field(init=False)
    _index_of: dict[str, int] = field(init=False)
    _owed: dict[str, list[int]] = field(init=False)
    _group_ranks: tuple[tuple[int, ...], ...] = field(init=False)
    _step_s: float = field(init=False)
    _gathered: dict[int, torch.Tensor] = field(default_factory=dict)
    _woke_s: float = 0.0
    _late_s: float = 0.0  # by how much, the last time

    def __post_init__(self) -> None:
        """Take what is looked up often out of the plan."""
        metaops = self.plan.metaop_by_id()
        self._batches = {
            item.id: metaops[item.metaop].batch // self.plan.micro_batches(item.round)
            for item in self.plan.slices
        }
        self._index_of = {item.id: index for index, item in enumerate(self.plan.slices)}
        self._owed = {item.id: [] for item in self.plan.slices}
        for index, flow in enumerate(self.plan.flows):
            if flow.gradient:
                self._owed[flow.target_slice].append(index)
        pool = parameter_pool(self.plan) if self.pool is None else self.pool
        self._group_ranks = tuple(group.devices for group in pool)
        optimizer_bytes = sum(
            item.optimizer_bytes for item in self.plan.memory if item.device == self.rank
        )
        stepped = optimizer_bytes / OPTIMIZER_BYTES
        estimator = Estimator(self.plan.cluster)
        self._step_s = estimator.optimizer_step_s(stepped) if stepped else 0.0

    @property
    def row_dtype(self) -> torch.dtype:
        """That of the marks, which must hold any of them exactly."""
        return self.dtype

    def elements(self, flow: int) -> int:
        """Give 1: a sample is one number."""
        del flow
        return 1

    def prepare(self, step: int) -> None:
        """Nothing to get ready."""
        del step

    def forward(
        self, item: Slice, inputs: Mapping[int, torch.Tensor], micro_batch: int
    ) -> torch.Tensor | None:
        """Wait for the slice's forward, having checked what arrived."""
        begun_s = time.perf_counter()
        for index, rows in inputs.items():
            self._check(self.plan.flows[index].source_slice, item, rows, (index, micro_batch))
        self._wait(begun_s, item.forward_s)
        return self._marks(item.id, item, micro_batch)

    def backward(
        self,
        item: Slice,
        gradients: Mapping[int, torch.Tensor],
        micro_batch: int,
        watched: Mapping[int, Callable[[], None]],
    ) -> Mapping[int, torch.Tensor]:
        """Wait for the slice's backward, having checked what arrived; then all is complete."""
        del watched
        begun_s = time.perf_counter()
        for index, rows in gradients.items():
            self._check(self.plan.flows[index].target_slice, item, rows, (index, micro_batch))
        self._wait(begun_s, item.backward_s)
        return dict.fromkeys(self._owed[item.id], self._marks(item.id, item, micro_batch))

    def gradient(self, group: int) -> torch.Tensor:
        """Give 1, for each rank where each gets a range: the sum is the number of ranks."""
        count = len(self._group_ranks[group]) if self.plan.zero1 else 1
        return torch.ones(count, dtype=self.dtype, device=self.device)

    def take_gradient(self, group: int, total: torch.Tensor) -> None:
        """Check that every rank of the group was counted once."""
        if total.item() != len(self._group_ranks[group]):
            raise ExecutionError(
                f"parameter group {group}: {total.item():g} ranks summed gradients where"
                f" {len(self._group_ranks[group])} belong to it"
            )

    def squared_norm(self) -> torch.Tensor:
        """Give 1: nothing is counted but the ranks."""
        return torch.ones(1, dtype=torch.float64, device=self.device)

    def scale_gradients(self, factor: float) -> None:
        """Nothing to scale."""

    def step(self) -> None:
        """Wait for the optimizer's step."""
        self._wait(time.perf_counter(), self._step_s)

    def gathering(self, group: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Give a number for each rank, and this rank's own."""
        self._gathered[group] = torch.full(
            (len(self._group_ranks[group]),), -1.0, dtype=self.dtype, device=self.device
        )
        own = torch.full((1,), float(self.rank), dtype=self.dtype, device=self.device)
        return self._gathered[group], own

    def gathered(self, group: int) -> None:
        """Check that every rank of the group gave its number, in its place."""
        came = [int(rank) for rank in self._gathered.pop(group).tolist()]
        if came != list(self._group_ranks[group]):
            raise ExecutionError(
                f"parameter group {group}: ranks {came} gave their parameters where"
                f" {list(self._group_ranks[group])} belong to it"
            )

    def drop(self, group: int) -> None:
        """Nothing is kept of what was gathered."""

    def losses(self) -> dict[str, float]:
        """Give none."""
        return {}

    def synchronize_device(self) -> None:
        """Nothing runs anywhere else."""

    def _marks(self, slice_id: str, holder: Slice, micro_batch: int) -> torch.Tensor:
        batch = self._batches[holder.id]
        first, last = (
            micro_batch * batch + place for place in held_samples(holder, self.rank, batch)
        )
        marks = torch.arange(first, last, dtype=self.dtype, device=self.device)
        return (marks + self._index_of[slice_id] * _SAMPLES).unsqueeze(1)

    def _check(self, source: str, item: Slice, rows: torch.Tensor, place: tuple[int, int]) -> None:
        flow, micro_batch = place
        if not torch.equal(rows, self._marks(source, item, micro_batch)):
            raise ExecutionError(
                f"flow {flow}: {item.id} got other samples than those that {source} owes it"
            )

    def _wait(self, begun_s: float, duration_s: float) -> None:
        spent_s = begun_s - self._woke_s
        due_s = begun_s + duration_s * self.time_scale - max(0.0, self._late_s - spent_s)
        left_s = due_s - time.perf_counter()
        if left_s > 0:
            time.sleep(left_s)
        self._woke_s = time.perf_counter()
        self._late_s = max(0.0, self._woke_s - due_s)
