"""How full each device is while slices are being placed; the error where one is too small.

The same sums as in the finished plan (`planner/pool.py`): states of every operator that a device
ever runs, plus the activations of its fullest round. Placement can be taken back, step by step.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from spindle_sim.cluster import Cluster
from spindle_sim.errors import InfeasibleError
from spindle_sim.estimate.memory import (
    GRADIENT_BYTES,
    OPTIMIZER_BYTES,
    PARAMETER_BYTES,
    activation_bytes,
    shard_parameters,
    working_bytes,
)
from spindle_sim.plan import MetaOp
from spindle_sim.planner.metagraph import DraftSlice, MetaGraph

__all__ = ["Ledger", "OutOfMemoryError", "kept_and_working_bytes"]

Floats = npt.NDArray[np.float64]
Bits = npt.NDArray[np.uint32]


class OutOfMemoryError(InfeasibleError):
    """No placement fits: which device is short, and whose activations it holds, largest first."""

    def __init__(self, message: str, *, device: int, short_bytes: float, metaops: tuple[str, ...]):
        super().__init__(message)
        self.device = device
        self.short_bytes = short_bytes
        self.metaops = metaops


def kept_and_working_bytes(metaop: MetaOp, draft: DraftSlice) -> tuple[float, float]:
    """Give what one device keeps of a draft until its backward, and what it needs on top then."""
    dp = draft.num_devices // draft.tp
    kept = activation_bytes(
        metaop,
        num_ops=draft.num_ops,
        dp=dp,
        tp=draft.tp,
        recompute=draft.recompute,
        first_op=draft.first_op,
    )
    return kept, working_bytes(metaop, dp=dp, tp=draft.tp) if draft.recompute else 0.0


@dataclass(slots=True)
class _Entry:
    """One placed draft and what it overwrote, so that it can be taken back."""

    draft: DraftSlice
    devices: tuple[int, ...]
    columns: npt.NDArray[np.intp]
    held: Bits
    weights: Floats
    optimizer: Floats  # of all devices under ZeRO-1, else of the columns
    kept: Floats
    peak: Floats
    round: int
    round_kept: Floats | None  # of all devices, where this draft began a round


@dataclass(slots=True)
class Ledger:
    """Bytes on every device; drafts are put in order of round and stage."""

    graph: MetaGraph
    cluster: Cluster
    zero1: bool
    weights: Floats = field(init=False)  # parameters and gradients
    optimizer: Floats = field(init=False)
    peak: Floats = field(init=False)  # of activations, over the rounds so far
    entries: list[_Entry] = field(default_factory=list)
    _kept: Floats = field(init=False)  # activations in the current round
    _round: int = 0
    _held: dict[str, Bits] = field(default_factory=dict)  # bit s: shard s of operator x device

    def __post_init__(self) -> None:
        """Begin with empty devices."""
        shape = 4, self.cluster.num_devices
        self.weights, self.optimizer, self.peak, self._kept = np.zeros(shape)

    @property
    def capacity_bytes(self) -> float:
        """What a plan may put on one device."""
        return self.cluster.usable_memory_bytes

    def used_bytes(self) -> Floats:
        """Give what each device holds at its peak so far."""
        return self.weights + self.optimizer + self.peak

    def missing_ops(self, draft: DraftSlice) -> npt.NDArray[np.intp]:
        """Give, by device, how many of the draft's operators' parameters it doesn't hold yet.

        Device d would be tensor-parallel rank d % tp, as in all aligned groups.
        """
        held = self.held(draft)[draft.first_op : draft.first_op + draft.num_ops]
        if draft.tp > 1:
            shards = np.arange(self.cluster.num_devices, dtype=np.uint32) % np.uint32(draft.tp)
            held = held & (np.uint32(1) << shards)
        present: npt.NDArray[np.intp] = np.count_nonzero(held, axis=0)
        return draft.num_ops - present

    def bytes_with(self, draft: DraftSlice) -> Floats:
        """Give what each device would hold at its peak if it ran the draft too.

        Under ZeRO-1 an upper bound: more devices may share the optimizer states later.
        """
        metaop = self.graph.nodes[draft.metaop].metaop
        size = shard_parameters(metaop, draft.tp)
        more = PARAMETER_BYTES * size
        if not metaop.frozen:
            sharers = draft.num_devices // draft.tp if self.zero1 else 1
            more += size * (GRADIENT_BYTES + OPTIMIZER_BYTES / sharers)
        kept, working = kept_and_working_bytes(metaop, draft)
        before = self._kept if draft.round == self._round else 0.0
        peak = np.maximum(self.peak, before + (kept + working))
        return self.weights + self.optimizer + peak + self.missing_ops(draft) * more

    def put(self, draft: DraftSlice, devices: tuple[int, ...]) -> None:
        """Place a draft."""
        columns = np.array(devices)
        held = self.held(draft)
        rows = slice(draft.first_op, draft.first_op + draft.num_ops)
        round_kept = None
        if draft.round != self._round:
            round_kept, self._kept = self._kept, np.zeros_like(self._kept)
        self.entries.append(
            _Entry(
                draft=draft,
                devices=devices,
                columns=columns,
                held=held[rows, columns],
                weights=self.weights[columns],
                optimizer=self.optimizer.copy() if self.zero1 else self.optimizer[columns],
                kept=self._kept[columns],
                peak=self.peak[columns],
                round=self._round,
                round_kept=round_kept,
            )
        )
        self._round = draft.round
        self._put_states(draft, columns, held[rows])
        metaop = self.graph.nodes[draft.metaop].metaop
        kept, working = kept_and_working_bytes(metaop, draft)
        self._kept[columns] += kept
        self.peak[columns] = np.maximum(self.peak[columns], self._kept[columns] + working)

    def take_back(self) -> None:
        """Undo the last `put`."""
        entry = self.entries.pop()
        rows = slice(entry.draft.first_op, entry.draft.first_op + entry.draft.num_ops)
        self.held(entry.draft)[rows, entry.columns] = entry.held
        self.weights[entry.columns] = entry.weights
        if self.zero1:
            self.optimizer = entry.optimizer
        else:
            self.optimizer[entry.columns] = entry.optimizer
        self._kept[entry.columns] = entry.kept
        self.peak[entry.columns] = entry.peak
        self._round = entry.round
        if entry.round_kept is not None:
            self._kept = entry.round_kept

    def held(self, draft: DraftSlice) -> Bits:
        """Give the shards of the draft's parameter set that each device holds, by operator."""
        metaop = self.graph.nodes[draft.metaop].metaop
        if metaop.parameter_set not in self._held:
            shape = metaop.num_ops, self.cluster.num_devices
            self._held[metaop.parameter_set] = np.zeros(shape, dtype=np.uint32)
        return self._held[metaop.parameter_set]

    def set_bytes(self, draft: DraftSlice, device: int) -> tuple[float, float]:
        """Give what a device holds of the draft's parameter set: parameters, and what trains them.

        The latter are gradients and the device's part of the optimizer states.
        """
        metaop = self.graph.nodes[draft.metaop].metaop
        held = self.held(draft)
        size = shard_parameters(metaop, draft.tp)
        bits = held[:, device, None] >> np.arange(draft.tp, dtype=np.uint32) & 1
        count = float(bits.sum())
        if metaop.frozen:
            return count * size * PARAMETER_BYTES, 0.0
        shares = float(_shares(held, draft.tp)[device]) if self.zero1 else count
        training = count * GRADIENT_BYTES + shares * OPTIMIZER_BYTES
        return count * size * PARAMETER_BYTES, size * training

    def _put_states(self, draft: DraftSlice, columns: npt.NDArray[np.intp], held: Bits) -> None:
        metaop = self.graph.nodes[draft.metaop].metaop
        size = shard_parameters(metaop, draft.tp)
        bits = np.uint32(1) << np.arange(len(columns), dtype=np.uint32) % np.uint32(draft.tp)
        missing = draft.num_ops - np.count_nonzero(held[:, columns] & bits, axis=0)
        before = _shares(held, draft.tp) if self.zero1 else 0.0
        held[:, columns] |= bits
        self.weights[columns] += missing * size * PARAMETER_BYTES
        if metaop.frozen:
            return
        self.weights[columns] += missing * size * GRADIENT_BYTES
        if self.zero1:
            self.optimizer += OPTIMIZER_BYTES * size * (_shares(held, draft.tp) - before)
        else:
            self.optimizer[columns] += missing * size * OPTIMIZER_BYTES


def _shares(held: Bits, tp: int) -> Floats:
    """Give, by device, its part of the operators' optimizer states: 1 / holders of each shard."""
    total = np.zeros(held.shape[1])
    for shard in range(tp):
        bits = (held >> np.uint32(shard)) & 1
        holders = np.maximum(bits.sum(axis=1), 1)
        total += (bits / holders[:, None]).sum(axis=0)
    return total
