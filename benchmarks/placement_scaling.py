"""What contraction, placement and assembly cost, by devices and tasks.

Planned: Multitask-CLIP, its tasks repeated under new names, drafted by `spindle`. Random: stages
filled with slices of random tasks and sizes, so that nearly no slice stays where it was: far worse
than what a planner makes.

    python benchmarks/placement_scaling.py            # all cases, about half a minute
    python benchmarks/placement_scaling.py --quick    # up to 64 devices
"""

import random
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from spindle_sim.cluster import parse_cluster
from spindle_sim.estimate import Estimator
from spindle_sim.planner.assemble import assemble
from spindle_sim.planner.context import Context, Settings
from spindle_sim.planner.contract import contract
from spindle_sim.planner.metagraph import DraftSlice
from spindle_sim.planner.place import place
from spindle_sim.planner.strategies.spindle import spindle
from spindle_sim.workload import Workload, builtin_workload

CASES = ((2, 4), (8, 10), (32, 40), (128, 100))  # nodes of eight A800, tasks
SIZES = (1, 2, 4, 8, 8, 16, 16, 32, 64)


def main() -> None:
    """Print one line for each case."""
    cases = CASES[:2] if "--quick" in sys.argv[1:] else CASES
    print(
        f"{'drafts':<9}{'devices':>8}{'tasks':>6}{'slices':>8}{'contract':>11}{'place':>9}{'assemble':>10}"
    )
    for nodes, tasks in cases:
        start_s = time.perf_counter()
        context = _context(nodes, tasks)
        contract_s = time.perf_counter() - start_s
        planned = next(iter(spindle(context)))
        _print("planned", context, planned, tasks, contract_s)
        _print("random", context, _random_drafts(context), tasks, contract_s)


def _print(
    kind: str, context: Context, drafts: Sequence[DraftSlice], tasks: int, contract_s: float
) -> None:
    for draft in drafts:
        context.curve(draft.metaop)  # evaluated by the strategy in a real run
    start_s = time.perf_counter()
    placements = place(context, drafts)
    placed_s = time.perf_counter()
    assemble(context, drafts, placements, strategy="benchmark", optimum_s=0.0)
    end_s = time.perf_counter()
    print(
        f"{kind:<9}{context.cluster.num_devices:>8,}{tasks:>6}{len(drafts):>8,}"
        f"{contract_s:>9.2f} s{placed_s - start_s:>7.2f} s{end_s - placed_s:>8.2f} s"
    )


def _context(nodes: int, tasks: int) -> Context:
    workload = _repeated(builtin_workload("multitask-clip"), tasks)
    cluster = parse_cluster(f"a800:{nodes}x8")
    return Context(
        workload=workload,
        cluster=cluster,
        graph=contract(workload),
        estimator=Estimator(cluster),
        settings=Settings(tp=tuple((module.name, 1) for module in workload.modules)),
    )


def _repeated(workload: Workload, tasks: int) -> Workload:
    # A hundred tasks at once hold more activations than the devices: one sample in eight will do.
    smaller = workload.with_batch_scale(1 / 8)
    count = len(smaller.tasks)
    repeated = [
        replace(smaller.tasks[i % count], name=f"{smaller.tasks[i % count].name}-{i // count}")
        for i in range(tasks)
    ]
    return replace(smaller, tasks=tuple(repeated))


def _random_drafts(context: Context) -> list[DraftSlice]:
    rng = random.Random(0)
    drafts: list[DraftSlice] = []
    stage = 0
    for level in range(context.graph.num_levels):
        left = {node.metaop.id: node.metaop.num_ops for node in context.graph.level(level)}
        while left:
            free = context.cluster.num_devices
            for name in rng.sample(sorted(left), len(left)):
                batch = context.graph.nodes[name].metaop.batch
                size = rng.choice([n for n in SIZES if batch % n == 0])
                if size > free:
                    continue
                free -= size
                count = min(left[name], rng.randint(1, 3))
                first = context.graph.nodes[name].metaop.num_ops - left[name]
                drafts.append(
                    context.draft(
                        name, num_devices=size, stage=stage, first_op=first, num_ops=count
                    )
                )
                left[name] -= count
                if not left[name]:
                    del left[name]
            stage += 1
    return drafts


if __name__ == "__main__":
    main()
