"""`spindle validate-run`: say how far the simulator is off on this host, case by case."""

import os
import statistics
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from spindle_sim.cli.console import new_table, print_json, progress, stdout_console
from spindle_sim.cli.fitting import print_table
from spindle_sim.cli.inputs import read_strategies, read_workload
from spindle_sim.cli.options import JsonOutput, Seed, integer_parser, number_parser
from spindle_sim.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spindle_sim.backend import ExecutionOptions
    from spindle_sim.cli.fidelity import Case
    from spindle_sim.workload import Workload

__all__ = ["validate_run"]

# Widths and tokens of the tiny workloads times this: their layers then take 10 ms and more.
_LARGER = {"multitask-clip": (8, 8), "ofasys": (8, 8), "qwen-val": (8, 4)}
_OTHERS_LARGER = (8, 4)
_TASKS = 4
_RANKS = {False: "1,2", True: "8,16"}
_ITERATIONS = {False: 20, True: 2}  # emulated ones hardly differ
# Beyond these, ranks mostly wait for a core: figures would be the host's scheduler's.
_MOST_RANKS_PER_CORE = {False: 8, True: 32}
_DEVICES_PER_NODE = 8
_SHARE = 0.95

Workloads = Annotated[
    list[str] | None,
    typer.Option(
        "--workload",
        metavar="WORKLOAD",
        help="A built-in workload or a YAML file; may be given several times.",
        show_default="multitask-clip, ofasys, qwen-val",
    ),
]
Strategies = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Strategies to validate, with commas between them.",
        show_default="spindle,seq,uniform,optimus,stmm",
    ),
]
Ranks = Annotated[
    str | None,
    typer.Option(
        metavar="COUNTS",
        help="Numbers of ranks, with commas between them.",
        show_default="1,2; with --emulate 8,16",
    ),
]
Iterations = Annotated[
    int | None,
    typer.Option(
        metavar="COUNT",
        parser=integer_parser("--iterations", least=1),
        help="Rounds to take medians of; one more before them warms up.",
        show_default="20; with --emulate 2",
    ),
]
Emulate = Annotated[
    bool,
    typer.Option("--emulate", help="Wait for the planned times of A800s instead of computing."),
]
TimeScale = Annotated[
    float,
    typer.Option(
        metavar="FACTOR",
        parser=number_parser("--time-scale"),
        help="With --emulate: wait this many times as long; 0: until slices take 20 to 32 ms.",
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        parser=number_parser("--timeout", above=0.0),
        help="How long a message or a collective may take.",
    ),
]
_DEFAULT_STRATEGIES = "spindle,seq,uniform,optimus,stmm"


def validate_run(
    *,
    workload: Workloads = None,
    strategies: Strategies = None,
    ranks: Ranks = None,
    iterations: Iterations = None,
    emulate: Emulate = False,
    time_scale: TimeScale = 0.0,
    timeout: Timeout = 300.0,
    seed: Seed = 0,
    json: JsonOutput = False,
) -> None:
    """Profile this host, plan, simulate and execute: print the simulator's errors."""
    names = read_strategies(_DEFAULT_STRATEGIES if strategies is None else strategies)
    counts = _counts(_RANKS[emulate] if ranks is None else ranks, emulate=emulate)
    if time_scale and not emulate:
        raise UsageError("--time-scale: only emulated iterations are scaled; add --emulate")
    from spindle_sim.backend import ExecutionOptions

    read = [_workload(name, emulate=emulate) for name in workload or list(_LARGER)]
    options = ExecutionOptions(
        iterations=_ITERATIONS[emulate] if iterations is None else iterations,
        emulate=emulate,
        time_scale=time_scale,
        seed=seed,
        timeout_s=timeout,
    )
    load = os.getloadavg()[0]
    cases: list[Case] = []
    runs = [read] if emulate else [[item] for item in read]
    with progress(len(runs) * len(counts)) as advance:
        for together in runs:
            for count in counts:
                advance(f"{', '.join(item.name for item in together)} on {count} ranks")
                cases += _cases(together, count, names, options)
    document = _document(cases, options, load)
    if json:
        print_json(document)
    else:
        _print(cases, document)


def _counts(text: str, *, emulate: bool) -> list[int]:
    counts = [integer_parser("--ranks", least=1)(part.strip()) for part in text.split(",")]
    cores = os.cpu_count() or 1
    most = cores * _MOST_RANKS_PER_CORE[emulate]
    what = "emulated ranks" if emulate else "ranks that compute (more with --emulate)"
    odd = [
        f"--ranks {count}: {cores} cores have room for {most} {what}"
        for count in counts
        if count > most
    ]
    odd += [
        f"--ranks {count}: beyond {_DEVICES_PER_NODE} it must be a multiple of that"
        for count in counts
        if emulate and count > _DEVICES_PER_NODE and count % _DEVICES_PER_NODE
    ]
    odd += [
        f"--ranks {count}: given {counts.count(count)} times; once is enough"
        for count in dict.fromkeys(counts)
        if counts.count(count) > 1
    ]
    if odd:
        raise UsageError(*odd)
    return counts


def _workload(name: str, *, emulate: bool) -> "Workload":
    from spindle_sim.workload import BUILTIN_WORKLOADS, builtin_workload

    known = builtin_workload(name) if name in BUILTIN_WORKLOADS else None
    few = f"{_TASKS}" if known and len(known.tasks) > _TASKS else None
    if emulate:
        return read_workload(name, few, 1.0)
    from spindle_sim.workload.enlarged import enlarged

    widths, tokens = _LARGER.get(name, _OTHERS_LARGER)
    return enlarged(read_workload(name, few, 1.0, tiny=True), widths=widths, tokens=tokens)


def _cases(
    workloads: "Sequence[Workload]",
    ranks: int,
    strategies: "Sequence[str]",
    options: "ExecutionOptions",
) -> "list[Case]":
    from spindle_sim.backend import find_validator
    from spindle_sim.cli.fidelity import emulated_cases, executed_cases
    from spindle_sim.cluster import parse_cluster

    validator = find_validator("torch")
    if not options.emulate:
        (workload,) = workloads
        return executed_cases(workload, ranks, strategies, validator, options)
    nodes = max(1, ranks // _DEVICES_PER_NODE)
    cluster = parse_cluster(f"a800:{nodes}x{ranks // nodes}")
    return emulated_cases(workloads, cluster, strategies, validator, options)


def _document(
    cases: "Sequence[Case]", options: "ExecutionOptions", load: float
) -> dict[str, object]:
    from spindle_sim.cli.fidelity import orders, percentile

    errors = [abs(case.error) for case in cases]
    paired = [abs(case.paired_error) for case in cases if case.paired_error is not None]
    found = list(orders(cases))
    return {
        "emulated": options.emulate,
        "iterations": options.iterations,
        "cores": os.cpu_count(),
        "load_before": load,
        "cases": [{**asdict(case), "error": case.error} for case in cases],
        "median_error": statistics.median(errors),
        "p95_error": percentile(errors, _SHARE),
        "median_paired_error": statistics.median(paired) if paired else None,
        "p95_paired_error": percentile(paired, _SHARE) if paired else None,
        "median_engine_share": statistics.median(case.engine_share for case in cases),
        "largest_engine_share": max(case.engine_share for case in cases),
        "median_spread": statistics.median(case.spread for case in cases),
        "orders": [{**asdict(order), "same": order.is_same} for order in found],
        "orders_same": sum(order.is_same for order in found),
    }


def _print(cases: "Sequence[Case]", document: dict[str, object]) -> None:
    from spindle_sim.cli.fidelity import orders
    from spindle_sim.units import format_duration

    console = stdout_console()
    table = new_table(
        f"One iteration, medians of {document['iterations']} rounds",
        "Workload",
        "Strategy",
        "Ranks",
        "Simulated",
        "Emulated" if document["emulated"] else "Executed",
        "Error",
        "Paired",
        "Spread",
        "Engine",
    )
    for case in cases:
        table.add_row(
            case.workload,
            case.strategy,
            f"{case.ranks}",
            format_duration(case.simulated_s),
            format_duration(case.executed_s),
            f"{case.error:+.1%}",
            "-" if case.paired_error is None else f"{case.paired_error:+.1%}",
            f"{case.spread:.1%}",
            f"{case.engine_share:.1%}",
        )
    print_table(console, table)
    console.print(
        f"Error of {len(cases)} cases: median {document['median_error']:.1%}, 95th percentile"
        f" {document['p95_error']:.1%}"
    )
    if document["median_paired_error"] is not None:
        console.print(
            f"Round by round: median {document['median_paired_error']:.1%}, 95th percentile"
            f" {document['p95_paired_error']:.1%}"
        )
    console.print(
        f"The engine's own share of an iteration: median {document['median_engine_share']:.1%},"
        f" largest {document['largest_engine_share']:.1%}"
    )
    found = list(orders(cases))
    console.print(
        f"Pairs of strategies more than 5 % apart: {len(found)}, in the same order in both:"
        f" {document['orders_same']}"
    )
    for order in found:
        if not order.is_same:
            first, second = order.strategies
            console.print(
                f"  {order.workload} on {order.ranks}: {first} over {second} is"
                f" {order.simulated_ratio:.3f} simulated, {order.executed_ratio:.3f} executed"
            )
    console.print(
        "Spread is the executions' interquartile range: an error below it may be the host's noise."
        f" Load of the {document['cores']} cores before: {document['load_before']:.1f}"
    )
    sys.stdout.flush()
