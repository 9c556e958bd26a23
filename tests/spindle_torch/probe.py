"""A rank for tests: runs every plan in a folder and leaves losses, gradients and parameters.

    python probe.py FOLDER RANK RANKS

One process for many plans, since starting torch takes longer than a tiny plan. What stands in
PLAN.options (JSON: `steps`, `clip_norm`, `bucket_mb`, `autocast`) is for runs in one precision
alone: float64, or float32 under autocast to bf16.
"""

import json
import math
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from spindle_sim.plan import load_plan
from spindle_sim.timeline import Kind
from spindle_torch.buckets import Overlap, parameter_buckets
from spindle_torch.clocks import measured_offset_s, shared_clock
from spindle_torch.compilation import compile_plan
from spindle_torch.engine import Engine
from spindle_torch.groups import make_groups
from spindle_torch.sharded_optimizer import ShardedOptimizer
from spindle_torch.training import Training, make_training

STEPS = {"float32": 1, "float64": 2}


@dataclass
class Probe:
    """The real work, and a copy of all gradients before each step."""

    training: Training
    gradients: dict[str, torch.Tensor]

    def __getattr__(self, name: str) -> object:
        return getattr(self.training, name)

    def step(self) -> None:
        self.gradients = {
            name: parameter.grad.clone()
            for name, parameter in named(self.training)
            if parameter.grad is not None
        }
        self.training.step()


def named(training: Training) -> list[tuple[str, torch.nn.Parameter]]:
    return [
        (f"{name}@{key.shard}/{key.num_shards}", parameter)
        for key in training.model.layers
        for name, parameter in training.model.named_parameters(key)
    ]


def options(path: Path) -> dict[str, float]:
    beside = path.with_suffix(".options")
    found: dict[str, float] = json.loads(beside.read_text()) if beside.exists() else {}
    return found


def dtypes(path: Path) -> tuple[str, ...]:
    if options(path).get("autocast"):
        return ("float32",)
    return ("float64",) if options(path) else tuple(STEPS)


def stepped(training: Training) -> int:
    """Count for how many numbers this rank keeps the two moments of AdamW."""
    optimizer = training.optimizer
    if isinstance(optimizer, ShardedOptimizer):
        return optimizer.num_state_numbers // 2
    states = [] if optimizer is None else optimizer.state.values()
    return sum(state["exp_avg"].numel() for state in states)


def run(path: Path, rank: int, dtype: str) -> None:
    plan = load_plan(path)
    given = options(path)
    device = torch.device("cpu")
    groups = make_groups(plan, rank, device, 60.0)
    beside = plan.overlap_sync or "bucket_mb" in given
    overlap = Overlap.of(given.get("bucket_mb", 100.0), dtype) if beside else None
    training = make_training(
        plan,
        rank,
        groups,
        seed=0,
        dtype=getattr(torch, dtype),
        device=device,
        autocast=torch.bfloat16 if given.get("autocast") else None,
        pool=tuple(bucket.group for bucket in parameter_buckets(plan, overlap)),
    )
    probe = Probe(training, {})
    engine = Engine(
        plan=plan,
        program=compile_plan(plan, clip="clip_norm" in given, overlap=overlap)[rank],
        work=probe,  # type: ignore[arg-type]
        groups=groups,
        clock_s=shared_clock(rank, device),
        clip_norm=given.get("clip_norm", math.inf),
    )
    found = []
    for step in range(int(given.get("steps", STEPS[dtype]))):
        _, events = engine.run_iteration(step)
        sent = sum(event.size_bytes for event in events if event.kind is Kind.SEND)
        left = {"losses": training.losses(), "gradients": probe.gradients, "sent_bytes": sent}
        found.append(left)
    parameters = {name: parameter.detach() for name, parameter in named(training)}
    run_left = {"steps": found, "parameters": parameters, "stepped": stepped(training)}
    torch.save(run_left, path.with_suffix(f".{dtype}.{rank}.pt"))
    for group in groups.by_ranks.values():
        dist.destroy_process_group(group)


def main() -> None:
    folder, rank, ranks = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'rendezvous'}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=60),
    )
    if ranks > 1 and rank in (0, 1):  # on one host the clocks agree
        offset_s = measured_offset_s(rank, 1, torch.device("cpu"))
        assert abs(offset_s) < 0.01, f"{offset_s} s"
    for path in sorted(folder.glob("*.json")):
        for dtype in dtypes(path):
            run(path, rank, dtype)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
