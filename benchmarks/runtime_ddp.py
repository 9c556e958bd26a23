"""`seq` beside plain data parallelism: the same layers, data and optimizer, in the same run.

    python -m benchmarks.runtime_ddp [--workload ofasys] [--ranks 2] [--iterations 20] [--json]

Each round runs one iteration of the engine under `seq`, one of it with its synchronization beside
the backward, and one of torch's DistributedDataParallel, and of DeepSpeed where that is installed.
Prints medians and their ratios to DistributedDataParallel; the first losses must agree.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from spindle_sim.plan import Plan, load_plan, save_plan
from spindle_sim.plan.schedule import operation_order
from spindle_sim.planner import make_plan
from spindle_sim.workload import builtin_workload
from spindle_sim.workload.enlarged import enlarged
from spindle_sim.workload.tiny import tiny
from spindle_torch.buckets import Overlap, parameter_buckets
from spindle_torch.child import STEADY_MEMORY
from spindle_torch.compilation import compile_plan
from spindle_torch.engine import Engine
from spindle_torch.groups import make_groups
from spindle_torch.training import Training, make_training

TASKS = 3
WIDTHS, TOKENS = 8, 8
BUCKET_MB = 25.0  # DistributedDataParallel's
LEARNING_RATE = 1e-3
LIMIT_S = 120.0
TOLERANCE = 1e-4
# Later losses part: what has a gradient of 0 but for rounding (a key's bias) moves either way by
# the whole learning rate under Adam, and systems add up in different orders.
COMPARED_STEPS = 2


def main() -> int:
    """Launch the ranks and print what rank 0 found, or be one rank."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workload", default="ofasys", help="one without contrastive losses")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder is not None:
        run_rank(options.folder, options.iterations)
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_plan(seq_plan(options.workload, options.ranks), folder / "plan")
        subprocess.run(
            [
                *STEADY_MEMORY,
                sys.executable,
                *("-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"),
                f"--nproc-per-node={options.ranks}",
                *("-m", "benchmarks.runtime_ddp"),
                f"--folder={folder}",
                f"--iterations={options.iterations}",
            ],
            check=True,
        )
        found: dict[str, Any] = json.loads((folder / "result").read_text(encoding="utf-8"))
    print(json.dumps(found, indent=2) if options.json else report(found))
    return 0


def seq_plan(workload: str, ranks: int) -> Plan:
    """Plan a small workload under `seq`: every slice on all ranks."""
    from spindle_sim.cli.fidelity import host_cluster

    whole = builtin_workload(workload)
    few = whole.with_first_tasks(min(TASKS, len(whole.tasks)))
    small = enlarged(tiny(few), widths=WIDTHS, tokens=TOKENS)
    return make_plan(small, host_cluster(ranks), "seq")


def report(found: dict[str, Any]) -> str:
    """Give the figures in words."""
    lines = [f"{found['workload']} on {found['ranks']} ranks, {found['iterations']} iterations"]
    for name, figures in found["systems"].items():
        lines.append(
            f"{name:28} {1e3 * figures['median_s']:8.1f} ms, spread {figures['spread']:6.1%},"
            f" {figures['ratio']:.3f} of DistributedDataParallel"
        )
    lines.append(f"DeepSpeed: {found['deepspeed']}")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One way to train: `iterate` gives the loss of this rank and the seconds it took."""

    name: str
    iterate: Callable[[int], tuple[float, float]]


def run_rank(folder: Path, iterations: int) -> None:
    """Run all systems in turns; rank 0 writes the medians of the slowest rank's times."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    plan = load_plan(folder / "plan")
    systems = [
        engine_system(plan, "engine", None),
        engine_system(plan, "engine, synchronizing beside", Overlap.of(BUCKET_MB, "float32")),
        ddp_system(plan),
    ]
    deepspeed, why = deepspeed_system(plan)
    systems += [deepspeed] if deepspeed else []
    times: dict[str, list[float]] = {system.name: [] for system in systems}
    for step in range(iterations + 1):
        losses = []
        for system in systems:
            loss, took_s = system.iterate(step)
            slowest = torch.tensor([took_s], dtype=torch.float64)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            total = torch.tensor([loss], dtype=torch.float64)
            dist.all_reduce(total)
            losses.append(total.item())
            if step:  # the first warms up
                times[system.name].append(slowest.item())
        if step < COMPARED_STEPS:
            assert max(losses) - min(losses) <= TOLERANCE * max(losses), f"step {step}: {losses}"
    if dist.get_rank() == 0:
        base_s = statistics.median(times["DistributedDataParallel"])
        figures = {name: figures_of(found, base_s) for name, found in times.items()}
        document = {
            "workload": plan.workload.name,
            "ranks": dist.get_world_size(),
            "iterations": iterations,
            "systems": figures,
            "deepspeed": why,
        }
        (folder / "result").write_text(json.dumps(document), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def figures_of(times_s: list[float], base_s: float) -> dict[str, float]:
    """Give median, interquartile range over it, and the ratio to the base."""
    first_s, median_s, third_s = statistics.quantiles(times_s, n=4, method="inclusive")
    return {
        "median_s": median_s,
        "spread": (third_s - first_s) / median_s,
        "ratio": median_s / base_s,
    }


def engine_system(plan: Plan, name: str, overlap: Overlap | None) -> System:
    """Train with the project's engine."""
    rank, device = dist.get_rank(), torch.device("cpu")
    groups = make_groups(plan, rank, device, LIMIT_S)
    pool = tuple(bucket.group for bucket in parameter_buckets(plan, overlap))
    training = make_training(
        plan, rank, groups, seed=0, dtype=torch.float32, device=device, pool=pool
    )
    engine = Engine(
        plan=plan,
        program=compile_plan(plan, overlap=overlap)[rank],
        work=training,
        groups=groups,
        clock_s=time.perf_counter,
    )

    def iterate(step: int) -> tuple[float, float]:
        start_s, _ = engine.run_iteration(step)
        ended_s = time.perf_counter()
        return sum(training.losses().values()), ended_s - start_s

    return System(name=name, iterate=iterate)


class Plain(nn.Module):
    """The whole model as one module: its forward is every task's loss on this rank's samples."""

    def __init__(self, plan: Plan, scale: float) -> None:
        super().__init__()
        rank, device = dist.get_rank(), torch.device("cpu")
        groups = make_groups(plan, rank, device, LIMIT_S)
        self.training_work = make_training(
            plan, rank, groups, seed=0, dtype=torch.float32, device=device
        )
        self.layers = nn.ModuleList(self.training_work.model.layers.values())
        self.plan, self.scale = plan, scale
        self.order = [
            plan.slices[operation.slice_index]
            for operation in operation_order(plan)
            if not operation.backward
        ]

    def forward(self) -> torch.Tensor:
        """Give the loss, `scale` times as large."""
        work: Training = self.training_work
        outputs: dict[str, torch.Tensor] = {}
        losses = []
        for item in self.order:
            flows = work._inputs.get(item.id, ())
            inputs = [outputs[self.plan.flows[index].source_slice] for index in flows]
            output, loss = work.model.forward(work._calls[item.id, 0], inputs)
            if output is not None:
                outputs[item.id] = output
            if loss is not None:
                losses.append(loss)
        return self.scale * torch.stack(losses).sum()


def ddp_system(plan: Plan) -> System:
    """Train with torch's DistributedDataParallel, which takes the mean over ranks."""
    world = dist.get_world_size()
    plain = Plain(plan, float(world))
    model = DistributedDataParallel(plain)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, foreach=False)

    def iterate(step: int) -> tuple[float, float]:
        plain.training_work.prepare(step)
        dist.barrier()
        start_s = time.perf_counter()
        loss = model()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item() / world, time.perf_counter() - start_s

    return System(name="DistributedDataParallel", iterate=iterate)


def deepspeed_system(plan: Plan) -> tuple[System | None, str]:
    """Train with DeepSpeed without ZeRO, or say why it isn't there."""
    if find_spec("deepspeed") is None:
        return None, "not installed"
    import deepspeed  # type: ignore[import-not-found, unused-ignore]

    world = dist.get_world_size()
    plain = Plain(plan, float(world))
    optimizer = torch.optim.AdamW(plain.parameters(), lr=LEARNING_RATE, foreach=False)
    engine, _, _, _ = deepspeed.initialize(
        model=plain,
        optimizer=optimizer,
        config={
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": {"stage": 0},
            "zero_allow_untested_optimizer": True,
        },
    )

    def iterate(step: int) -> tuple[float, float]:
        plain.training_work.prepare(step)
        dist.barrier()
        start_s = time.perf_counter()
        loss = engine()
        engine.backward(loss)
        engine.step()
        return float(loss.item()) / world, time.perf_counter() - start_s

    return System(name="DeepSpeed", iterate=iterate), f"{deepspeed.__version__}"


if __name__ == "__main__":
    sys.exit(main())
