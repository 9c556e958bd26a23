"""Device placement (section 3.5): which devices run each draft, stage by stage."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from spindle_sim.cluster import Cluster
from spindle_sim.errors import InfeasibleError
from spindle_sim.planner.context import Context
from spindle_sim.planner.memory_fit import Ledger
from spindle_sim.planner.metagraph import DraftSlice

__all__ = ["place"]


def place(
    context: Context, drafts: Sequence[DraftSlice], *, method: str = "spindle"
) -> tuple[tuple[int, ...], ...]:
    """Give the devices of each draft, ordered: position d * tp + t is rank t of replica d.

    Raises:
        OutOfMemoryError: a device can't hold what is placed on it.
        InfeasibleError: a tensor-parallel group would span device islands.
    """
    ledger = Ledger(context.graph, context.cluster, context.settings.zero1)
    placements: dict[int, tuple[int, ...]] = {}
    for stage in _stages(drafts):
        next_free = 0
        for index in stage:
            draft = drafts[index]
            devices = draft.devices
            if devices is None:
                first = -(-next_free // draft.tp) * draft.tp
                devices = tuple(range(first, first + draft.num_devices))
                next_free = first + draft.num_devices
            _check(draft, devices, context.cluster)
            ledger.put(draft, devices)
            used = ledger.used_bytes()
            worst = max(devices, key=lambda d: (used[d], -d))
            if used[worst] > ledger.capacity_bytes:
                raise ledger.shortage(worst, float(used[worst]))
            placements[index] = devices
    return tuple(placements[index] for index in range(len(drafts)))


def _stages(drafts: Sequence[DraftSlice]) -> Iterator[list[int]]:
    order = sorted(range(len(drafts)), key=lambda i: (drafts[i].round, drafts[i].stage))
    for _, members in groupby(order, key=lambda i: (drafts[i].round, drafts[i].stage)):
        yield list(members)


def _check(draft: DraftSlice, devices: tuple[int, ...], cluster: Cluster) -> None:
    if devices[-1] >= cluster.num_devices:
        raise InfeasibleError(
            f"{draft.metaop}: stage {draft.stage} of round {draft.round} needs more than the"
            f" {cluster.num_devices} devices of cluster {cluster.name}"
        )
    for start in range(0, len(devices), draft.tp):
        ranks = devices[start : start + draft.tp]
        if len({cluster.island_of(device) for device in ranks}) > 1:
            raise InfeasibleError(
                f"{draft.metaop}: tensor-parallel devices {', '.join(map(str, ranks))} span device"
                f" islands of {cluster.island_size}; use a degree that divides the island size"
            )
