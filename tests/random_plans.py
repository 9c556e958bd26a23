"""Random valid plans: `plans` for hypothesis, `seeded_plan` for a seed.

Every decision goes through `choose`, which picks one of a sequence, so that both can drive it.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd

from hypothesis import strategies as st

from spindle_sim.cluster import Cluster
from spindle_sim.plan import MetaOp, Order, Plan, Round
from spindle_sim.workload import Block, DataFlow, Module, ModuleUse, Task, Workload
from tests.builders import Part, make_cluster, make_metaops, make_operator, make_plan

Choose = Callable[[Sequence[int]], int]


@dataclass(slots=True)
class _Dealer:
    """Deals slices to devices so that stages respect both flows and devices."""

    choose: Choose
    cluster: Cluster
    uneven: bool = False
    device_stage: dict[int, int] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)

    def deal(self, metaop: MetaOp, tp: int, round_index: int, after_stage: int) -> int:
        """Split a MetaOp in runs and place each; give the stage of the last."""
        first_op, stage = 0, after_stage
        while first_op < metaop.num_ops:
            num_ops = self.choose(range(1, metaop.num_ops - first_op + 1))
            most = self.cluster.num_devices // tp
            degrees = range(1, most + 1)
            even = [dp for dp in degrees if metaop.batch % dp == 0]
            if self.uneven:  # always for losses that gather their group, of which there are few
                coupled = metaop.kind == "contrastive_loss"
                wrong = [dp for dp in degrees if dp not in even] if coupled else []
                dp = self.choose(wrong or degrees)
            else:
                dp = self.choose(even)
            devices = self._devices(dp, tp)
            stage = 1 + max([stage, *(self.device_stage.get(device, -1) for device in devices)])
            self.device_stage |= dict.fromkeys(devices, stage)
            self.parts.append(
                Part(
                    metaop=metaop.id,
                    devices=devices,
                    first_op=first_op,
                    num_ops=num_ops,
                    tp=tp,
                    stage=stage,
                    round=round_index,
                    forward_s=1e-4 * self.choose(range(1, 60)),
                    backward_s=1e-4 * self.choose(range(1, 90)),
                    recompute=bool(self.choose((0, 0, 0, 1))),
                )
            )
            first_op += num_ops
        return stage

    def _devices(self, dp: int, tp: int) -> tuple[int, ...]:
        # Aligned runs of tp devices never leave an island; data-parallel ranks in any order.
        runs = self.cluster.num_devices // tp
        start = self.choose(range(runs))
        step = self.choose((1, runs - 1)) if runs > 1 else 1
        picked = [(start + step * rank) % runs for rank in range(dp)]
        return tuple(run * tp + shard for run in picked for shard in range(tp))


def random_plan(choose: Choose) -> Plan:
    """Give a valid plan of a random workload on a random cluster."""
    cluster = _random_cluster(choose)  # first: seeds that tests name stand for these very plans
    return dealt_plan(choose, _random_workload(choose), cluster)


def dealt_plan(
    choose: Choose, workload: Workload, cluster: Cluster, *, uneven: bool = False
) -> Plan:
    """Give a valid plan of this workload on this cluster, whose slices are dealt at random.

    An uneven one may have what no valid plan has: degrees that don't divide the batch, or are
    above it, and micro-batches of fewer samples than a slice has ranks.
    """
    metaops = make_metaops(workload)
    degrees = [tp for tp in (1, 2) if cluster.island_size % tp == 0]
    tps = {name: choose(degrees) for name in sorted({m.parameter_set for m in metaops})}
    if uneven:  # few degrees don't divide a batch: as many as there are
        tps |= {m.parameter_set: 1 for m in metaops if m.kind == "contrastive_loss"}
    dealer = _Dealer(choose, cluster, uneven)
    sequential = choose((0, 0, 1))
    rounds = {task.name: index * sequential for index, task in enumerate(workload.tasks)}
    stages: dict[str, int] = {}
    for metaop in metaops:
        after = max((stages[source] for source in metaop.predecessors), default=-1)
        stages[metaop.id] = dealer.deal(
            metaop, tps[metaop.parameter_set], rounds[metaop.task], after
        )
    plan = make_plan(workload, cluster, dealer.parts, zero1=bool(choose((0, 0, 1))))
    return replace(plan, rounds=_cut_rounds(choose, metaops, rounds)) if uneven else plan


def _cut_rounds(
    choose: Choose, metaops: Sequence[MetaOp], rounds: Mapping[str, int]
) -> tuple[Round, ...]:
    """Cut rounds without losses that need their whole batch into any number that divides it."""
    found: list[Round] = []
    for number in sorted(set(rounds.values())):
        own = [metaop for metaop in metaops if rounds[metaop.task] == number]
        common = gcd(*(metaop.batch for metaop in own))
        if any(metaop.kind == "contrastive_loss" for metaop in own):
            continue
        count = choose([count for count in range(1, common + 1) if common % count == 0])
        order = (Order.FLUSH, Order.ACCUMULATE)[choose((0, 1))]
        found.append(Round(round=number, micro_batches=count, order=order))
    return tuple(found)


def seeded_plan(seed: int) -> Plan:
    """Give the random plan of a seed."""
    return random_plan(random.Random(seed).choice)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Random valid plans, shrinkable."""
    return random_plan(lambda options: draw(st.sampled_from(options)))


def _random_cluster(choose: Choose) -> Cluster:
    devices_per_node = choose((1, 2, 4))
    return make_cluster(
        choose((1, 2, 3)),
        devices_per_node,
        island_size=choose([size for size in (1, 2, 4) if devices_per_node % size == 0]),
        nics_per_node=choose((1, 2)),
        nic_efficiency=choose((9, 10)) / 10,
        oversubscription=choose((1, 1, 2)),
        latency_s=choose((0, 1, 5)) * 1e-5,
    )


def _random_workload(choose: Choose) -> Workload:
    modules = tuple(
        Module(
            name=f"m{index}",
            blocks=tuple(
                Block(
                    name=f"b{number}",
                    operator=make_operator(
                        f"m{index}b{number}",
                        choose((0, 1000, 3_000_000, 20_000_000)),
                        choose((1000, 1_000_000, 30_000_000)),
                    ),
                    repeat=choose((1, 2, 4)),
                )
                for number in range(choose((1, 1, 2)))
            ),
            frozen=bool(choose((0, 0, 0, 1))),
        )
        for index in range(choose((1, 2, 3)))
    )
    tasks = []
    for index in range(choose((1, 2, 3))):
        uses = [
            ModuleUse(name=f"u{number}", module=modules[choose(range(len(modules)))].name, tokens=1)
            for number in range(choose((1, 2, 3)))
        ]
        pairs = [(a, b) for b in range(len(uses)) for a in range(b) if choose((0, 1))]
        tasks.append(
            Task(
                name=f"t{index}",
                batch_size=choose((4, 6, 8, 12)),
                uses=tuple(uses),
                flows=tuple(DataFlow(source=f"u{a}", target=f"u{b}") for a, b in pairs),
            )
        )
    used = {use.module for task in tasks for use in task.uses}
    return Workload(
        name="random", modules=tuple(m for m in modules if m.name in used), tasks=tuple(tasks)
    )
