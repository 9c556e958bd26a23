"""Results as rows: what `--json` prints of a strategy, a workload and a cluster."""

from typing import TYPE_CHECKING

import spindle_sim
from spindle_sim.cli.comparison import Outcome, Result, SimulationOptions
from spindle_sim.cli.parallelism import parallelism_rows
from spindle_sim.cli.traits import num_rounds, num_stages, recomputed_metaops, tensor_parallel

if TYPE_CHECKING:
    from spindle_sim.cluster import Cluster
    from spindle_sim.workload import Workload

__all__ = ["cluster_row", "outcome_row", "provenance", "result_row", "workload_row"]

_FIGURES = (
    "iteration_s",
    "compute_s",
    "optimum_s",
    "samples_per_s",
    "model_flops_per_s",
    "utilization",
    "forward_backward_s",
    "sync_s",
    "optimizer_s",
    "send_recv_s",
    "idle_s",
    "peak_memory_bytes",
    "gpu_hours_per_iteration",
    "stages",
    "rounds",
    "recomputed_metaops",
    "zero1",
    "zero_stage",
    "tensor_parallel",
    "parallelism",
    "idle_reasons",
)


def outcome_row(outcome: Outcome) -> dict[str, object]:
    """Give the row of one strategy; where no plan is feasible, every figure is null."""
    figures: dict[str, object] = dict.fromkeys(_FIGURES)
    if outcome.result is not None:
        figures = result_row(outcome.result)
    return {
        "strategy": outcome.strategy,
        **figures,
        "planning_s": outcome.planning_s,
        "error": None if outcome.error is None else str(outcome.error),
    }


def result_row(result: Result) -> dict[str, object]:
    """Give the figures of one simulated plan; all of them are the same from run to run."""
    summary = result.summary
    return {
        "iteration_s": summary.iteration_s,
        "compute_s": result.compute_s,
        "optimum_s": result.plan.optimum_s,
        "samples_per_s": summary.samples_per_s,
        "model_flops_per_s": summary.model_flops_per_s,
        "utilization": summary.utilization,
        "forward_backward_s": summary.forward_backward_s,
        "sync_s": summary.sync_s,
        "optimizer_s": summary.optimizer_s,
        "send_recv_s": summary.send_recv_s,
        "idle_s": summary.idle_s,
        "peak_memory_bytes": summary.peak_memory_bytes,
        "gpu_hours_per_iteration": summary.gpu_hours_per_iteration,
        "stages": num_stages(result.plan),
        "rounds": num_rounds(result.plan),
        "recomputed_metaops": recomputed_metaops(result.plan),
        "zero1": result.plan.zero1,
        "zero_stage": result.plan.zero_stage,
        "tensor_parallel": tensor_parallel(result.plan),
        "parallelism": parallelism_rows(result.plan),
        "idle_reasons": [
            {
                "kind": reason.kind.value,
                "device_seconds": reason.device_seconds,
                "share": reason.share,
                "text": reason.text,
            }
            for reason in result.idle_reasons
        ],
    }


def workload_row(workload: "Workload") -> dict[str, object]:
    """Give what is trained."""
    return {
        "name": workload.name,
        "parameters": workload.parameters,
        "tasks": [
            {
                "name": task.name,
                "batch_size": task.batch_size,
                "modules": [use.module for use in task.uses],
            }
            for task in workload.tasks
        ],
        "modules": [
            {"name": module.name, "parameters": module.parameters, "frozen": module.frozen}
            for module in workload.modules
        ],
        "note": workload.note,
    }


def cluster_row(cluster: "Cluster") -> dict[str, object]:
    """Give what it is trained on."""
    return {
        "name": cluster.name,
        "gpu": cluster.gpu.name,
        "num_nodes": cluster.num_nodes,
        "devices_per_node": cluster.devices_per_node,
        "island_size": cluster.island_size,
        "nics_per_node": cluster.nics_per_node,
        "nic_bandwidth_bytes_per_s": cluster.nic_bandwidth_bytes_per_s,
        "oversubscription": cluster.oversubscription,
        "source": cluster.source,
    }


def provenance(profile: str, options: SimulationOptions) -> dict[str, object]:
    """Give where the figures come from: enough to make them again."""
    return {
        "tool": f"spindle-sim {spindle_sim.__version__}",
        "profile": profile,
        "seed": options.seed,
        "jitter": options.jitter,
        "overlap_sync": options.overlap_sync,
        "not_reproducible": ["planning_s"],
    }
