"""Light MetaOps go with a heavy neighbour: where it runs, just before or just after it.

Stems, pooled heads, adapters and losses compute next to nothing, but their data flows are as large
as their neighbours'. Given allocations of their own they would be cheapest on one device, and all
of a tower's activations would have to travel there. Aligning them on the neighbour's device group
is section 3.5's guideline for data flows, met before placement instead of by it.
"""

from dataclasses import dataclass

from spindle_sim.planner.context import Context

__all__ = ["Attachment", "attach"]

# A MetaOp is light beside a neighbour with this many times its device-time.
LIGHT = 20.0
# A host may be so many flows away: a loss follows the tower behind its head.
MAX_HOPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """The hosts of a light MetaOp: those before it, or, where it begins a task, those after it."""

    hosts: tuple[str, ...]
    follows: bool
    hops: int  # flows between it and its hosts, at most


def attach(context: Context) -> dict[str, Attachment]:
    """Give the light MetaOps and their hosts, in topological order."""
    device_s = {m: _device_seconds(context, m) for m in context.graph.nodes}
    before: dict[str, list[str]] = {m: [] for m in context.graph.nodes}
    after: dict[str, list[str]] = {m: [] for m in context.graph.nodes}
    for edge in context.graph.edges:
        after[edge.source].append(edge.target)
        before[edge.target].append(edge.source)
    heavy = {
        m
        for m in context.graph.nodes
        if not _hosts(m, before, device_s)[0] and not _hosts(m, after, device_s)[0]
    }
    while True:
        attached = _attached(context, heavy, before, after, device_s)
        astray = {m for m in attached if _out_of_order(m, attached, before, after)}
        if not astray:
            return attached
        heavy |= astray


def _attached(
    context: Context,
    heavy: set[str],
    before: dict[str, list[str]],
    after: dict[str, list[str]],
    device_s: dict[str, float],
) -> dict[str, Attachment]:
    attached = {}
    for metaop in context.graph.nodes:
        if metaop in heavy:
            continue
        hosts, hops = _hosts(metaop, before, device_s, among=heavy)
        follows = bool(hosts)
        if not follows:
            hosts, hops = _hosts(metaop, after, device_s, among=heavy)
        attached[metaop] = Attachment(hosts=hosts, follows=follows, hops=hops)
    return attached


def _out_of_order(
    metaop: str,
    attached: dict[str, Attachment],
    before: dict[str, list[str]],
    after: dict[str, list[str]],
) -> bool:
    """Tell whether running next to its hosts would put a MetaOp on the wrong side of a flow."""
    own = attached[metaop]
    if not own.hosts:
        return True
    for neighbour in before[metaop] if own.follows else after[metaop]:
        other = attached.get(neighbour)
        if other is None:
            if neighbour not in own.hosts:
                return True
        elif (
            other.follows != own.follows
            or not set(other.hosts) <= set(own.hosts)
            or other.hops >= own.hops
        ):
            return True
    return False


def _device_seconds(context: Context, metaop: str) -> float:
    times = context.times_s(metaop)
    return context.graph.nodes[metaop].metaop.num_ops * min(n * s for n, s in times.items())


def _hosts(
    metaop: str,
    neighbours: dict[str, list[str]],
    device_s: dict[str, float],
    *,
    among: set[str] | None = None,
) -> tuple[tuple[str, ...], int]:
    """Give the nearest MetaOps along `neighbours` that are heavy enough, and how far they are."""
    found: dict[str, int] = {}
    reached = {metaop}
    wave = [metaop]
    for hops in range(1, MAX_HOPS + 1):
        ahead = dict.fromkeys(n for m in wave for n in neighbours[m] if n not in reached)
        reached.update(ahead)
        wave = []
        for name in ahead:
            if device_s[name] >= LIGHT * device_s[metaop] and (among is None or name in among):
                found[name] = hops
            else:
                wave.append(name)
    return tuple(found), max(found.values(), default=0)
