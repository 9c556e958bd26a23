"""How the cost of one simulated iteration grows with devices, tasks and slices.

Planned: Multitask-CLIP, its tasks repeated under new names, planned by `spindle`.

Pipelined: a GPT of 96 layers and 175 billion parameters (width 12288, 2048 tokens), stated by hand
as tensor x pipeline x data parallelism with micro-batches of one sample, 1F1B, interleaved where a
rank has several chunks.

Synthetic: every stage fills the cluster with slices of tasks drawn at random, on runs of devices
that begin elsewhere each time, so that nearly every boundary is a resharding between other devices,
mostly across nodes: far worse than what a planner makes.

    python benchmarks/simulator_scaling.py            # the tables of docs/simulator.md
    python benchmarks/simulator_scaling.py --quick    # the small half of them
"""

import random
import resource
import sys
import time
from dataclasses import replace

from spindle_sim.cluster import Cluster, Gpu, parse_cluster
from spindle_sim.plan import (
    FORMAT_VERSION,
    Backward,
    Flow,
    InputHashes,
    MetaOp,
    ParameterGroup,
    ParameterRange,
    Plan,
    Slice,
)
from spindle_sim.plan.schedule import schedule
from spindle_sim.planner import make_plan
from spindle_sim.planner.strategies.parallel import ParallelConfig, parallel_plan
from spindle_sim.simulator import simulate
from spindle_sim.workload import (
    Block,
    Custom,
    Module,
    ModuleUse,
    Task,
    TransformerLayer,
    Workload,
    builtin_workload,
)

PLANNED = (  # nodes of eight A800, tasks
    (2, 10),
    (8, 10),
    (32, 40),
    (128, 100),
)
PIPELINED = (  # tp, pp, dp, model chunks of a pipeline rank, micro-batches
    (8, 8, 1, 1, 32),
    (8, 16, 4, 1, 128),
    (8, 16, 4, 2, 128),
)
SYNTHETIC = (  # devices, tasks, slices
    (8, 4, 100),
    (16, 4, 100),
    (32, 10, 200),
    (64, 10, 200),
    (64, 10, 400),
    (64, 10, 800),
    (256, 30, 1500),
    (1024, 100, 3000),
    (1024, 100, 6000),
)
NUM_MODULES = 10
OPERATORS = 128  # of a module, dealt out one after the other
SAMPLE_BYTES = 257 * 1280 * 2  # what a ViT-Huge layer hands on
BATCH = 512


def main() -> None:
    """Print one line for each case."""
    quick = "--quick" in sys.argv[1:]
    print("plan       devices  tasks  slices   spans  schedule_s  simulate_s  (CPU)  process_MB")
    for nodes, tasks in PLANNED[:2] if quick else PLANNED:
        measure("planned", tasks, planned(nodes, tasks))
    for tp, pp, dp, chunks, micro_batches in PIPELINED[:1] if quick else PIPELINED:
        config = ParallelConfig(tp=tp, pp=pp, dp=dp, micro_batch=1, chunks=chunks)
        measure("pipelined", 1, pipelined(config, dp * micro_batches))
    for devices, tasks, slices in SYNTHETIC[:5] if quick else SYNTHETIC:
        plan = synthetic_plan(devices, tasks, slices, random.Random(0))
        measure("synthetic", tasks, plan)


def measure(name: str, num_tasks: int, plan: Plan) -> None:
    """Simulate one plan and print what it took."""
    began = time.perf_counter()
    schedule(plan)
    scheduled, cpu = time.perf_counter(), time.process_time()
    timeline = simulate(plan)
    simulated, cpu = time.perf_counter(), time.process_time() - cpu
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{name:9} {plan.cluster.num_devices:8} {num_tasks:6} {len(plan.slices):7}"
        f" {len(timeline.spans):7} {scheduled - began:11.3f} {simulated - scheduled:11.3f}"
        f" {cpu:6.2f} {peak_mb:11.0f}",
        flush=True,
    )


def planned(num_nodes: int, num_tasks: int) -> Plan:
    """Give the plan of `spindle` for so many tasks."""
    workload = builtin_workload("multitask-clip")
    tasks = [
        replace(task, name=f"{task.name}-{copy}")
        for copy in range(-(-num_tasks // len(workload.tasks)))
        for task in workload.tasks
    ]
    workload = replace(workload, tasks=tuple(tasks[:num_tasks]))
    return make_plan(workload, parse_cluster(f"a800:{num_nodes}x8"), "spindle")


def pipelined(config: ParallelConfig, batch: int) -> Plan:
    """Give the plan of a GPT trained on as many nodes of eight A800 as the configuration needs."""
    layer = TransformerLayer(width=12288, heads=96, mlp_width=4 * 12288, causal=True)
    module = Module(name="gpt", blocks=(Block(name="layers", operator=layer, repeat=96),))
    use = ModuleUse(name="gpt", module="gpt", tokens=2048)
    task = Task(name="train", batch_size=batch, uses=(use,))
    workload = Workload(name="gpt", modules=(module,), tasks=(task,))
    cluster = parse_cluster(f"a800:{config.num_devices // 8}x8")
    return parallel_plan(workload, cluster, {"train": config}, zero_stage=1)


def synthetic_plan(num_devices: int, num_tasks: int, num_slices: int, rng: random.Random) -> Plan:
    """Give a plan that fills all devices stage by stage."""
    operator = Custom(name="layer", parameters=19_680_000, output_bytes=float(SAMPLE_BYTES))
    modules = tuple(
        Module(name=f"m{i}", blocks=(Block(name="x", operator=operator, repeat=OPERATORS),))
        for i in range(NUM_MODULES)
    )
    uses = [(f"t{i}", f"m{i % NUM_MODULES}") for i in range(num_tasks)]
    workload = Workload(
        name="synthetic",
        modules=modules[: min(NUM_MODULES, num_tasks)],
        tasks=tuple(
            Task(
                name=task,
                batch_size=BATCH,
                uses=(ModuleUse(name=module, module=module, tokens=1),),
            )
            for task, module in uses
        ),
    )
    metaops = tuple(_metaop(task, module) for task, module in uses)
    slices = _deal(metaops, num_devices, num_slices, rng)
    flows = _flows(slices)
    plan = Plan(
        format_version=FORMAT_VERSION,
        strategy="synthetic",
        inputs=InputHashes(workload="0" * 64, cluster="0" * 64, profile="0" * 64),
        workload=workload,
        cluster=_cluster(num_devices),
        metaops=metaops,
        slices=slices,
        flows=flows,
        parameter_groups=_groups(metaops, slices),
        memory=(),
        optimum_s=0.0,
    )
    times = schedule(plan).by_id()
    return replace(
        plan,
        slices=tuple(replace(item, start_s=times[item.id].forward_start_s) for item in slices),
    )


def _cluster(num_devices: int) -> Cluster:
    gpu = Gpu(
        name="A800-SXM4-80GB",
        memory_bytes=80 * 2.0**30,
        memory_bandwidth_bytes_per_s=2039e9,
        peak_flops=312e12,
        link="NVLink3 x8",
        link_bandwidth_bytes_per_s=200e9,
        collective_bandwidth_bytes_per_s=160e9,
        source="the catalogue's A800",
    )
    return Cluster(
        name="synthetic",
        gpu=gpu,
        num_nodes=num_devices // 8,
        devices_per_node=8,
        island_size=8,
        nics_per_node=1,
        nic_bandwidth_bytes_per_s=50e9,
    )


def _metaop(task: str, module: str) -> MetaOp:
    return MetaOp(
        id=f"{task}/{module}/x",
        task=task,
        module=module,
        kind="custom",
        num_ops=OPERATORS,
        batch=BATCH,
        level=0,
        predecessors=(),
        parameter_set=f"{module}/x",
        parameters=19_680_000,
        sharded_parameters=0,
        frozen=False,
        backward=Backward.FULL,
        flops=1e12,
        input_bytes=float(SAMPLE_BYTES),
        output_bytes=float(SAMPLE_BYTES),
        saved_bytes=0.0,
        saved_replicated_bytes=1e7,
    )


def _deal(
    metaops: tuple[MetaOp, ...], num_devices: int, num_slices: int, rng: random.Random
) -> tuple[Slice, ...]:
    """Fill stage after stage with slices of random sizes, until there are enough."""
    slices: list[Slice] = []
    first_op = dict.fromkeys((metaop.id for metaop in metaops), 0)
    stage = 0
    while len(slices) < num_slices:
        free, offset = num_devices, rng.randrange(num_devices)
        for metaop in rng.sample(metaops, len(metaops)):
            if not free or first_op[metaop.id] == OPERATORS:
                continue
            sizes = [2**k for k in range(10) if 2**k <= free and 2**k <= max(1, num_devices // 2)]
            # Small groups are the rule, large ones the exception.
            size = rng.choices(sizes, [1 / k for k in range(1, len(sizes) + 1)])[0]
            start = offset + num_devices - free
            slices.append(
                Slice(
                    id=f"s{len(slices)}",
                    metaop=metaop.id,
                    first_op=first_op[metaop.id],
                    num_ops=1,
                    stage=stage,
                    devices=tuple(sorted((start + i) % num_devices for i in range(size))),
                    dp=size,
                    tp=1,
                    forward_s=rng.uniform(5e-3, 10e-3),
                    backward_s=rng.uniform(10e-3, 20e-3),
                    start_s=0.0,
                )
            )
            first_op[metaop.id] += 1
            free -= size
        stage += 1
        assert any(used < OPERATORS for used in first_op.values()), "too many slices asked for"
    return tuple(slices)


def _flows(slices: tuple[Slice, ...]) -> tuple[Flow, ...]:
    last: dict[str, Slice] = {}
    flows = []
    for item in slices:
        if item.metaop in last:
            flows.append(
                Flow(
                    source_slice=last[item.metaop].id,
                    target_slice=item.id,
                    bytes=float(BATCH * SAMPLE_BYTES),
                    gradient=True,
                )
            )
        last[item.metaop] = item
    return tuple(flows)


def _groups(metaops: tuple[MetaOp, ...], slices: tuple[Slice, ...]) -> tuple[ParameterGroup, ...]:
    sets = {metaop.id: metaop.parameter_set for metaop in metaops}
    places: dict[tuple[str, int], set[int]] = {}
    for item in slices:
        places.setdefault((sets[item.metaop], item.first_op), set()).update(item.devices)
    return tuple(
        ParameterGroup(
            devices=tuple(sorted(devices)),
            parameter_sets=(ParameterRange(parameter_set=name, first_op=op, num_ops=1),),
            bytes=2.0 * 19_680_000,
        )
        for (name, op), devices in sorted(places.items())
    )


if __name__ == "__main__":
    main()
