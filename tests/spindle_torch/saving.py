"""A rank for tests: runs jobs that save their training and go on with that of others.

    python saving.py FOLDER RANK RANKS

FOLDER/jobs.json is a list of `Job`s, run in order in one process each.
"""

import json
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import safe_open

from spindle_sim.backend import CheckpointOptions, ExecutionOptions
from spindle_sim.plan import load_plan
from spindle_torch.checkpoint import begin
from spindle_torch.checkpoint_folder import read_checkpoint
from spindle_torch.checkpoint_index import piece_name
from spindle_torch.clocks import shared_clock
from spindle_torch.compilation import compile_plan
from spindle_torch.engine import Engine
from spindle_torch.groups import make_groups
from spindle_torch.training import make_training

PLAN_ENDING = ".plan"


@dataclass(frozen=True, kw_only=True)
class Job:
    """Steps of a plan, where they begin and where they are saved; paths are within FOLDER."""

    name: str
    plan: str
    steps: int
    every: int | None = None
    keep: int | None = None
    resume: str | None = None
    folder: str | None = None  # else the job's name
    only_save_again: bool = False


@dataclass(frozen=True, kw_only=True)
class Left:
    """What a job leaves on one rank."""

    losses: list[dict[str, float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def run(folder: Path, job: Job, rank: int) -> Left:
    plan = load_plan(folder / f"{job.plan}{PLAN_ENDING}")
    options = ExecutionOptions(
        iterations=job.steps,
        dtype="float64",
        checkpoints=CheckpointOptions(
            folder=str(folder / (job.folder or job.name)),
            every=job.every,
            keep=job.keep,
            resume=None if job.resume is None else str(folder / job.resume),
        ),
    )
    device = torch.device("cpu")
    groups = make_groups(plan, rank, device, 60.0)
    training = make_training(plan, rank, groups, seed=0, dtype=torch.float64, device=device)
    left = Left()
    saver = begin(training, options, left.notes.append)
    if job.only_save_again:
        saver.after_step(saver.first_step)
        return left
    engine = Engine(
        plan=plan,
        program=compile_plan(plan)[rank],
        work=training,
        groups=groups,
        clock_s=shared_clock(rank),
    )
    for step in range(saver.first_step, saver.last_step):
        engine.run_iteration(step)
        left.losses.append(training.losses())
        saver.after_step(step + 1)
    for group in groups.by_ranks.values():
        dist.destroy_process_group(group)
    return left


def whole_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Put a checkpoint's tensors together, by the index alone."""
    found = {}
    with ExitStack() as stack:
        files = {  # each opened once: that reads the names of all that is in it
            path.name: stack.enter_context(safe_open(path, framework="pt"))
            for path in folder.glob("*.safetensors")
        }
        for key, entry in read_checkpoint(folder).tensors.items():
            found[key] = torch.full(entry.shape, float("nan"), dtype=getattr(torch, entry.dtype))
            for chunk in entry.chunks:
                numbers = files[chunk.file].get_tensor(piece_name(key, chunk.offsets))
                box = zip(chunk.offsets, chunk.sizes, strict=True)
                found[key][tuple(slice(begin, begin + size) for begin, size in box)] = numbers
    return found


def main() -> None:
    folder, rank, ranks = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / f'rendezvous-{ranks}'}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=60),
    )
    for item in json.loads((folder / "jobs.json").read_text()):
        left = run(folder, Job(**item), rank)
        (folder / f"{item['name']}.{rank}.left").write_text(json.dumps(asdict(left)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
