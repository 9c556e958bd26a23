"""Iterations that others measured, planned and simulated anew: how far off is the simulator?

Each row states a GPT-like model and the parallel configuration under which it was trained. It goes
the way of every other plan: a workload of one task, the configuration's plan, the simulator.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

from spindle_sim.cluster import GPUS, Cluster
from spindle_sim.errors import InputError, SpindleError
from spindle_sim.estimate import Estimator, SoftwareModel, software_model
from spindle_sim.plan import Plan
from spindle_sim.planner.strategies.parallel import ParallelConfig, parallel_plan
from spindle_sim.simulator import simulated_s
from spindle_sim.whatif.measured_table import Configuration, MeasuredRow, read_table
from spindle_sim.workload import (
    Block,
    DataFlow,
    Embedding,
    Module,
    ModuleUse,
    Projection,
    Task,
    TransformerLayer,
    Workload,
)

__all__ = [
    "VOCABULARY",
    "Comparison",
    "Configuration",
    "MeasuredRow",
    "Setting",
    "compare_row",
    "configuration_workload",
    "mean_abs_error",
    "median_abs_error",
    "padded_vocabulary",
    "read_measured",
    "read_table",
    "row_cluster",
]

VOCABULARY = 50257  # GPT-2's, as the published rows have it
_TASK = "train"
_MOST_MEMORY_SHARE = 2.0  # our count is no better than that for what surely ran
_BYTES_PER_GBIT = 1e9 / 8
_MLP_RATIO = 4
_PADDED_ROWS = 128
_MAX_MICRO_BATCHES = 4096  # of a rank: more take minutes to simulate


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What rows don't say: a node, the software, the vocabulary, how attention is computed.

    Where a row's own columns say it, `of` gives that row's.
    """

    node: Cluster  # one node, or the smallest cluster of them; its number of nodes doesn't matter
    software: SoftwareModel
    vocabulary: int = VOCABULARY
    unfused: bool = True

    def of(self, row: Configuration) -> "Setting":
        """Give the setting of one row."""
        node = self.node
        if row.gpu is not None:
            node = replace(node, gpu=GPUS[row.gpu])
        if row.node_gbps is not None:
            each = _BYTES_PER_GBIT * row.node_gbps / node.nics_per_node
            node = replace(node, nic_bandwidth_bytes_per_s=each)
        return Setting(
            node=node,
            software=self.software if row.software is None else software_model(row.software),
            vocabulary=self.vocabulary if row.vocabulary is None else row.vocabulary,
            unfused=self.unfused if row.attention is None else row.attention == "unfused",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A row, and what was simulated of it: seconds, or the reason why it couldn't be planned.

    `memory_share` is the fullest device's peak, as a part of a GPU's memory.
    """

    row: MeasuredRow
    simulated_s: float | None
    memory_share: float | None = None
    problem: str = ""

    @property
    def error(self) -> float | None:
        """How far the simulated iteration is off, relative; below 0 where it is too short."""
        return None if self.simulated_s is None else self.simulated_s / self.row.measured_s - 1


def read_measured(path: Path | str) -> tuple[MeasuredRow, ...]:
    """Read the rows of a table of measured iterations, as `read_table` does."""
    return read_table(path).rows


def configuration_workload(configuration: Configuration, setting: Setting) -> Workload:
    """Give the GPT of a configuration: embedding with positions, layers, vocabulary head."""
    width = configuration.hidden
    vocabulary = padded_vocabulary(setting.vocabulary, configuration.tp)
    layer = TransformerLayer(
        width=width,
        heads=configuration.heads,
        mlp_width=_MLP_RATIO * width,
        causal=True,
        attention="unfused" if setting.unfused else "flash",
    )
    modules = {
        "embedding": Block(
            name="embedding",
            operator=Embedding(
                vocabulary=vocabulary,
                width=width,
                extra_parameters=configuration.sequence * width,
            ),
        ),
        "layers": Block(name="layers", operator=layer, repeat=configuration.layers),
        "head": Block(
            name="head",
            operator=Projection(inner=width, columns=vocabulary, norm_width=width, logits=True),
        ),
    }
    return Workload(
        name=f"gpt-{configuration.layers}x{width}",
        modules=tuple(Module(name=name, blocks=(block,)) for name, block in modules.items()),
        tasks=(
            Task(
                name=_TASK,
                batch_size=configuration.global_batch,
                uses=tuple(
                    ModuleUse(name=name, module=name, tokens=configuration.sequence)
                    for name in modules
                ),
                flows=(
                    DataFlow(source="embedding", target="layers"),
                    DataFlow(source="layers", target="head"),
                ),
            ),
        ),
    )


def padded_vocabulary(vocabulary: int, tp: int) -> int:
    """Give the vocabulary that tensor parallelism can divide: padded to 128 rows a rank.

    Without tensor parallelism it stays as it is: heads of rows with tp 1 took two to four times
    as long as those of the others, as products of odd width do.
    """
    if tp == 1:
        return vocabulary
    rows = _PADDED_ROWS * tp
    return -(-vocabulary // rows) * rows


def row_cluster(node: Cluster, gpus: int) -> Cluster:
    """Give a cluster of that many GPUs out of nodes of this kind; a part of one is one node."""
    size = node.devices_per_node
    if gpus < size:
        island = gpus if gpus < node.island_size or gpus % node.island_size else node.island_size
        return replace(
            node, name=f"{gpus}-gpus", num_nodes=1, devices_per_node=gpus, island_size=island
        )
    if gpus % size:
        raise InputError(f"{gpus} GPUs are no whole number of nodes of {size}")
    return replace(node, name=f"{gpus}-gpus", num_nodes=gpus // size)


def compare_row(
    row: MeasuredRow,
    setting: Setting,
    estimators: dict[tuple[object, ...], Estimator] | None = None,
) -> Comparison:
    """Plan and simulate one row; `estimators` keeps those of clusters already met."""
    known = {} if estimators is None else estimators
    wanted = row.configuration
    try:
        _check_configuration(wanted)
        key = wanted.gpus, wanted.gpu, wanted.node_gbps, wanted.software
        own = setting.of(wanted)
        if key not in known:
            cluster = row_cluster(own.node, wanted.gpus)
            known[key] = Estimator(cluster, software=own.software)
        estimator = known[key]
        plan = parallel_plan(
            configuration_workload(wanted, own),
            estimator.cluster,
            {
                _TASK: ParallelConfig(
                    tp=wanted.tp,
                    pp=wanted.pp,
                    dp=wanted.dp,
                    micro_batch=wanted.micro_batch,
                    chunks=wanted.chunks,
                    recompute=wanted.recompute,
                    sequence_parallel=wanted.sequence_parallel,
                )
            },
            zero_stage=wanted.zero_stage,
            overlap_sync=_overlaps(wanted, estimator),
            estimator=estimator,
        )
        peak_bytes = max((item.total_bytes for item in plan.memory), default=0.0)
        share = peak_bytes / estimator.cluster.gpu.memory_bytes
        if share > _MOST_MEMORY_SHARE:
            raise InputError(
                f"takes {share:,.1f} times a GPU's memory by our count: it can't have run"
            )
        iteration_s = simulated_s(_partitioned(plan), estimator=estimator)
    except SpindleError as error:
        reasons = "; ".join(problem.message for problem in error.problems) or str(error)
        return Comparison(row=row, simulated_s=None, problem=reasons)
    return Comparison(row=row, simulated_s=iteration_s, memory_share=share)


def _overlaps(wanted: Configuration, estimator: Estimator) -> bool:
    """Tell whether gradients are summed beside the last backward."""
    if wanted.overlap_sync is not None:
        return wanted.overlap_sync
    return estimator.software.overlap_in_node and estimator.cluster.num_nodes == 1


def _check_configuration(wanted: Configuration) -> None:
    """Refuse what would be planned for other GPUs than the row's, or simulated for minutes."""
    degree = wanted.tp * wanted.dp * wanted.pp
    if degree != wanted.gpus:
        raise InputError(
            f"tp {wanted.tp} x dp {wanted.dp} x pp {wanted.pp} are {degree:,} GPUs, but gpus is"
            f" {wanted.gpus:,}"
        )
    count = wanted.global_batch // (wanted.dp * wanted.micro_batch)
    if count > _MAX_MICRO_BATCHES:
        raise InputError(
            f"{count:,} micro-batches are more than the {_MAX_MICRO_BATCHES:,} that are simulated"
        )


def _partitioned(plan: Plan) -> Plan:
    """Let each tensor-parallel rank send its part of the activations between stages.

    DeepSpeed's pipeline does so, without dividing what is computed along the tokens.
    """
    return replace(
        plan, slices=tuple(replace(item, sequence_parallel=item.tp > 1) for item in plan.slices)
    )


def mean_abs_error(found: Sequence[Comparison]) -> float | None:
    """Give the mean of the errors' amounts over the rows that were simulated."""
    errors = _amounts(found)
    return fmean(errors) if errors else None


def median_abs_error(found: Sequence[Comparison]) -> float | None:
    """Give the median of the errors' amounts over the rows that were simulated."""
    errors = _amounts(found)
    return median(errors) if errors else None


def _amounts(found: Sequence[Comparison]) -> list[float]:
    return [abs(item.error) for item in found if item.error is not None]
