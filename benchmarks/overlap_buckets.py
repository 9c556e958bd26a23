"""What the size of gradient buckets does to an iteration: the table of docs/simulator.md.

    python -m benchmarks.overlap_buckets

Milliseconds, synchronization apart, then overlapped in buckets of growing size and in whole groups,
with compute not slowed down beside it.
"""

from math import inf

from spindle_sim.cluster import parse_cluster
from spindle_sim.planner import make_plan
from spindle_sim.simulator import simulate
from spindle_sim.workload import builtin_workload

CASES = (
    ("multitask-clip", 4, "a800:2x8"),
    ("multitask-clip", 10, "a800:8x8"),
    ("ofasys", 7, "a800:4x8"),
    ("qwen-val", 3, "a800:4x8"),
)
MEGABYTES = (25.0, 50.0, 100.0, 200.0, 400.0, inf)


def main() -> None:
    """Print a row for each case and strategy."""
    sizes = "".join(f"{f'{mb:.0f} MB' if mb < inf else 'whole':>9}" for mb in MEGABYTES)
    print(f"{'workload, cluster':<36}{'strategy':<9}{'apart':>8}{sizes}")
    for name, tasks, cluster in CASES:
        workload = builtin_workload(name).with_first_tasks(tasks)
        for strategy in ("seq", "spindle"):
            plan = make_plan(workload, parse_cluster(cluster), strategy)
            row = f"{f'{name}, {tasks} tasks, {cluster}':<36}{strategy:<9}"
            row += f"{1e3 * simulate(plan).iteration_s:8.1f}"
            for megabytes in MEGABYTES:
                timeline = simulate(
                    plan, overlap_sync=True, bucket_bytes=1e6 * megabytes, overlap_slowdown=1.0
                )
                row += f"{1e3 * timeline.iteration_s:9.1f}"
            print(row, flush=True)


if __name__ == "__main__":
    main()
