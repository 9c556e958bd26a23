"""The table of verbs. Nothing heavy is imported before a verb runs, so that `--help` is quick."""

from collections.abc import Callable
from typing import Annotated

import typer

import spindle_sim
from spindle_sim.cli.catalogue import gpus, workloads
from spindle_sim.cli.compare import compare
from spindle_sim.cli.curves import curves
from spindle_sim.cli.explain import explain
from spindle_sim.cli.init import init
from spindle_sim.cli.plan import plan
from spindle_sim.cli.profile import profile
from spindle_sim.cli.reproduce import reproduce
from spindle_sim.cli.run import run
from spindle_sim.cli.schema import schema
from spindle_sim.cli.simulate import simulate
from spindle_sim.cli.sweep import sweep
from spindle_sim.cli.validate import validate
from spindle_sim.cli.validate_measured import validate_measured
from spindle_sim.cli.validate_run import validate_run

__all__ = ["application"]

# Short enough for the list of `spindle -h`, in the order in which one comes to need them.
_VERBS: dict[Callable[..., object], str] = {
    compare: "Which strategy is fastest, and why.",
    sweep: "The same for many clusters, tasks and batches.",
    plan: "Plan a workload and write the plan file.",
    validate: "Check a plan file.",
    simulate: "Simulate a plan file; report, trace.",
    explain: "Why an iteration is slow; what would help.",
    run: "Train by a plan file here, or emulate it (torch).",
    validate_run: "How far is the simulator off on this host? (torch)",
    validate_measured: "How far is it off on measured iterations?",
    profile: "Measure operators on this host (torch).",
    curves: "How operators scale with devices.",
    reproduce: "The paper's evaluation beside ours.",
    workloads: "List the built-in workloads.",
    gpus: "List the GPUs that are known.",
    schema: "Print the JSON Schema of a file format.",
    init: "Write an example workload to start from.",
}


def application() -> typer.Typer:
    """Build the command line."""
    app = typer.Typer(
        name="spindle",
        callback=_spindle,
        rich_markup_mode=None,  # plain text: the same in a terminal, a pipe and a log
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for verb, summary in _VERBS.items():
        app.command(short_help=summary)(verb)
    return app


def _print_version(asked: bool) -> None:  # noqa: FBT001  (typer passes the flag by position)
    if asked:
        print(f"spindle-sim {spindle_sim.__version__}")
        raise typer.Exit


def _spindle(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Plan and simulate multi-task multi-modal training on a GPU cluster.

    Start with `spindle compare`: it needs no file. Exit codes: 0 ok, 1 a bug, 2 wrong usage, 3 a
    wrong input file, 4 no feasible plan, 5 a run failed, 130 interrupted.
    """
