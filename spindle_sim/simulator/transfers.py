"""Activations and gradients between slices: a resharding as messages on the network.

All that one device sends another at one boundary is one message. Messages over the same links and
of the same size progress alike, so they are one demand on the network with a load of their number.
"""

from dataclasses import dataclass
from typing import NamedTuple

import simpy
from simpy.events import Event

from spindle_sim.estimate import Estimator
from spindle_sim.plan import Slice
from spindle_sim.simulator.links import Links, Path, measured_demand
from spindle_sim.simulator.network import Demand, Network
from spindle_sim.simulator.record import Note, Record
from spindle_sim.simulator.resharding import Layout, Piece, concatenated, reshard
from spindle_sim.timeline import Kind, Phase

__all__ = ["Boundary", "Transfers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """One flow in one direction; `size_bytes` is of the whole batch."""

    source: Slice
    target: Slice
    size_bytes: float
    phase: Phase
    task: str


@dataclass(slots=True)
class Transfers:
    """Carries out boundaries over one network."""

    env: simpy.Environment
    links: Links
    network: Network
    record: Record
    estimator: Estimator

    def start(self, boundary: Boundary) -> Event:
        """Start everything now; the event succeeds when all has arrived."""
        pieces = reshard(
            Layout(devices=boundary.source.devices, tp=boundary.source.tp),
            Layout(devices=boundary.target.devices, tp=boundary.target.tp),
            boundary.size_bytes,
        )
        groups: dict[tuple[tuple[int, ...], float, float], list[Piece]] = {}
        for piece in pieces:
            if not piece.is_local:
                path = self.links.path(piece.source, piece.target)
                groups.setdefault((path.links, path.latency_s, piece.bytes), []).append(piece)
        demands = [
            self._messages(Path(links, latency_s), size_bytes, members)
            for (links, latency_s, size_bytes), members in groups.items()
        ]
        copies = concatenated(pieces)
        demands += [self._copy(piece) for piece in copies]
        batches = [*groups.values(), *([piece] for piece in copies)]
        return self.env.process(self._run(boundary, demands, batches))

    def _run(
        self, boundary: Boundary, demands: list[Demand], batches: list[list[Piece]]
    ) -> "simpy.events.ProcessGenerator":
        started_s = self.env.now
        ends_s = yield self.network.transmit(demands)
        self._note(boundary, started_s, list(zip(ends_s, batches, strict=True)))

    def _messages(self, path: Path, size_bytes: float, members: list[Piece]) -> Demand:
        """Give messages over one path as one demand: as measured, or by the links' bandwidth."""
        ends = members[0].source, members[0].target
        measured = self.estimator.measured_link("transfer", size_bytes, ends)
        if measured is not None:
            return measured_demand(self.links, measured, size_bytes, path.links, len(members))
        return Demand(
            size_bytes=size_bytes,
            latency_s=path.latency_s,
            loads=tuple((link, float(len(members))) for link in path.links),
        )

    def _copy(self, piece: Piece) -> Demand:
        """Read and write once each, at the memory's bandwidth."""
        bandwidth = self.links.cluster.gpu.memory_bandwidth_bytes_per_s
        return Demand(
            size_bytes=piece.bytes, latency_s=0.0, loads=(), limit_bytes_per_s=bandwidth / 2
        )

    def _note(
        self, boundary: Boundary, started_s: float, ended: list[tuple[float, list[Piece]]]
    ) -> None:
        """Write one span for each device and direction: all of its messages of the boundary."""
        roles: dict[Kind, dict[int, _Sum]] = {Kind.SEND: {}, Kind.RECEIVE: {}, Kind.COPY: {}}
        for end_s, pieces in ended:
            for source, target, size_bytes in pieces:
                if source == target:
                    _add(roles[Kind.COPY], source, _Sum(end_s, size_bytes, None))
                else:
                    _add(roles[Kind.SEND], source, _Sum(end_s, size_bytes, target))
                    _add(roles[Kind.RECEIVE], target, _Sum(end_s, size_bytes, source))
        for kind, sums in roles.items():
            owner = boundary.source if kind is Kind.SEND else boundary.target
            self.record.communication += [
                Note(
                    device,
                    started_s,
                    last_s,
                    kind,
                    boundary.phase,
                    owner.id,
                    owner.metaop,
                    boundary.task,
                    size_bytes,
                    peer,
                )
                for device, (last_s, size_bytes, peer) in sums.items()
            ]


class _Sum(NamedTuple):
    """The messages of one device in one direction: last end, bytes, the peer if it is one."""

    end_s: float
    size_bytes: float
    peer: int | None


def _add(sums: dict[int, _Sum], device: int, more: _Sum) -> None:
    known = sums.get(device)
    if known is not None:
        end_s, size_bytes, peer = known
        same = peer if peer == more.peer else None
        more = _Sum(max(end_s, more.end_s), size_bytes + more.size_bytes, same)
    sums[device] = more
