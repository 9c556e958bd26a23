"""The programs of all ranks run in simulated time: a backend without torch and without devices.

What the simulator derives from a plan is checked here against what ranks are really told to do.
Each rank goes through its own instructions, and only messages and collectives tie ranks together:
a message moves once both sides have posted it, behind those before it between the same two ranks;
a collective begins once its last rank has come, behind those before it of the same ranks. A slice
that gathers parameters (ZeRO-3) computes operator by operator, each its part of the slice's time.
Durations are the plan's and the estimator's, each
message and collective alone on its links. Spans mean what those of a run mean (`events.py`).
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import simpy
from simpy.events import Event

from spindle_sim.estimate import Estimator
from spindle_sim.estimate.memory import OPTIMIZER_BYTES
from spindle_sim.plan import Plan, Slice
from spindle_sim.plan.cuts import token_shards
from spindle_sim.timeline import Kind, Phase, Span, Timeline
from spindle_sim.workload.operators import BYTES_PER_ELEMENT
from spindle_torch.buckets import Bucket, Overlap, parameter_buckets
from spindle_torch.compilation import compile_plan
from spindle_torch.intervals import held_samples
from spindle_torch.pool import operator_of
from spindle_torch.program import (
    Await,
    Batch,
    Beside,
    Clip,
    Compute,
    Copy,
    Gather,
    Instruction,
    Launch,
    Message,
    Step,
    Synchronize,
    Take,
    Visit,
    within_each,
)

__all__ = ["ProgramReplay", "replay", "sample_bytes"]

_NORM_BYTES = 8.0  # of clipping: one number
_Story = Generator[Event, object, None]
_Pair = tuple[int, int]  # source rank, target rank


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramReplay:
    """The replay as a backend; without `network` messages and collectives take no time."""

    overlap: Overlap | None = None
    network: bool = True
    estimator: Estimator | None = None
    name: str = "programs"

    def run(self, plan: Plan) -> Timeline:
        """Give what the ranks do in one iteration."""
        return replay(plan, overlap=self.overlap, network=self.network, estimator=self.estimator)


def replay(
    plan: Plan,
    *,
    overlap: Overlap | None = None,
    network: bool = True,
    estimator: Estimator | None = None,
) -> Timeline:
    """Run the programs of a valid plan.

    Raises:
        InputError, PlanError: as `compile_plan`.
    """
    env = simpy.Environment()
    run = _Replay(
        env=env,
        plan=plan,
        estimator=estimator or Estimator(plan.cluster),
        network=network,
        buckets=parameter_buckets(plan, overlap),
    )
    programs = compile_plan(plan, overlap=overlap)
    for program in programs:
        env.process(run.rank(program.rank, program.instructions))
    env.run()
    assert run.ended == len(programs), "a rank waits for ever: its programs don't fit together"
    spans = sorted(run.spans, key=lambda span: (span.device, span.start_s, span.end_s))
    return Timeline(backend="programs", num_devices=plan.cluster.num_devices, spans=tuple(spans))


def sample_bytes(plan: Plan) -> tuple[float, ...]:
    """Give by flow what one rank sends another of each sample, by the plan's sizes."""
    slices, metaops, shards = plan.slice_by_id(), plan.metaop_by_id(), token_shards(plan)
    return tuple(
        flow.bytes
        / metaops[slices[flow.source_slice].metaop].batch
        / shards.get((flow.source_slice, flow.target_slice), 1)
        for flow in plan.flows
    )


@dataclass(slots=True)
class _Transfer:
    """One message: when each side posted it, and the event of its arrival."""

    arrived: Event
    sent_s: float = -1.0
    awaited: bool = False


@dataclass(slots=True)
class _Meeting:
    """One collective: who has come, when the last did, and the event of its end."""

    ended: Event
    came: int = 0
    last_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class _Replay:
    """What all ranks share."""

    env: simpy.Environment
    plan: Plan
    estimator: Estimator
    network: bool
    buckets: Sequence[Bucket]
    ended: int = 0
    spans: list[Span] = field(default_factory=list)
    slices: dict[str, Slice] = field(init=False)
    batches: dict[str, int] = field(init=False)
    owners: dict[str, tuple[str, str]] = field(init=False)
    sample_bytes: tuple[float, ...] = field(init=False)
    transfers: dict[_Pair, list[_Transfer]] = field(default_factory=dict)
    posted: dict[tuple[_Pair, bool], int] = field(default_factory=dict)
    free_s: dict[_Pair, float] = field(default_factory=dict)
    meetings: dict[tuple[object, ...], _Meeting] = field(default_factory=dict)
    met: dict[tuple[int, tuple[object, ...]], int] = field(default_factory=dict)
    arrivals: dict[tuple[int, str, bool, int], list[_Transfer]] = field(default_factory=dict)
    launched: dict[tuple[int, int], list[_Meeting]] = field(default_factory=dict)
    gathered: dict[tuple[int, int], _Meeting] = field(default_factory=dict)
    busy_s: dict[tuple[int, ...], float] = field(default_factory=dict)  # until when ranks meet

    def __post_init__(self) -> None:
        """Look up slices and their MetaOps once."""
        metaops = self.plan.metaop_by_id()
        self.slices = self.plan.slice_by_id()
        self.sample_bytes = sample_bytes(self.plan)
        self.batches = {
            item.id: metaops[item.metaop].batch // self.plan.micro_batches(item.round)
            for item in self.plan.slices
        }
        self.owners = {
            item.id: (item.metaop, metaops[item.metaop].task) for item in self.plan.slices
        }

    def rank(self, rank: int, instructions: Sequence[Instruction]) -> _Story:
        """Go through one rank's instructions."""
        within = within_each(instructions)
        for position, instruction in enumerate(instructions):
            match instruction:
                case Compute():
                    yield from self._compute(rank, instruction, within.get(position, ()))
                case Copy():
                    yield from self._copy(rank, instruction.message)
                case Batch():
                    self._post(rank, instruction)
                case Await():
                    meeting = self.launched[rank, instruction.group].pop(0)
                    size_bytes = self._bucket_bytes(instruction.group)
                    yield from self._sync(rank, meeting, size_bytes)
                case Synchronize() | Clip():
                    yield from self._collective(rank, instruction)
                case Step():
                    yield from self._step(rank)
                case _ if not instruction.within:
                    yield from self._beside(rank, instruction)
        self.ended += 1

    def _compute(self, rank: int, instruction: Compute, within: Sequence[Beside]) -> _Story:
        micro_batch = instruction.micro_batch
        key = rank, instruction.slice, instruction.backward, micro_batch
        yield from self._await_arrivals(key)
        for group in instruction.collectives:
            if rank in group:
                yield self._meet(rank, group, ("compute", group), 0.0).ended
        start_s, item = self.env.now, self.slices[instruction.slice]
        duration_s = item.backward_s if instruction.backward else item.forward_s
        left_s, waited_s = duration_s, 0.0
        for inner in within:
            if isinstance(inner, Visit) and inner.number:  # the operator before is done
                yield self.env.timeout(duration_s / item.num_ops)
                left_s = 0.0
            come_s = self.env.now
            yield from self._beside(rank, inner)
            waited_s += self.env.now - come_s
        yield self.env.timeout(left_s)
        self._note(
            rank,
            start_s,
            Kind.COMPUTE,
            _phase(instruction.backward),
            slice_id=item.id,
            wait_s=waited_s,
            micro_batch=micro_batch,
        )

    def _beside(self, rank: int, instruction: Beside) -> _Story:
        """Do what may be within a slice; only what is taken is waited for."""
        match instruction:
            case Launch():
                key = ("bucket", instruction.group)
                meeting = self._meet(rank, instruction.devices, key, self._sync_s(instruction))
                self.launched.setdefault((rank, instruction.group), []).append(meeting)
            case Gather(lasts=True):
                yield from self._collective(rank, instruction)
            case Gather():
                key = ("gathering", instruction.group)
                meeting = self._meet(rank, instruction.devices, key, self._sync_s(instruction))
                self.gathered[rank, instruction.group] = meeting
            case Take():
                meeting = self.gathered.pop((rank, instruction.group))
                yield from self._sync(rank, meeting, self._bucket_bytes(instruction.group))

    def _await_arrivals(self, key: tuple[int, str, bool, int]) -> _Story:
        rank, slice_id, backward, micro_batch = key
        awaited = self.arrivals.pop(key, [])
        start_s = self.env.now
        yield self.env.all_of([transfer.arrived for transfer in awaited])
        if self.env.now > start_s:
            posted_s = max(transfer.sent_s for transfer in awaited)
            self._note(
                rank,
                start_s,
                Kind.RECEIVE,
                _phase(backward),
                slice_id=slice_id,
                micro_batch=micro_batch,
                wait_s=min(max(posted_s - start_s, 0.0), self.env.now - start_s),
            )

    def _copy(self, rank: int, message: Message) -> _Story:
        """Put rows beside others; what is all of them is handed on as it is."""
        target = self._target(message)
        held = held_samples(target, rank, self.batches[target.id])
        if held == (message.piece.first, message.piece.last):
            return
        start_s, size_bytes = self.env.now, self._size_bytes(message)
        bandwidth = self.plan.cluster.gpu.memory_bandwidth_bytes_per_s
        yield self.env.timeout(2 * size_bytes / bandwidth if self.network else 0.0)
        self._note(
            rank,
            start_s,
            Kind.COPY,
            _phase(message.backward),
            slice_id=target.id,
            size_bytes=size_bytes,
        )

    def _post(self, rank: int, batch: Batch) -> None:
        for message in (*batch.sends, *batch.receives):
            pair = message.piece.source, message.piece.target
            sends = rank == message.piece.source
            place = self.posted.get((pair, sends), 0)
            self.posted[pair, sends] = place + 1
            known = self.transfers.setdefault(pair, [])
            if place == len(known):
                known.append(_Transfer(self.env.event()))
            transfer = known[place]
            if sends:
                transfer.sent_s = self.env.now
            else:
                transfer.awaited = True
                key = rank, self._target(message).id, message.backward, message.micro_batch
                self.arrivals.setdefault(key, []).append(transfer)
            if transfer.sent_s >= 0 and transfer.awaited:
                self._move(pair, transfer, self._size_bytes(message))

    def _move(self, pair: _Pair, transfer: _Transfer, size_bytes: float) -> None:
        start_s = max(self.env.now, self.free_s.get(pair, 0.0))
        time_s = self.estimator.transfer_s(size_bytes, *pair) if self.network else 0.0
        self.free_s[pair] = start_s + time_s
        self._succeed_after(transfer.arrived, start_s + time_s - self.env.now)

    def _collective(self, rank: int, instruction: Synchronize | Clip | Gather) -> _Story:
        duration_s, size_bytes = 0.0, _NORM_BYTES
        if isinstance(instruction, Clip):
            if self.network:
                duration_s = self.estimator.all_reduce_s(_NORM_BYTES, instruction.devices)
        else:
            size_bytes = self._bucket_bytes(instruction.group)
            duration_s = self._sync_s(instruction)
        key = (type(instruction).__name__, instruction.devices)
        meeting = self._meet(rank, instruction.devices, key, duration_s)
        yield from self._sync(rank, meeting, size_bytes)

    def _sync(self, rank: int, meeting: _Meeting, size_bytes: float) -> _Story:
        start_s = self.env.now
        yield meeting.ended
        wait_s = min(max(meeting.last_s - start_s, 0.0), self.env.now - start_s)
        self._note(rank, start_s, Kind.SYNC, Phase.SYNC, size_bytes=size_bytes, wait_s=wait_s)

    def _step(self, rank: int) -> _Story:
        memory = (item for item in self.plan.memory if item.device == rank)
        stepped = sum(item.optimizer_bytes for item in memory) / OPTIMIZER_BYTES
        start_s = self.env.now
        if stepped:
            yield self.env.timeout(self.estimator.optimizer_step_s(stepped))
            self._note(rank, start_s, Kind.OPTIMIZER, Phase.STEP)

    def _meet(
        self, rank: int, devices: Sequence[int], name: tuple[object, ...], duration_s: float
    ) -> _Meeting:
        """Come to a collective; its last rank begins it."""
        turn = self.met.get((rank, name), 0)
        self.met[rank, name] = turn + 1
        key = (*name, turn)
        meeting = self.meetings.setdefault(key, _Meeting(self.env.event()))
        meeting.came += 1
        if meeting.came == len(devices):
            meeting.last_s = self.env.now
            start_s = max(self.env.now, self.busy_s.get(tuple(devices), 0.0))
            self.busy_s[tuple(devices)] = start_s + duration_s
            self._succeed_after(meeting.ended, start_s + duration_s - self.env.now)
        return meeting

    def _succeed_after(self, event: Event, delay_s: float) -> None:
        timeout = self.env.timeout(max(delay_s, 0.0))
        assert timeout.callbacks is not None, "a new timeout takes callbacks"

        def succeed(_: Event) -> None:
            event.succeed()

        timeout.callbacks.append(succeed)

    def _sync_s(self, instruction: Synchronize | Launch | Gather) -> float:
        if not self.network:
            return 0.0
        size_bytes = self._bucket_bytes(instruction.group)
        if isinstance(instruction, Gather):
            return self.estimator.all_gather_s(size_bytes, instruction.devices)
        if instruction.scatter:
            return self.estimator.reduce_scatter_s(size_bytes, instruction.devices)
        return self.estimator.all_reduce_s(size_bytes, instruction.devices)

    def _bucket_bytes(self, index: int) -> float:
        """Give the bytes of a bucket's gradients on one rank, in the plan's width."""
        total = 0.0
        for key in self.buckets[index].group.operators:
            operator = operator_of(self.plan.workload, key.parameter_set)
            divided = operator.sharded_parameters
            total += operator.parameters - divided + divided / key.num_shards
        return BYTES_PER_ELEMENT * total

    def _size_bytes(self, message: Message) -> float:
        return (message.piece.last - message.piece.first) * self.sample_bytes[message.flow]

    def _target(self, message: Message) -> Slice:
        flow = self.plan.flows[message.flow]
        return self.slices[flow.source_slice if message.backward else flow.target_slice]

    def _note(
        self,
        rank: int,
        start_s: float,
        kind: Kind,
        phase: Phase,
        *,
        slice_id: str = "",
        size_bytes: float = 0.0,
        wait_s: float = 0.0,
        micro_batch: int = 0,
    ) -> None:
        metaop, task = self.owners.get(slice_id, ("", ""))
        self.spans.append(
            Span(
                device=rank,
                start_s=start_s,
                end_s=self.env.now,
                kind=kind,
                phase=phase,
                metaop=metaop,
                task=task,
                slice=slice_id,
                stream=0 if kind in (Kind.COMPUTE, Kind.OPTIMIZER) else 1,
                bytes=size_bytes,
                wait_s=wait_s,
                micro_batch=micro_batch,
            )
        )


def _phase(backward: bool) -> Phase:  # noqa: FBT001  (what an instruction is, handed on)
    return Phase.BACKWARD if backward else Phase.FORWARD
