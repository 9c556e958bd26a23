"""Random plans run to their end: the engine's real messages and groups, emulated computation.

    python -m benchmarks.runtime_no_hang [--plans 200] [--first 0] [--json]

Prints `ended N of N`; a plan ended once each of its ranks says so. Ranks that wait for longer than
the limit fail, and their launch is over: its other plans haven't ended then, either.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from itertools import count, islice
from pathlib import Path

from spindle_sim.plan import Plan, load_plan, save_plan, validate_plan
from spindle_torch.buckets import Overlap, parameter_buckets
from spindle_torch.compilation import compile_plan
from tests.random_plans import seeded_plan
from tests.stated_plans import stated

RANKS = 4
PLANS_PER_LAUNCH = 50
TIME_SCALE = 0.01
BUCKETS_MB = (None, 0.05, 0.5, 5.0)  # None: whole groups, behind the backward
MESSAGE_LIMIT_S = 20.0
LAUNCH_LIMIT_S = 180.0


def main() -> int:
    """Run the plans of the first seeds, or be one rank of a launch."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--plans", type=int, default=200, help="how many plans to run")
    parser.add_argument("--first", type=int, default=0, help="how many plans to leave out before")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        run_rank(options.folder, options.rank)
        return 0
    begun_s = time.perf_counter()
    plans = islice(random_plans(), options.first, options.first + options.plans)
    ended = 0
    numbered = enumerate(plans, options.first)
    while batch := dict(islice(numbered, PLANS_PER_LAUNCH)):
        ended += launch(batch)
    took_s = time.perf_counter() - begun_s
    if options.json:
        print(json.dumps({"plans": options.plans, "ended": ended, "took_s": took_s}))
    else:
        print(f"ended {ended} of {options.plans} on {RANKS} ranks in {took_s:.0f} s")
    return 0 if ended == options.plans else 1


def random_plans() -> Iterator[Plan]:
    """Give valid plans for the number of ranks, of random workloads, in order of their seeds."""
    for seed in count():
        plan = seeded_plan(seed)
        if plan.cluster.num_devices == RANKS:
            plan = stated(plan)
            assert not validate_plan(plan), f"seed {seed}"
            yield plan


def launch(plans: Mapping[int, Plan]) -> int:
    """Run numbered plans, one after the other in one set of processes; give how many ended."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for index, plan in plans.items():
            save_plan(plan, folder / f"{index:03}.json")
        command = [sys.executable, "-m", "benchmarks.runtime_no_hang", f"--folder={folder}"]
        processes = [subprocess.Popen([*command, f"--rank={rank}"]) for rank in range(RANKS)]
        deadline_s = time.monotonic() + LAUNCH_LIMIT_S
        for process in processes:
            try:
                process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        marks = [{path.stem for path in folder.glob(f"*.ended{rank}")} for rank in range(RANKS)]
        return len(set.intersection(*marks))


def run_rank(folder: Path, rank: int) -> None:
    """Run one rank of each plan.

    Whether a plan clips its gradients, so that all ranks meet, and in which buckets it synchronizes
    them beside the backward, if it does, is drawn by the seed.
    """
    import torch
    import torch.distributed as dist

    from spindle_torch.emulation import Emulation
    from spindle_torch.engine import Engine
    from spindle_torch.groups import make_groups

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'rendezvous'}",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=MESSAGE_LIMIT_S),
    )
    for path in sorted(folder.glob("*.json")):
        plan = load_plan(path)
        drawn = random.Random(path.stem)
        bucket_mb = drawn.choice(BUCKETS_MB)
        groups = make_groups(plan, rank, torch.device("cpu"), MESSAGE_LIMIT_S)
        overlap = None if bucket_mb is None else Overlap.of(bucket_mb, "float32")
        pool = [bucket.group for bucket in parameter_buckets(plan, overlap)]
        engine = Engine(
            plan=plan,
            program=compile_plan(plan, clip=drawn.choice((False, True)), overlap=overlap)[rank],
            work=Emulation(plan=plan, rank=rank, time_scale=TIME_SCALE, pool=pool),
            groups=groups,
            clock_s=time.perf_counter,
        )
        for step in range(2):
            engine.run_iteration(step)
        path.with_suffix(f".ended{rank}").touch()
        for group in groups.by_ranks.values():
            dist.destroy_process_group(group)
    dist.destroy_process_group()


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # a group whose peer is gone may never be taken down
