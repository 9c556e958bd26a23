"""What the engine takes of an iteration besides computing and messages, and what tracing costs.

    python -m benchmarks.runtime_overhead [--iterations 20] [--strategies spindle,seq,...]
        [--widths 8] [--tokens 4] [--json]

Tiny workloads made larger (`--widths`, `--tokens`), so that slices take 10 ms and more. In each
case one set of processes runs iterations with and without tracing in turns, one thread each. The
engine's share is that of the traced iteration of median duration
(`spindle_sim.metrics.engine_time`), tracing the ratio of the medians.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

from spindle_sim import make_plan, parse_cluster
from spindle_sim.metrics import engine_time
from spindle_sim.plan import load_plan, save_plan
from spindle_sim.planner import STRATEGIES
from spindle_sim.timeline import Kind, Timeline
from spindle_sim.workload import builtin_workload
from spindle_sim.workload.enlarged import enlarged
from spindle_sim.workload.tiny import tiny

WORKLOADS = {"multitask-clip": 4, "ofasys": 4, "qwen-val": 3}  # tasks of each
RANKS = (1, 2)
LIMIT_S = 900.0
MESSAGE_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One plan, and what came of it."""

    workload: str
    strategy: str
    ranks: int
    iteration_s: float
    slice_s: float  # the median
    engine_share: float
    tracing: float


def main() -> int:
    """Print a line for each case, or be one rank of one."""
    options = _options()
    if options.rank is not None:
        run_rank(options.folder, options.rank, options.ranks, options.iterations)
        return 0
    found = list(cases(options))
    if options.json:
        document = {
            "cases": [asdict(case) for case in found],
            "median_engine_share": statistics.median(case.engine_share for case in found),
            "largest_engine_share": max(case.engine_share for case in found),
            "median_tracing": statistics.median(case.tracing for case in found),
        }
        print(json.dumps(document))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--iterations", type=int, default=20, help="of each kind, in turns")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--widths", type=int, default=8, help="times those of the tiny workloads")
    parser.add_argument("--tokens", type=int, default=4, help="times those of the tiny workloads")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--ranks", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """Measure all cases, a line for each as it ends."""
    line = "{:<16}{:<12}{:>6}{:>13}{:>12}{:>10}{:>10}"
    heads = "workload", "strategy", "ranks", "iteration", "slice", "engine", "tracing"
    if not options.json:
        print(line.format(*heads))
    for name in options.workloads.split(","):
        workload = tiny(builtin_workload(name)).with_first_tasks(WORKLOADS[name])
        workload = enlarged(workload, widths=options.widths, tokens=options.tokens)
        for strategy in options.strategies.split(","):
            for ranks in RANKS:
                plan = make_plan(workload, parse_cluster(f"a800:1x{ranks}"), strategy)
                with tempfile.TemporaryDirectory() as folder:
                    save_plan(plan, Path(folder) / "plan.json")
                    timeline, tracing = launch(Path(folder), ranks, options.iterations)
                case = Case(
                    workload=name,
                    strategy=strategy,
                    ranks=ranks,
                    iteration_s=timeline.iteration_s,
                    slice_s=statistics.median(
                        span.duration_s for span in timeline.spans if span.kind is Kind.COMPUTE
                    ),
                    engine_share=engine_time(timeline).share,
                    tracing=tracing,
                )
                if not options.json:
                    print(
                        line.format(
                            name,
                            strategy,
                            ranks,
                            f"{case.iteration_s * 1e3:.1f} ms",
                            f"{case.slice_s * 1e3:.1f} ms",
                            f"{case.engine_share:.2%}",
                            f"{case.tracing - 1:+.2%}",
                        ),
                        flush=True,
                    )
                yield case


def launch(folder: Path, ranks: int, iterations: int) -> tuple[Timeline, float]:
    """Run one case; give the iteration of median duration, and what tracing makes of it."""
    from spindle_torch.outcome import execution_from_json

    command = [sys.executable, "-m", "benchmarks.runtime_overhead", f"--folder={folder}"]
    command += [f"--ranks={ranks}", f"--iterations={iterations}"]
    processes = [subprocess.Popen([*command, f"--rank={rank}"]) for rank in range(ranks)]
    try:
        codes = [process.wait(LIMIT_S) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    if any(codes):
        raise SystemExit(f"a rank failed: exit codes {codes}")
    execution = execution_from_json((folder / "result").read_text())
    return execution.timeline, float((folder / "tracing").read_text())


def run_rank(folder: Path, rank: int, ranks: int, iterations: int) -> None:
    """Run one rank; the first writes what came of it."""
    import torch
    import torch.distributed as dist

    from spindle_sim.backend import Execution
    from spindle_torch.compilation import compile_plan
    from spindle_torch.engine import Engine
    from spindle_torch.events import Event, to_timeline
    from spindle_torch.groups import make_groups
    from spindle_torch.outcome import execution_to_json
    from spindle_torch.telling import all_gather_json
    from spindle_torch.training import make_training

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'rendezvous'}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=MESSAGE_LIMIT_S),
    )
    plan = load_plan(folder / "plan.json")
    cpu = torch.device("cpu")
    groups = make_groups(plan, rank, cpu, MESSAGE_LIMIT_S)
    work = make_training(plan, rank, groups, seed=0, dtype=torch.float32, device=cpu)
    engines = {
        tracing: Engine(
            plan=plan,
            program=compile_plan(plan)[rank],
            work=work,
            groups=groups,
            clock_s=time.perf_counter,
            tracing=tracing,
        )
        for tracing in (True, False)
    }
    took_s: dict[bool, list[float]] = {True: [], False: []}
    timelines: list[Timeline] = []
    for step in range(iterations + 1):  # the first warms up
        for tracing in (True, False) if step % 2 else (False, True):
            start_s, events = engines[tracing].run_iteration(step)
            took_s[tracing].append(time.perf_counter() - start_s)
            if tracing:
                own = start_s, tuple(events)
                notes = all_gather_json(own, tuple[float, tuple[Event, ...]])
                starts, all_events = zip(*notes, strict=True)
                timelines.append(to_timeline(plan, "torch-gloo", all_events, starts))
    if rank == 0:
        del timelines[0]
        timelines.sort(key=lambda timeline: timeline.iteration_s)
        middle = timelines[len(timelines) // 2]
        execution = Execution(timeline=middle, iterations_s=(middle.iteration_s,), losses=())
        (folder / "result").write_text(execution_to_json(execution))
        ratio = statistics.median(took_s[True][1:]) / statistics.median(took_s[False][1:])
        (folder / "tracing").write_text(str(ratio))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # a group whose peer is gone may never be taken down
