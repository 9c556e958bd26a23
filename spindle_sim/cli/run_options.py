"""The options of `spindle run`; where one is left out, None says so."""

from typing import Annotated

import typer

from spindle_sim.cli.options import integer_parser, number_parser

__all__ = [
    "Autocast",
    "BucketMegabytes",
    "Checkpoint",
    "CheckpointEvery",
    "CheckpointKeep",
    "ClipNorm",
    "Dtype",
    "Emulate",
    "Iterations",
    "NumProcesses",
    "Resume",
    "TimeScale",
    "TimelineFile",
    "Timeout",
    "TraceFile",
    "UntilStep",
]

NumProcesses = Annotated[
    int | None,
    typer.Option(
        metavar="COUNT",
        parser=integer_parser("--nproc", least=1),
        help="Processes to start: one for each device of the plan, which is the default.",
        show_default=False,
    ),
]
Iterations = Annotated[
    int | None,
    typer.Option(
        metavar="COUNT",
        parser=integer_parser("--iterations", least=1),
        help="Training steps to run, of which the first warms up; 3 by default.",
        show_default=False,
    ),
]
Emulate = Annotated[
    bool, typer.Option("--emulate", help="Wait for the planned times instead of computing.")
]
TimeScale = Annotated[
    float | None,
    typer.Option(
        metavar="FACTOR",
        parser=number_parser("--time-scale", above=0.0),
        help="With --emulate: wait this many times as long as planned; 1 by default.",
        show_default=False,
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        metavar="float32|float64",
        help="The precision of everything; float32 by default.",
        show_default=False,
    ),
]
Autocast = Annotated[
    str | None,
    typer.Option(
        metavar="bf16",
        help="Compute and send activations in this precision; parameters stay in float32.",
        show_default=False,
    ),
]
ClipNorm = Annotated[
    float | None,
    typer.Option(
        "--clip-norm",
        metavar="NORM",
        parser=number_parser("--clip-norm", above=0.0),
        help="Scale the gradients to this norm, over all parameters, where it is larger.",
        show_default=False,
    ),
]
BucketMegabytes = Annotated[
    float | None,
    typer.Option(
        "--bucket-mb",
        metavar="MB",
        parser=number_parser("--bucket-mb", above=0.0),
        help="With --overlap-sync: gradients that leave together; 100 by default.",
        show_default=False,
    ),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(metavar="FOLDER", help="Save the training here, at the end.", show_default=False),
]
CheckpointEvery = Annotated[
    int | None,
    typer.Option(
        metavar="STEPS",
        parser=integer_parser("--checkpoint-every", least=1),
        help="With --checkpoint: save after every so many steps, too.",
        show_default=False,
    ),
]
CheckpointKeep = Annotated[
    int | None,
    typer.Option(
        metavar="COUNT",
        parser=integer_parser("--checkpoint-keep", least=1),
        help="With --checkpoint: remove all but the latest; all stay without it.",
        show_default=False,
    ),
]
Resume = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER",
        help="Go on from the latest whole checkpoint in a folder, or from one of them.",
        show_default=False,
    ),
]
UntilStep = Annotated[
    int | None,
    typer.Option(
        metavar="STEP",
        parser=integer_parser("--until-step", least=1),
        help="End after this step of the whole training, instead of --iterations.",
        show_default=False,
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
TimelineFile = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Write the executed timeline (JSON).", show_default=False),
]
TraceFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Write the executed iteration for the Perfetto UI (Chrome JSON).",
        show_default=False,
    ),
]
