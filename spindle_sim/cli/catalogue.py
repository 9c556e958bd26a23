"""`spindle workloads` and `spindle gpus`: what is built in, and where it comes from."""

from dataclasses import asdict

from spindle_sim.cli.console import new_table, print_json, stdout_console
from spindle_sim.cli.fitting import print_table
from spindle_sim.cli.options import JsonOutput
from spindle_sim.cli.rows import workload_row
from spindle_sim.units import counted

__all__ = ["gpus", "workloads"]


def workloads(*, json: JsonOutput = False) -> None:
    """List the built-in workloads: tasks, batches, parameters."""
    from spindle_sim.workload import BUILTIN_WORKLOADS

    built = {name: make() for name, make in BUILTIN_WORKLOADS.items()}
    if json:
        print_json({"workloads": [workload_row(workload) for workload in built.values()]})
        return
    console = stdout_console()
    for name, workload in built.items():
        console.print(
            f"{name}: {counted(len(workload.tasks), 'task')}, {workload.parameters:,} parameters"
        )
        table = new_table("", "Task", "Batch", "Modules")
        table.columns[2].justify = "left"
        for task in workload.tasks:
            table.add_row(
                task.name,
                f"{task.batch_size}",
                ", ".join(dict.fromkeys(use.module for use in task.uses)),
            )
        print_table(console, table)
        modules = new_table("", "Module", "Parameters", "")
        for module in workload.modules:
            modules.add_row(
                module.name, f"{module.parameters:,}", "frozen" if module.frozen else ""
            )
        print_table(console, modules)
        console.print(workload.note, soft_wrap=True)
        console.print()


def gpus(*, json: JsonOutput = False) -> None:
    """List the GPU catalogue with the source of every figure."""
    from spindle_sim.cluster import GPUS

    if json:
        print_json({"gpus": [{"key": key, **asdict(gpu)} for key, gpu in GPUS.items()]})
        return
    console = stdout_console()
    table = new_table(
        "", "Name", "GPU", "Memory", "Memory GB/s", "Peak TFLOP/s", "Link GB/s", "All-reduce GB/s"
    )
    for key, gpu in GPUS.items():
        table.add_row(
            key,
            gpu.name,
            f"{gpu.memory_bytes / 2**30:.0f} GiB",
            f"{gpu.memory_bandwidth_bytes_per_s / 1e9:.0f}",
            f"{gpu.peak_flops / 1e12:.0f}",
            f"{gpu.link_bandwidth_bytes_per_s / 1e9:.0f}",
            f"{gpu.collective_bandwidth_bytes_per_s / 1e9:.0f}",
        )
    print_table(console, table)
    console.print("Peak is dense bf16; links are one direction, to all peers together. Sources:")
    for key, gpu in GPUS.items():
        console.print(f"{key}: {gpu.source}", soft_wrap=True)
