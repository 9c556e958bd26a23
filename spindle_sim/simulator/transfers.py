"""Activations and gradients between slices: a resharding as messages on the network.

All that one device sends another at one boundary is one message. Messages over the same links and
of the same size progress alike, so they are one demand on the network with a load of their number.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import simpy
from simpy.events import Event

from spindle_sim.estimate import Estimator
from spindle_sim.plan import Slice
from spindle_sim.simulator.links import Links, Path, measured_demand
from spindle_sim.simulator.network import Demand, Network
from spindle_sim.simulator.record import Part, Record, Subject
from spindle_sim.simulator.resharding import Layout, Piece, concatenated, reshard
from spindle_sim.simulator.symmetry import coalesced
from spindle_sim.timeline import Kind, Phase

__all__ = ["Boundary", "Crossing", "Transfers", "crossing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """One flow in one direction; `size_bytes` is of the whole batch, or micro-batch.

    `token_shards` is in how many parts the tokens lie on the tensor-parallel ranks of both sides.
    """

    source: Slice
    target: Slice
    size_bytes: float
    phase: Phase
    task: str
    token_shards: int = 1

    def pieces(self) -> tuple[Piece, ...]:
        """Give what each device needs, and from whom."""
        return reshard(
            Layout(devices=self.source.devices, tp=self.source.tp),
            Layout(devices=self.target.devices, tp=self.target.tp),
            self.size_bytes / self.token_shards,
        )


class _Role(NamedTuple):
    """All messages of one device in one direction: their bytes, the peer if it is one."""

    kind: Kind
    device: int
    size_bytes: float
    peer: int | None
    demands: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """A boundary made ready: what goes on the network, and what is written of it.

    `repeats` where it is crossed several times.
    """

    boundary: Boundary
    demands: tuple[Demand, ...]
    roles: tuple[_Role, ...]
    repeats: bool


def crossing(
    boundary: Boundary, links: Links, estimator: Estimator, *, repeats: bool = False
) -> Crossing:
    """Make a boundary ready; where it `repeats`, messages of equal size progress as one."""
    pieces = boundary.pieces()
    groups: dict[tuple[tuple[int, ...], float, float], list[Piece]] = {}
    for piece in pieces:
        if not piece.is_local:
            path = links.path(piece.source, piece.target)
            groups.setdefault((path.links, path.latency_s, piece.bytes), []).append(piece)
    demands = [
        _messages(links, estimator, Path(used, latency_s), size_bytes, members=members)
        for (used, latency_s, size_bytes), members in groups.items()
    ]
    copies = concatenated(pieces)
    demands += [_copy(links, piece) for piece in copies]
    batches = [*groups.values(), *([piece] for piece in copies)]
    place: Sequence[int] = range(len(demands))
    joined = tuple(demands)
    if repeats:
        joined, place = coalesced(demands)
    roles = _roles([(place[number], batch) for number, batch in enumerate(batches)])
    return Crossing(boundary=boundary, demands=joined, roles=roles, repeats=repeats)


@dataclass(slots=True)
class Transfers:
    """Carries out boundaries over one network."""

    env: simpy.Environment
    links: Links
    network: Network
    record: Record
    estimator: Estimator
    _known: dict[tuple[str, str, Phase], Sequence[Part]] = field(default_factory=dict)

    def start(self, ready: Crossing, micro_batch: int = 0) -> Event:
        """Start everything now; the event succeeds when all has arrived."""
        return self.env.process(self._run(ready, micro_batch))

    def _run(self, ready: Crossing, micro_batch: int) -> "simpy.events.ProcessGenerator":
        started_s = self.env.now
        ends_s = yield self.network.transmit(ready.demands)
        parts = self._parts(ready)
        self.record.transfer(parts, started_s, ends_s, micro_batch=micro_batch)

    def _parts(self, ready: Crossing) -> Sequence[Part]:
        """Give what each device does."""
        boundary = ready.boundary
        way = boundary.source.id, boundary.target.id, boundary.phase
        if way in self._known:
            return self._known[way]
        parts = []
        for role in ready.roles:
            owner = boundary.source if role.kind is Kind.SEND else boundary.target
            subject = Subject(
                role.kind,
                boundary.phase,
                owner.id,
                owner.metaop,
                boundary.task,
                role.size_bytes,
                role.peer,
            )
            parts.append(Part(role.device, self.record.subject(subject), role.demands))
        if ready.repeats:
            self._known[way] = parts
        return parts


def _messages(
    links: Links, estimator: Estimator, path: Path, size_bytes: float, *, members: Sequence[Piece]
) -> Demand:
    """Give messages over one path as one demand: as measured, or by the links' bandwidth."""
    ends = members[0].source, members[0].target
    measured = estimator.measured_link("transfer", size_bytes, ends)
    if measured is not None:
        return measured_demand(links, measured, size_bytes, path.links, len(members))
    return Demand(
        size_bytes=size_bytes,
        latency_s=path.latency_s,
        loads=tuple((link, float(len(members))) for link in path.links),
    )


def _copy(links: Links, piece: Piece) -> Demand:
    """Read and write once each, at the memory's bandwidth."""
    bandwidth = links.cluster.gpu.memory_bandwidth_bytes_per_s
    return Demand(size_bytes=piece.bytes, latency_s=0.0, loads=(), limit_bytes_per_s=bandwidth / 2)


def _roles(batches: Sequence[tuple[int, Sequence[Piece]]]) -> tuple[_Role, ...]:
    """Give one span for each device and direction: all of its messages of the boundary."""
    found: dict[Kind, dict[int, _Role]] = {Kind.SEND: {}, Kind.RECEIVE: {}, Kind.COPY: {}}
    for number, pieces in batches:
        for source, target, size_bytes in pieces:
            ends: tuple[tuple[Kind, int, int | None], ...] = (
                (Kind.SEND, source, target),
                (Kind.RECEIVE, target, source),
            )
            if source == target:
                ends = ((Kind.COPY, source, None),)
            for kind, device, peer in ends:
                more = _Role(kind, device, size_bytes, peer, (number,))
                known = found[kind].get(device)
                found[kind][device] = more if known is None else _sum(known, more)
    return tuple(role for roles in found.values() for role in roles.values())


def _sum(one: _Role, more: _Role) -> _Role:
    return one._replace(
        size_bytes=one.size_bytes + more.size_bytes,
        peer=one.peer if one.peer == more.peer else None,
        demands=tuple(dict.fromkeys((*one.demands, *more.demands))),
    )
