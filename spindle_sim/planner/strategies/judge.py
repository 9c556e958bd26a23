"""What configurations of all tasks come to together: shared parameters, their sync, their memory.

Tasks meet only in the parameters that they share: a device holds the states of every operator that
it runs in any round, and synchronizes each of them once, with all others that hold it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from itertools import groupby, zip_longest
from math import ceil, log2
from operator import or_

import numpy as np
import numpy.typing as npt

from spindle_sim.cluster import Cluster
from spindle_sim.estimate import Estimator
from spindle_sim.estimate.memory import (
    GRADIENT_BYTES,
    OPTIMIZER_BYTES,
    PARAMETER_BYTES,
    shard_parameters,
)
from spindle_sim.plan import MetaOp
from spindle_sim.planner.strategies.exchanges import Exchange, delay_s, gathered_s, scattered_s
from spindle_sim.planner.strategies.rounds import Sketch
from spindle_sim.simulator.collectives import all_reduce_demand
from spindle_sim.simulator.links import Links
from spindle_sim.simulator.sync import DEFAULT_BUCKET_BYTES

__all__ = ["Judge", "Option", "Runs", "Verdict"]

# As the simulator's: what is synchronized last, what is left for the last bucket, has nothing to
# hide behind.
_BUCKET_BYTES = DEFAULT_BUCKET_BYTES
_SHARDED_GRADIENTS, _SHARDED_PARAMETERS = 2, 3

Run = tuple[int, int, int]  # first operator of a parameter set, end, devices as bits
Runs = tuple[Run, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A configuration of a task, played through."""

    sketch: Sketch
    round_s: float
    runs: dict[str, Runs]  # by parameter set

    @property
    def window_s(self) -> float:
        """How long the backward of the last micro-batch takes: gradients are complete within."""
        return sum(self.sketch.backward_s) / self.sketch.config.pp

    @staticmethod
    def of(
        sketch: Sketch, round_s: float, sets: Mapping[str, str], known: dict[Runs, Runs]
    ) -> "Option":
        """Give the option with the operators that each device runs.

        `sets` are the parameter sets of MetaOps, `known` the runs of all options so far.
        """
        runs: dict[str, list[Run]] = {}
        for stage, pieces in enumerate(sketch.stages):
            devices = sketch.config.stage_devices(stage)
            mask = (1 << devices[-1] + 1) - (1 << devices[0])
            for piece in pieces:
                own = runs.setdefault(sets[piece.metaop], [])
                end = piece.first_op + piece.num_ops
                if own and own[-1][1:] == (piece.first_op, mask):  # recomputed in part
                    own[-1] = own[-1][0], end, mask
                else:
                    own.append((piece.first_op, end, mask))
        # Equal ones are one, so that what is known of one is known of all.
        shared = {name: known.setdefault(tuple(own), tuple(own)) for name, own in runs.items()}
        return Option(sketch=sketch, round_s=round_s, runs=shared)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What options come to: the iteration, and how much the fullest device lacks (0: it fits)."""

    seconds: float
    short_bytes: float


@dataclass(slots=True)
class _Held:
    """Parameters that one set of devices holds: of one shard, numbers of them."""

    trained: float = 0.0
    frozen: float = 0.0
    largest: float = 0.0
    messages: float = 0.0  # in which they synchronize: operators aren't cut


_Segment = tuple[int, int, tuple[int, ...]]  # operators, devices, which of the ways have them


@dataclass(slots=True, kw_only=True)
class Judge:
    """Judges options, one a task in the order of the tasks; remembers collectives."""

    cluster: Cluster
    estimator: Estimator
    links: Links
    metaops: dict[str, MetaOp]  # by parameter set
    _devices: dict[int, npt.NDArray[np.intp]] = field(default_factory=dict)
    _times: dict[tuple[object, ...], float] = field(default_factory=dict)
    _exchanges: dict[tuple[int, bool], tuple[Option, Exchange]] = field(default_factory=dict)
    _segments: dict[tuple[int, ...], tuple[_Segment, ...]] = field(default_factory=dict)
    # With the options themselves, so that none of them goes and leaves its id to another.
    _ranks: dict[tuple[int, ...], tuple[tuple[Option, ...], tuple[float, float]]] = field(
        default_factory=dict
    )
    _last: tuple[tuple[int, ...], dict[tuple[int, int], _Held]] = ((), {})

    def verdict(self, options: Sequence[Option], zero_stage: int) -> Verdict:
        """Judge options under a ZeRO stage."""
        synced_s = self._synced_s(options, self._held(options), zero_stage)
        stepped = self._stepped(options, zero_stage)
        return Verdict(
            seconds=synced_s + self.estimator.optimizer_step_s(stepped),
            short_bytes=self.short_bytes(options, zero_stage),
        )

    def rank(self, options: Sequence[Option], zero_stage: int) -> tuple[float, float]:
        """Give what is compared: what the fullest device lacks, then seconds."""
        key = (zero_stage, *map(id, options))
        if key not in self._ranks:
            verdict = self.verdict(options, zero_stage)
            self._ranks[key] = tuple(options), (verdict.short_bytes, verdict.seconds)
        return self._ranks[key][1]

    def known(self, limit_s: float) -> Iterator[tuple[int, tuple[Option, ...], float]]:
        """Give ZeRO stage, options and seconds of all that was ranked, fits, and isn't slower."""
        for (zero_stage, *_), (options, (short_bytes, seconds)) in self._ranks.items():
            if not short_bytes and seconds <= limit_s:
                yield zero_stage, options, seconds

    def short_bytes(self, options: Sequence[Option], zero_stage: int) -> float:
        """Give how much the fullest device lacks; 0: all fits."""
        states, largest, activations = np.zeros((3, self.cluster.num_devices))
        for (mask, last), one in self._held(options).items():
            devices = self._of(mask)
            sharers = len(devices) // self._tp(options, last)
            shards = [sharers if zero_stage >= stage else 1 for stage in (1, 2, 3)]
            states[devices] += (
                PARAMETER_BYTES * (one.trained / shards[2] + one.frozen)
                + GRADIENT_BYTES * one.trained / shards[1]
                + OPTIMIZER_BYTES * one.trained / shards[0]
            )
            if zero_stage >= _SHARDED_PARAMETERS and sharers > 1:
                largest[devices] = np.maximum(largest[devices], one.largest)
        for option in options:
            size = option.sketch.config.tp * option.sketch.config.dp
            for rank, peak in enumerate(option.sketch.peak_bytes):
                part = activations[rank * size : (rank + 1) * size]
                np.maximum(part, peak, out=part)
        # One operator runs, the next one is gathered ahead.
        total = states + 2 * PARAMETER_BYTES * largest + activations
        return max(0.0, float(total.max()) - self.cluster.usable_memory_bytes)

    def least_step_s(self, option: Option, zero_stage: int) -> float:
        """Give what the optimizer step takes at least, whatever the other tasks do."""
        parameters, tp = max(option.sketch.parameters), option.sketch.config.tp
        sharers = self.cluster.num_devices // tp if zero_stage else 1
        return self.estimator.optimizer_step_s(parameters / sharers)

    def _stepped(self, options: Sequence[Option], zero_stage: int) -> float:
        """Give the parameters that a device's optimizer steps at most."""
        stepped = np.zeros(self.cluster.num_devices)
        for (mask, last), one in self._held(options).items():
            devices = self._of(mask)
            sharers = len(devices) // self._tp(options, last) if zero_stage else 1
            stepped[devices] += one.trained / sharers
        return float(stepped.max())

    def _held(self, options: Sequence[Option]) -> dict[tuple[int, int], _Held]:
        """Give what is held, by devices and the last round that uses it."""
        key = tuple(map(id, options))
        if key != self._last[0]:
            self._last = key, self._found(options)
        return self._last[1]

    def _found(self, options: Sequence[Option]) -> dict[tuple[int, int], _Held]:
        uses: dict[str, dict[int, tuple[Runs, int]]] = {}
        for number, option in enumerate(options):
            for name, runs in option.runs.items():
                uses.setdefault(name, {})[id(runs)] = runs, number
        held: dict[tuple[int, int], _Held] = {}
        for name, by_runs in uses.items():
            if tuple(by_runs) not in self._segments:
                self._segments[tuple(by_runs)] = _segments([runs for runs, _ in by_runs.values()])
            rows = tuple(by_runs.values())
            metaop = self.metaops[name]
            size = shard_parameters(metaop, self._tp(options, rows[0][1]))
            for count, mask, members in self._segments[tuple(by_runs)]:
                last = max(rows[member][1] for member in members)
                one = held.setdefault((mask, last), _Held())
                if metaop.frozen:
                    one.frozen += size * count
                else:
                    one.trained += size * count
                    one.largest = max(one.largest, size)
                    together = (
                        max(1, int(_BUCKET_BYTES / (GRADIENT_BYTES * size))) if size else count
                    )
                    one.messages += count / together
        return held

    def _synced_s(
        self, options: Sequence[Option], held: dict[tuple[int, int], _Held], zero_stage: int
    ) -> float:
        """Give when the last gradient is synchronized: beside backwards, as far as they go."""
        if zero_stage >= _SHARDED_GRADIENTS:
            return self._sharded_s(options, held, parameters=zero_stage >= _SHARDED_PARAMETERS)
        ends_s: list[float] = []
        total_s = 0.0
        for option in options:
            total_s += option.round_s
            ends_s.append(total_s)
        done = np.zeros(self.cluster.num_devices)
        hidden = np.zeros(self.cluster.num_devices)
        for (mask, last), one in sorted(held.items(), key=lambda entry: entry[0][1]):
            if not one.trained:
                continue
            devices, tp = self._of(mask), self._tp(options, last)
            # The first bucket goes when it is full; the last one has nothing to hide behind.
            many = ceil(one.messages)
            tail_s = self._sync_s(mask, GRADIENT_BYTES * one.trained / many, tp)
            time_s = many * tail_s
            ready_s = ends_s[last] - options[last].window_s * (1 - 1 / many)
            begun_s = max(ready_s, float(done[devices].max()))
            done[devices] = max(begun_s + time_s, ends_s[last] + tail_s)
            hidden[devices] += max(0.0, min(begun_s + time_s, total_s) - begun_s)
        return max(total_s, float(done.max())) + delay_s(float(hidden.max()))

    def _sync_s(self, mask: int, size_bytes: float, tp: int) -> float:
        """Give how long an all-reduce of gradients of that size takes.

        Between two powers of two it is taken as linear: it is, but where NCCL changes its mind.
        """
        exponent = int(log2(max(size_bytes, 2.0)))
        low, high = 2.0**exponent, 2.0 ** (exponent + 1)
        low_s, high_s = (self._all_reduce_s(mask, size, tp) for size in (low, high))
        return low_s + (high_s - low_s) * (size_bytes - low) / (high - low)

    def _all_reduce_s(self, mask: int, size_bytes: float, tp: int) -> float:
        """Give how long all shards take that are synchronized at one time: some share NICs."""
        key = mask, size_bytes, tp
        if key not in self._times:
            devices = [int(device) for device in self._of(mask)]
            latency_s, loads = 0.0, dict[int, float]()
            for shard in range(tp):
                demand = all_reduce_demand(
                    self.estimator, self.links, size_bytes, devices[shard::tp]
                )
                latency_s = max(latency_s, demand.latency_s)
                for link, load in demand.loads:
                    load_s = load * demand.size_bytes / self.links.capacities[link]
                    loads[link] = loads.get(link, 0.0) + load_s
            self._times[key] = latency_s + max(loads.values(), default=0.0)
        return self._times[key]

    def _sharded_s(
        self, options: Sequence[Option], held: dict[tuple[int, int], _Held], *, parameters: bool
    ) -> float:
        """Give the iteration under ZeRO-2 or -3, which communicate with every micro-batch.

        Gradients are scattered in buckets beside the backward. With sharded `parameters` each
        operator is gathered before its forward and its backward, and scattered by itself; without,
        all parameters are gathered once at the end.
        """
        exchanges = [self._exchange(option, by_operator=parameters) for option in options]
        if parameters:
            return gathered_s(exchanges)
        total_s = scattered_s(exchanges)
        for (mask, _), one in held.items():
            ranks = [int(device) for device in self._of(mask)]
            total_s += self.estimator.all_gather_s(PARAMETER_BYTES * one.trained, ranks)
        return total_s

    def _exchange(self, option: Option, *, by_operator: bool) -> Exchange:
        """Give what a task exchanges: operator by operator, or in buckets."""
        key = id(option), by_operator
        if key not in self._exchanges:
            scatters: list[float] = []
            gathers: list[float] = []
            messages = 0
            for name, runs in option.runs.items():
                metaop = self.metaops[name]
                for first, end, mask in runs if not metaop.frozen else ():
                    count, each = end - first, GRADIENT_BYTES * metaop.parameters
                    if not by_operator:
                        many = ceil(count * each / _BUCKET_BYTES)
                        count, each = many, count * each / max(1, many)
                    ranks = [int(device) for device in self._of(mask)]
                    scatters.append(count * self.estimator.reduce_scatter_s(each, ranks))
                    if by_operator:
                        gathers.append(count * self.estimator.all_gather_s(each, ranks))
                    messages += count
                    if len(scatters) == 1:  # the first that is gathered, and the last to scatter
                        first_s, last_s = (sum(own) / max(1, count) for own in (gathers, scatters))
            sketch = option.sketch
            exchange = Exchange(
                micro_batches=sketch.micro_batches,
                forward_s=sum(sketch.forward_s) / sketch.config.pp,
                backward_s=sum(sketch.backward_s) / sketch.config.pp,
                scatter_s=sum(scatters),
                gather_s=sum(gathers),
                messages=messages,
                first_s=first_s if scatters else 0.0,
                last_s=last_s if scatters else 0.0,
            )
            self._exchanges[key] = option, exchange
        return self._exchanges[key][1]

    def _of(self, mask: int) -> npt.NDArray[np.intp]:
        if mask not in self._devices:
            found = [d for d in range(self.cluster.num_devices) if mask >> d & 1]
            self._devices[mask] = np.array(found)
        return self._devices[mask]

    @staticmethod
    def _tp(options: Sequence[Option], number: int) -> int:
        return options[number].sketch.config.tp


def _segments(ways: Sequence[Runs]) -> tuple[_Segment, ...]:
    """Give what the operators of a set share, if tasks run them in these ways."""
    shared: list[tuple[int, tuple[int, ...]]] = []
    for masks in zip_longest(*(_masks(runs) for runs in ways), fillvalue=0):
        members = tuple(index for index, own in enumerate(masks) if own)
        shared.append((reduce(or_, masks), members))
    return tuple((sum(1 for _ in same), *one) for one, same in groupby(shared))


@lru_cache(maxsize=4096)
def _masks(runs: Runs) -> tuple[int, ...]:
    """Give the devices of each operator of a set."""
    masks = [0] * max(end for _, end, _ in runs)
    for first, end, mask in runs:
        for op in range(first, end):
            masks[op] |= mask
    return tuple(masks)
