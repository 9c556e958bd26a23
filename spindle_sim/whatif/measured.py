"""Iterations that others measured, planned and simulated anew: how far off is the simulator?

Each row states a GPT-like model and the parallel configuration under which it was trained. It goes
the way of every other plan: a workload of one task, the configuration's plan, the simulator.
"""

import csv
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import fmean, median

from spindle_sim.cluster import Cluster
from spindle_sim.errors import InputError, Problem, SpindleError, suggestion
from spindle_sim.estimate import Estimator, SoftwareModel
from spindle_sim.plan import Plan
from spindle_sim.planner.strategies.parallel import ParallelConfig, Recompute, parallel_plan
from spindle_sim.simulator import simulate
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
    "row_cluster",
]

VOCABULARY = 50257  # GPT-2's, as the published rows have it
_MEASURED = "iteration_ms"
_ALIASES = {"measured_ms": _MEASURED}
_TASK = "train"
_MAX_ROWS = 100_000
_MLP_RATIO = 4
_PADDED_ROWS = 128
_MAX_MICRO_BATCHES = 4096  # of a rank: more take minutes to simulate
_WHOLE = re.compile("0*[1-9][0-9]{0,8}")
_LEAST_MS, _MOST_MS = 1e-3, 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What a row says about model and parallelism."""

    gpus: int
    global_batch: int
    micro_batch: int
    hidden: int
    heads: int
    layers: int
    sequence: int
    tp: int
    dp: int
    pp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """One measured iteration; `line` is its line in the file."""

    line: int
    configuration: Configuration
    measured_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What rows don't say: a node, the software, the vocabulary, how attention is computed."""

    node: Cluster  # one node, or the smallest cluster of them; its number of nodes doesn't matter
    software: SoftwareModel
    vocabulary: int = VOCABULARY
    unfused: bool = True


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
    """Read a table of measured iterations: columns of `Configuration`, and iteration_ms.

    Lines that begin with # are comments, other columns are left alone.

    Raises:
        InputError: the file can't be read, or a row is wrong; with every problem found.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")  # spreadsheets begin with a mark
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "isn't UTF-8 text"
        message = f"can't be read: {str(reason).lower()}; name a CSV file of measured iterations"
        raise InputError(Problem(source=str(path), message=message)) from error
    lines = [
        (number, line)
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not lines:
        raise InputError(Problem(source=str(path), message="has no rows, not even column names"))
    header = [_ALIASES.get(name.strip(), name.strip()) for name in _cells(lines[0][1])]
    if problems := list(_header_problems(header, str(path))):
        raise InputError(*problems)
    rows: list[MeasuredRow] = []
    for number, line in lines[1 : _MAX_ROWS + 1]:
        given = [cell.strip() for cell in _cells(line)]
        cells = dict(zip(header, given, strict=False))
        found = list(_row_problems(cells))
        if any(given[len(header) :]):
            found.append("has more cells than there are columns")
        problems += [
            Problem(source=str(path), path=f"line {number}", message=text) for text in found
        ]
        if not found:
            rows.append(_row(cells, number))
    if len(lines) - 1 > _MAX_ROWS:
        message = f"has more than {_MAX_ROWS:,} rows; split it"
        problems.append(Problem(source=str(path), message=message))
    if not problems and not rows:
        problems.append(Problem(source=str(path), message="has column names but no rows"))
    if problems:
        raise InputError(*problems)
    return tuple(rows)


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
    row: MeasuredRow, setting: Setting, estimators: dict[int, Estimator] | None = None
) -> Comparison:
    """Plan and simulate one row; `estimators` keeps those of clusters already met, by GPUs."""
    known = {} if estimators is None else estimators
    wanted = row.configuration
    try:
        _check_configuration(wanted)
        if wanted.gpus not in known:
            cluster = row_cluster(setting.node, wanted.gpus)
            known[wanted.gpus] = Estimator(cluster, software=setting.software)
        estimator = known[wanted.gpus]
        plan = parallel_plan(
            configuration_workload(wanted, setting),
            estimator.cluster,
            {
                _TASK: ParallelConfig(
                    tp=wanted.tp,
                    pp=wanted.pp,
                    dp=wanted.dp,
                    micro_batch=wanted.micro_batch,
                    recompute=Recompute.FULL,
                )
            },
            estimator=estimator,
        )
        timeline = simulate(_partitioned(plan), estimator=estimator)
    except SpindleError as error:
        reasons = "; ".join(problem.message for problem in error.problems) or str(error)
        return Comparison(row=row, simulated_s=None, problem=reasons)
    peak_bytes = max((item.total_bytes for item in plan.memory), default=0.0)
    return Comparison(
        row=row,
        simulated_s=timeline.iteration_s,
        memory_share=peak_bytes / estimator.cluster.gpu.memory_bytes,
    )


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


def _cells(line: str) -> list[str]:
    return next(csv.reader([line]), [])


def _columns() -> list[str]:
    return [item.name for item in fields(Configuration)]


def _header_problems(header: Sequence[str], source: str) -> Iterator[Problem]:
    for name in (*_columns(), _MEASURED):
        if name not in header:
            message = f"column {name} is missing; {suggestion(name, header)}"
            yield Problem(source=source, path="header", message=message)
        elif header.count(name) > 1:
            yield Problem(source=source, path="header", message=f"column {name} is given twice")


def _row_problems(cells: Mapping[str, str]) -> Iterator[str]:
    for name in _columns():
        text = cells.get(name, "")
        if not _WHOLE.fullmatch(text):
            yield f"{name} must be a whole number from 1 to 999,999,999, not {text[:40]!r}"
    text = cells.get(_MEASURED, "")
    try:
        measured_ms = float(text)
    except ValueError:
        measured_ms = math.nan
    if not _LEAST_MS <= measured_ms <= _MOST_MS:
        bounds = f"from {_LEAST_MS:g} to {_MOST_MS:g}"
        yield f"{_MEASURED} must be milliseconds {bounds}, not {text[:40]!r}"


def _row(cells: Mapping[str, str], line: int) -> MeasuredRow:
    return MeasuredRow(
        line=line,
        configuration=Configuration(**{name: int(cells[name]) for name in _columns()}),
        measured_s=1e-3 * float(cells[_MEASURED]),
    )
