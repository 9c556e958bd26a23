"""What placement is tested with: contexts of small workloads, and random drafts for them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from hypothesis import strategies as st

from spindle_sim.cluster import Cluster
from spindle_sim.estimate import Estimator
from spindle_sim.planner.context import Context, Settings
from spindle_sim.planner.contract import contract
from spindle_sim.planner.metagraph import DraftSlice
from spindle_sim.planner.recompute import split
from spindle_sim.workload import Block, DataFlow, Module, ModuleUse, Task, Workload
from tests.builders import make_cluster, make_operator


def make_context(
    modules: Mapping[str, int],
    chains: Mapping[str, tuple[str, ...]],
    cluster: Cluster,
    *,
    tp: Mapping[str, int] | None = None,
    repeat: int = 1,
    batch: int = 16,
    output_bytes: float | Mapping[str, float] = 1e6,
    zero1: bool = False,
    recompute: Iterable[str] = (),
    frozen: Iterable[str] = (),
) -> Context:
    """Give the context of tasks that are chains of modules: module name -> parameters."""
    workload = Workload(
        name="small",
        modules=tuple(
            Module(
                name=name,
                blocks=(
                    Block(
                        name="x",
                        operator=make_operator(
                            name,
                            parameters,
                            output_bytes if isinstance(output_bytes, float) else output_bytes[name],
                        ),
                        repeat=repeat,
                    ),
                ),
                frozen=name in set(frozen),
            )
            for name, parameters in modules.items()
        ),
        tasks=tuple(
            Task(
                name=task,
                batch_size=batch,
                uses=tuple(ModuleUse(name=name, module=name, tokens=1) for name in chain),
                flows=tuple(DataFlow(source=a, target=b) for a, b in pairwise(chain)),
            )
            for task, chain in chains.items()
        ),
    )
    return Context(
        workload=workload,
        cluster=cluster,
        graph=contract(workload),
        estimator=Estimator(cluster),
        settings=Settings(
            tp=tuple((name, (tp or {}).get(name, 1)) for name in modules),
            zero1=zero1,
            recompute=dict.fromkeys(recompute, repeat),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Drafts with their context."""

    context: Context
    drafts: tuple[DraftSlice, ...]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Give drafts of two to four tasks that share modules, as a scheduler could make them."""
    cluster = draw(
        st.sampled_from(
            [
                make_cluster(1, 1),
                make_cluster(1, 4),
                make_cluster(2, 4),
                make_cluster(2, 4, island_size=2),
                make_cluster(3, 2),
                make_cluster(4, 8),
            ]
        )
    )
    names = ("a", "b", "c", "d")
    degrees = [tp for tp in (1, 2, 4) if cluster.island_size % tp == 0]
    tasks = draw(st.integers(1, 4))
    chains = {
        f"t{index}": tuple(
            draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
        )
        for index in range(tasks)
    }
    used = [name for name in names if any(name in chain for chain in chains.values())]
    chosen = draw(
        st.sets(st.sampled_from(sorted(f"{t}/{m}/x" for t, c in chains.items() for m in c)))
    )
    context = make_context(
        {name: draw(st.sampled_from([0, 10_000, 1_000_000])) for name in used},
        chains,
        cluster,
        tp={name: draw(st.sampled_from(degrees)) for name in used},
        repeat=draw(st.integers(1, 5)),
        batch=draw(st.sampled_from([6, 12, 16])),
        zero1=draw(st.booleans()),
        recompute=chosen,
        frozen=draw(st.sets(st.sampled_from(used), max_size=1)),
    )
    drafts: list[DraftSlice] = []
    if draw(st.booleans()):
        for index, task in enumerate(chains):
            drafts += _drafts(draw, context, context.metaops_of(task), index)
    else:
        drafts = _drafts(draw, context, list(context.graph.nodes), 0)
    return Case(context=context, drafts=split(drafts, context.settings.recompute))


def _drafts(
    draw: st.DrawFn, context: Context, metaops: Iterable[str], round_index: int
) -> list[DraftSlice]:
    nodes = context.graph.nodes
    left = {name: nodes[name].metaop.num_ops for name in metaops}
    drafts: list[DraftSlice] = []
    stage = 0
    while left:
        ready = [m for m in left if left.keys().isdisjoint(nodes[m].metaop.predecessors)]
        free = context.cluster.num_devices
        for name in draw(st.permutations(ready)):
            sizes = [n for n in context.curve(name).allocations if n <= free]
            if not sizes:
                continue
            size = draw(st.sampled_from(sizes))
            free -= size
            count = draw(st.integers(1, left[name]))
            first = nodes[name].metaop.num_ops - left[name]
            drafts.append(
                context.draft(
                    name,
                    num_devices=size,
                    stage=stage,
                    round_index=round_index,
                    first_op=first,
                    num_ops=count,
                )
            )
            left[name] -= count
            if not left[name]:
                del left[name]
        stage += 1
    return drafts
