"""The options of every verb: what scripts rely on."""

import typer.main

from spindle_sim.cli.application import application

NETWORK = {"--nics-per-node", "--nic-bandwidth", "--oversubscription"}
WORKLOAD = {"workload", "--tasks", "--cluster", "--batch-scale", "--profile", *NETWORK}
MEASURING = {"--tiny", "--device", "--dtype", "--seconds", "--links", "--nproc", "--date", "-o"}
# A new option is a promise: it is added here by hand.
OPTIONS = {
    "": {"--version", "--install-completion", "--show-completion"},
    "compare": {
        *WORKLOAD,
        "--tiny",
        "--strategies",
        "--placement",
        "--report",
        "--json",
        "--seed",
        "--jitter",
        "--overlap-sync",
    },
    "sweep": {
        *WORKLOAD - NETWORK,
        "--set",
        "--strategies",
        "--placement",
        "--overlap-sync",
        "--seed",
        "--csv",
        "--json",
    },
    "plan": {
        *WORKLOAD,
        "--tiny",
        "--strategy",
        "--placement",
        "--overlap-sync",
        "--seed",
        "--output",
        "-o",
    },
    "validate": {"plan", "--json"},
    "simulate": {
        "plan",
        "--backend",
        "--report",
        "--profile",
        "--trace",
        "--json",
        "--seed",
        "--jitter",
        "--overlap-sync",
    },
    "explain": {"plan", "--timeline", "--faster", "--overlap-sync", "--json"},
    "run": {
        "plan",
        "--nproc",
        "--iterations",
        "--emulate",
        "--time-scale",
        "--dtype",
        "--autocast",
        "--clip-norm",
        "--overlap-sync",
        "--bucket-mb",
        "--checkpoint",
        "--checkpoint-every",
        "--checkpoint-keep",
        "--resume",
        "--until-step",
        "--timeout",
        "--seed",
        "--timeline",
        "--trace",
        "--json",
    },
    "profile": {*WORKLOAD - NETWORK - {"--profile"}, *MEASURING, "--output", "--json"},
    "curves": {*WORKLOAD, "--tiny", "--tensor-parallel", "--report", "--json"},
    "reproduce": {"parts", "--list", "--gpus", "--batch-scale", "--seed", "--report", "--json"},
    "validate-measured": {
        "file",
        "--gpu",
        "--cluster",
        "--software",
        "--vocabulary",
        "--flash",
        "--report",
        "--json",
    },
    "validate-run": {
        "--workload",
        "--strategies",
        "--ranks",
        "--iterations",
        "--emulate",
        "--time-scale",
        "--timeout",
        "--seed",
        "--json",
    },
    "workloads": {"--json"},
    "gpus": {"--json"},
    "schema": {"name"},
    "init": {"path", "--force"},
}


def test_the_options_are_these() -> None:
    group = typer.main.get_command(application())
    verbs = group.commands  # type: ignore[attr-defined]
    found = {
        name: {
            option
            for parameter in command.params
            for option in (*parameter.opts, *parameter.secondary_opts)
        }
        for name, command in {"": group, **verbs}.items()
    }
    assert found == OPTIONS
