"""The options that several verbs share, each with the check of its value."""

import math
import re
from collections.abc import Callable
from typing import Annotated

import typer

from spindle_sim.errors import UsageError

__all__ = [
    "STRATEGY_NAMES",
    "BatchScale",
    "ClusterName",
    "Jitter",
    "JsonOutput",
    "NicBandwidth",
    "NicsPerNode",
    "OverlapSync",
    "Oversubscription",
    "Placement",
    "PlanFile",
    "Profile",
    "Report",
    "Seed",
    "Tasks",
    "Tiny",
    "WorkloadName",
    "integer_parser",
    "number_parser",
]

STRATEGY_NAMES = "spindle, seq, uniform, optimus, stmm, megatron, deepspeed"  # for --help
_MAX_DIGITS = 30
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def integer_parser(option: str, *, least: int) -> Callable[[str | int], int]:
    """Give the parser of an option's whole number; typer passes it the default, too."""

    def parse(value: str | int) -> int:
        text = str(value)
        # isdecimal() alone would take digits of other scripts, int() alone "1_000".
        ok = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
        if not (ok and int(text) >= least):
            raise UsageError(
                f"{option} {text:.40}: expected a whole number, at least {least}"
                + (f", of at most {_MAX_DIGITS} digits" if len(text) > _MAX_DIGITS else "")
            )
        return int(text)

    return parse


def number_parser(
    option: str, *, above: float | None = None, least: float = 0.0, most: float = math.inf
) -> Callable[[str | float], float]:
    """Give the parser of an option's number, above `above` or at least `least`, up to `most`."""
    wanted = f"above {above:g}" if above is not None else f"at least {least:g}"
    if most < math.inf:
        wanted += f" and at most {most:g}"

    def parse(value: str | float) -> float:
        text = str(value)
        # float() alone would take digits of other scripts, "1_000" and "nan".
        number = float(text) if _NUMBER.fullmatch(text) else math.nan
        ok = math.isfinite(number) and (number > above if above is not None else number >= least)
        if not (ok and number <= most):
            raise UsageError(f"{option} {text:.40}: expected a number {wanted}")
        return number

    return parse


WorkloadName = Annotated[
    str,
    typer.Argument(
        metavar="WORKLOAD",
        help="A built-in workload (see `spindle workloads`) or a YAML file.",
        show_default=False,
    ),
]
PlanFile = Annotated[
    str, typer.Argument(metavar="PLAN", help="A plan file, as `spindle plan` writes it.")
]
Tasks = Annotated[
    str | None,
    typer.Option(
        metavar="K|NAMES",
        help="The first K tasks of the workload, or those named (comma-separated).",
        show_default=False,
    ),
]
Tiny = Annotated[
    bool,
    typer.Option(
        "--tiny", help="Shrink the workload until it trains on a laptop (see `spindle run`)."
    ),
]
BatchScale = Annotated[
    float,
    typer.Option(
        metavar="FACTOR",
        parser=number_parser("--batch-scale", above=0.0),
        help="Multiply every task's batch by this.",
    ),
]
ClusterName = Annotated[
    str,
    typer.Option(
        metavar="GPU:NODESxGPUS|FILE",
        help="a800:2x8 is two nodes of eight A800 (see `spindle gpus`); or a YAML file.",
    ),
]
NicsPerNode = Annotated[
    int | None,
    typer.Option(
        metavar="COUNT",
        parser=integer_parser("--nics-per-node", least=1),
        help="Network cards of a node; the cluster's own by default.",
        show_default=False,
    ),
]
NicBandwidth = Annotated[
    str | None,
    typer.Option(
        metavar="BANDWIDTH",
        help="Line rate of one network card, such as 400Gb/s or 25GB/s.",
        show_default=False,
    ),
]
Oversubscription = Annotated[
    float | None,
    typer.Option(
        metavar="FACTOR",
        parser=number_parser("--oversubscription", least=1.0),
        help="By how much the fabric is slower than all network cards together.",
        show_default=False,
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="A profile of measured operator times; by default times are modelled.",
        show_default=False,
    ),
]
Placement = Annotated[
    str,
    typer.Option(
        metavar="spindle|sequential",
        help="Device placement: by the paper's guidelines, or simply in order.",
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        metavar="NUMBER",
        parser=integer_parser("--seed", least=0),
        help="Seed of everything random: the same inputs and seed give the same result.",
    ),
]
Jitter = Annotated[
    float,
    typer.Option(
        metavar="FRACTION",
        parser=number_parser("--jitter", most=1.0),
        help="Relative standard deviation of the compute times, up to 1.",
    ),
]
OverlapSync = Annotated[
    bool,
    typer.Option("--overlap-sync", help="Synchronize gradients while the backward still runs."),
]
Report = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Write a self-contained HTML report with charts.", show_default=False
    ),
]
JsonOutput = Annotated[
    bool, typer.Option("--json", help="Print one JSON object instead of tables.")
]
