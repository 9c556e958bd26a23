"""The table of verbs. Nothing heavy is imported before a verb runs, so that `--help` is quick."""

from typing import Annotated

import typer

import spindle_sim
from spindle_sim.cli.catalogue import gpus, workloads
from spindle_sim.cli.compare import compare
from spindle_sim.cli.curves import curves
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
    for verb in (
        compare,
        sweep,
        plan,
        validate,
        simulate,
        run,
        validate_run,
        validate_measured,
        profile,
        curves,
        reproduce,
        workloads,
        gpus,
        schema,
        init,
    ):
        app.command()(verb)
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
    wrong input file, 4 no feasible plan, 130 interrupted.
    """
