"""A rank for tests: runs every plan in a folder and leaves losses, gradients and parameters.

    python probe.py FOLDER RANK RANKS [PLACE]

PLACE is "cpu", "nccl" (each rank on a GPU of its own), or "staged-cpu" and "staged-cuda", where
ranks communicate as `staged.py` has it and share one GPU.

One process for many plans, since starting torch takes longer than a tiny plan. What stands in
PLAN.options (JSON: `steps`, `clip_norm`, `bucket_mb`, `autocast`) is for runs in one precision
alone: float64, or float32 under autocast to bf16.
"""

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map_only

from spindle_sim.plan import load_plan
from spindle_sim.timeline import Kind
from spindle_torch.buckets import Overlap, parameter_buckets
from spindle_torch.clocks import measured_offset_s, shared_clock
from spindle_torch.compilation import compile_plan
from spindle_torch.engine import Engine
from spindle_torch.events import Event
from spindle_torch.groups import make_groups
from spindle_torch.sharded_optimizer import ShardedOptimizer
from spindle_torch.training import Training, make_training
from tests.spindle_torch.staged import install

STEPS = {"float32": 1, "float64": 2}


@dataclass
class Probe:
    """The real work, and a copy of all gradients before each step."""

    training: Training
    gradients: dict[str, torch.Tensor]
    most_gathered: int = 0  # of the numbers of divided parameters, whole at once
    most_groups: int = 0  # that they belong to
    most_gradients: int = 0  # numbers of whole gradients, when some of them leave

    def __getattr__(self, name: str) -> object:
        return getattr(self.training, name)

    def gathering(self, group: int) -> tuple[torch.Tensor, torch.Tensor]:
        made = self.training.gathering(group)  # from here on it takes memory
        optimizer = self.training.optimizer
        assert isinstance(optimizer, ShardedOptimizer)
        divided = [item.numbers for item in optimizer.ranges.values() if item.is_divided]
        whole = [item.numel() for item in divided if item.untyped_storage().nbytes()]
        self.most_gathered = max(self.most_gathered, sum(whole))
        self.most_groups = max(self.most_groups, len(whole))
        return made

    def gradient(self, group: int) -> torch.Tensor:
        shared = {
            key
            for item in self.training.pool
            if len(item.devices) > 1
            for key in item.operators
            if key in self.training.model.layers
        }
        whole = sum(
            parameter.numel()
            for key in shared
            for _, parameter in self.training.model.named_parameters(key)
            if parameter.grad is not None
        )
        self.most_gradients = max(self.most_gradients, whole)
        return self.training.gradient(group)

    def step(self) -> None:
        self.gradients = {
            name: parameter.grad.clone()
            for name, parameter in named(self.training)
            if parameter.grad is not None
        }
        if isinstance(self.training.optimizer, ShardedOptimizer):
            list(self.training.optimizer.gradients())  # taken only now in groups of one rank
        self.gradients |= gathered(self.training, lambda numbers: numbers.grad)
        self.training.step()


def named(training: Training) -> list[tuple[str, torch.nn.Parameter]]:
    return [
        (f"{name}@{key.shard}/{key.num_shards}", parameter)
        for key in training.model.layers
        for name, parameter in training.model.named_parameters(key)
    ]


def gathered(
    training: Training, of: Callable[[torch.Tensor], torch.Tensor | None]
) -> dict[str, torch.Tensor]:
    """Put together what ranks hold in ranges, of the numbers that they step; nothing without."""
    optimizer = training.optimizer
    if not isinstance(optimizer, ShardedOptimizer):
        return {}
    found: dict[int, torch.Tensor] = {}
    for index, held in optimizer.ranges.items():
        own = torch.cat([values for part in held.parts if (values := of(part.numbers)) is not None])
        members = training.groups.members(training.pool[index].devices)
        parts = [own] if members is None else [torch.empty_like(own) for _ in members.ranks]
        if members is not None:
            dist.all_gather(parts, own.detach(), group=members.group)
        numbers, begin = torch.cat(parts).detach(), 0
        for parameter in held.parameters:
            end = begin + parameter.numel()
            found[id(parameter)] = numbers[begin:end].view(parameter.shape).clone()
            begin = end
    return {
        name: found[id(parameter)] for name, parameter in named(training) if id(parameter) in found
    }


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


def run(
    path: Path,
    rank: int,
    dtype: str,
    place: str = "cpu",
    made: dict[tuple[int, ...], dist.ProcessGroup] | None = None,
) -> dict[str, Any]:
    """Run a plan; give what it leaves. With `made` groups stay, and are taken from there."""
    plan = load_plan(path)
    given = options(path)
    device = torch.device(place.removeprefix("staged-").replace("nccl", f"cuda:{rank}"))
    meeting = device if place == "nccl" else torch.device("cpu")
    groups = make_groups(plan, rank, meeting, 60.0, made)
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
        clock_s=shared_clock(rank),
        clip_norm=given.get("clip_norm", math.inf),
    )
    found = []
    for step in range(int(given.get("steps", STEPS[dtype]))):
        _, events = engine.run_iteration(step)
        left = {"losses": training.losses(), "gradients": probe.gradients}
        found.append(left | noted(events))
    held = {
        name: parameter.detach()
        for name, parameter in named(training)
        if parameter.untyped_storage().nbytes()
    }
    run_left = {
        "steps": found,
        "parameters": held | gathered(training, lambda numbers: numbers),
        "stepped": stepped(training),
        "held": sum(parameter.numel() for parameter in held.values()),
        "gathered": probe.most_gathered,
        "groups": probe.most_groups,
        "whole_gradients": probe.most_gradients,
    }
    if made is None:
        for group in filter(None, (groups.world, *groups.by_ranks.values())):
            dist.destroy_process_group(group)
    found_left: dict[str, Any] = tree_map_only(torch.Tensor, brought, run_left)
    return found_left


def noted(events: Sequence[Event]) -> dict[str, Any]:
    return {
        "sent_bytes": sum(event.size_bytes for event in events if event.kind is Kind.SEND),
        "synced": [(str(e.kind), e.group, e.launches, e.start_s, e.end_s) for e in events],
    }


def brought(tensor: torch.Tensor) -> torch.Tensor:
    """Give a tensor without what is only of the GPU it lies on."""
    return tensor.cpu() if tensor.is_cuda else tensor


def main() -> None:
    folder, rank, ranks = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    place = sys.argv[4] if len(sys.argv) > 4 else "cpu"
    torch.set_num_threads(1)
    if place != "cpu" and place != "staged-cpu":
        torch.cuda.set_device(rank if place == "nccl" else 0)
    if place.startswith("staged"):
        install(pytest.MonkeyPatch())
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'rendezvous'}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=60),
    )
    if ranks > 1 and rank in (0, 1):  # on one host the clocks agree
        offset_s = measured_offset_s(rank, 1)
        assert abs(offset_s) < 0.01, f"{offset_s} s"
    for path in sorted(folder.glob("*.json")):
        for dtype in dtypes(path):
            left = run(path, rank, dtype, place)
            torch.save(left, path.with_suffix(f".{dtype}.{rank}.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
