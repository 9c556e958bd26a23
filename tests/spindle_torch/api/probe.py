"""A rank for tests: trains models by the plans in a folder, leaves losses and gradients.

    python probe.py FOLDER RANK RANKS

A plan of a model lies in MODEL.NUMBER.json.
"""

import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from spindle_sim.plan import load_plan
from spindle_torch.api.brought import BroughtModel, check_plan
from spindle_torch.clocks import shared_clock
from spindle_torch.compilation import compile_plan
from spindle_torch.engine import Engine
from spindle_torch.groups import make_groups
from spindle_torch.training import Training, make_training
from tests.spindle_torch.api.models import build

STEPS = 2


class Probe:
    """The real work, and a copy of all gradients before each step."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.gradients: dict[str, torch.Tensor] = {}

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
    return [item for key in training.model.layers for item in training.model.named_parameters(key)]


def run(path: Path, rank: int) -> None:
    plan = load_plan(path)
    split = build(path.name.split(".")[0])
    check_plan(split, plan)
    device = torch.device("cpu")
    groups = make_groups(plan, rank, device, 60.0)
    training = make_training(
        plan,
        rank,
        groups,
        seed=0,
        dtype=torch.float64,
        device=device,
        brought=BroughtModel(split=split),
    )
    probe = Probe(training)
    engine = Engine(
        plan=plan,
        program=compile_plan(plan)[rank],
        work=probe,  # type: ignore[arg-type]
        groups=groups,
        clock_s=shared_clock(rank),
    )
    found = []
    for step in range(STEPS):
        engine.run_iteration(step)
        found.append({"losses": training.losses(), "gradients": probe.gradients})
    parameters = {name: parameter.detach() for name, parameter in named(training)}
    torch.save({"steps": found, "parameters": parameters}, path.with_suffix(f".{rank}.pt"))
    for group in groups.by_ranks.values():
        dist.destroy_process_group(group)


def main() -> None:
    folder, rank, ranks = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'rendezvous'}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=60),
    )
    for path in sorted(folder.glob("*.json")):
        run(path, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
