"""Activations and gradients between slices: a resharding as messages on the network.

All that one device sends another at one boundary is one message. Messages over the same links and
of the same size progress alike, so they are one demand on the network with a load of their number.
"""

from dataclasses import dataclass

import simpy
from simpy.events import Event

from spindle_sim.plan import Slice
from spindle_sim.simulator.links import Links
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
            Demand(
                size_bytes=size_bytes,
                latency_s=latency_s,
                loads=tuple((link, float(len(members))) for link in links),
            )
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
        sums: dict[tuple[int, Kind], tuple[float, float, set[int]]] = {}
        for end_s, pieces in ended:
            for piece in pieces:
                for device, kind, peer in _roles(piece):
                    last_s, size, peers = sums.setdefault((device, kind), (started_s, 0.0, set()))
                    peers.add(peer)
                    sums[device, kind] = max(last_s, end_s), size + piece.bytes, peers
        for (device, kind), (last_s, size, peers) in sums.items():
            owner = boundary.source if kind is Kind.SEND else boundary.target
            only = min(peers) if len(peers) == 1 and kind is not Kind.COPY else None
            self.record.communication.append(
                Note(
                    device,
                    started_s,
                    last_s,
                    kind,
                    boundary.phase,
                    slice=owner.id,
                    metaop=owner.metaop,
                    task=boundary.task,
                    size_bytes=size,
                    peer=only,
                )
            )


def _roles(piece: Piece) -> tuple[tuple[int, Kind, int], ...]:
    if piece.is_local:
        return ((piece.source, Kind.COPY, piece.source),)
    return (
        (piece.source, Kind.SEND, piece.target),
        (piece.target, Kind.RECEIVE, piece.source),
    )
