"""What planning and simulating cost as devices and tasks grow.

    python -m benchmarks.planning_scaling [--json]

The workload has Multitask-CLIP's modules; tasks beyond its ten repeat them with other batches. Each
case runs in a process of its own, so that its peak memory is its own.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace

from spindle_sim.cluster import parse_cluster
from spindle_sim.plan import schedule
from spindle_sim.planner import make_plan
from spindle_sim.simulator import simulate
from spindle_sim.workload import Workload, builtin_workload

CASES = ((10, 8), (10, 64), (10, 256), (10, 1024), (25, 256), (50, 512), (100, 1024))
KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one case cost; times are seconds of wall clock."""

    tasks: int
    devices: int
    slices: int
    planning_s: float
    simulation_s: float
    peak_memory_bytes: int
    compute_over_optimum: float


def workload(num_tasks: int) -> Workload:
    """Give Multitask-CLIP's tasks, repeated with batches of a half, one and two times."""
    ten = builtin_workload("multitask-clip")
    tasks = []
    for index in range(num_tasks):
        task = ten.tasks[index % len(ten.tasks)]
        scale = (1.0, 0.5, 2.0)[index // len(ten.tasks) % 3]
        tasks.append(
            replace(task, name=f"{task.name}-{index}", batch_size=int(task.batch_size * scale))
        )
    return replace(ten, name=f"multitask-clip-{num_tasks}", tasks=tuple(tasks))


def measure(num_tasks: int, num_devices: int) -> Cost:
    """Plan and simulate one case in this process."""
    given = workload(num_tasks)
    cluster = parse_cluster(f"a800:{max(1, num_devices // 8)}x{min(8, num_devices)}")
    begun = time.perf_counter()
    plan = make_plan(given, cluster)
    planned = time.perf_counter()
    simulate(plan)
    simulated = time.perf_counter()
    return Cost(
        tasks=num_tasks,
        devices=num_devices,
        slices=len(plan.slices),
        planning_s=planned - begun,
        simulation_s=simulated - planned,
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB,
        compute_over_optimum=schedule(plan).makespan_s / plan.optimum_s,
    )


def in_own_process(num_tasks: int, num_devices: int) -> Cost:
    """Measure one case in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.planning_scaling", "--case"]
    command += [str(num_tasks), str(num_devices)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Cost(**json.loads(done.stdout))


def main() -> None:
    """Print a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--case", nargs=2, type=int, help="measure one: tasks devices")
    arguments = parser.parse_args()
    if arguments.case:
        json.dump(asdict(measure(*arguments.case)), sys.stdout)
        return
    costs = []
    if not arguments.json:
        print("tasks  devices  slices  planning  simulation  memory  compute/optimum")
    for num_tasks, num_devices in CASES:
        cost = in_own_process(num_tasks, num_devices)
        costs.append(asdict(cost))
        if not arguments.json:
            print(
                f"{cost.tasks:5}  {cost.devices:7}  {cost.slices:6}  {cost.planning_s:6.2f} s"
                f"  {cost.simulation_s:8.2f} s  {cost.peak_memory_bytes / 1e6:3.0f} MB"
                f"  {cost.compute_over_optimum:15.3f}",
                flush=True,
            )
    if arguments.json:
        json.dump({"cases": costs}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
