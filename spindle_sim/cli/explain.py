"""`spindle explain`: why is this iteration as long as it is, and what would help most?"""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from spindle_sim.cli.comparison import SimulationOptions
from spindle_sim.cli.console import print_json, progress, stdout_console
from spindle_sim.cli.options import JsonOutput, OverlapSync, PlanFile, number_parser
from spindle_sim.cli.validate import load_valid_plan
from spindle_sim.errors import InputError

if TYPE_CHECKING:
    from spindle_sim.metrics import CriticalPath
    from spindle_sim.plan import Plan
    from spindle_sim.timeline import Timeline
    from spindle_sim.whatif import Sensitivity

__all__ = ["explain"]

_MOST_CHANGES = 11  # with the plan as it is
_PERCENT = 100.0
_DEFAULT_FASTER = 10.0
_MOST_FASTER = 99.0

ExecutedTimeline = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Explain this iteration, as `spindle run --timeline` wrote it, not a simulated one.",
        show_default=False,
    ),
]
Faster = Annotated[
    float,
    typer.Option(
        metavar="PERCENT",
        parser=number_parser("--faster", above=0.0, most=_MOST_FASTER),
        help="How much less time each part takes when it is asked what that would help.",
    ),
]


def explain(
    plan: PlanFile,
    *,
    timeline: ExecutedTimeline = None,
    faster: Faster = _DEFAULT_FASTER,
    overlap_sync: OverlapSync = False,
    json: JsonOutput = False,
) -> None:
    """Explain an iteration of a plan: its critical path, and what would shorten it.

    Each change is simulated with the plan as it is: planning anew may gain more.
    """
    with progress(3 + _MOST_CHANGES) as advance:
        advance("reading the plan")
        loaded = load_valid_plan(plan)
        # As a part of the plan, so that changes are simulated like the plan itself.
        loaded = replace(loaded, overlap_sync=loaded.overlap_sync or overlap_sync)
        advance("simulating the iteration" if timeline is None else "reading the timeline")
        ran = _ran(loaded, timeline)
        advance("finding the critical path")
        from spindle_sim.metrics import critical_path
        from spindle_sim.whatif import sensitivities, timed_as

        path = critical_path(loaded, ran)
        base = loaded if timeline is None else timed_as(loaded, ran)
        changes = sensitivities(
            base, path, executed=timeline is not None, faster=faster / _PERCENT, advance=advance
        )
    if json:
        _print_json(loaded, ran, path, changes, faster=faster)
    else:
        _print(loaded, ran, path, changes, faster=faster, executed=timeline is not None)


def _ran(plan: "Plan", path: str | None) -> "Timeline":
    """Simulate an iteration, or read the one that was executed.

    Raises:
        InputError: nothing happens in it, or the file is wrong.
    """
    from spindle_sim.report import load_timeline
    from spindle_sim.simulator import simulate

    found = simulate(plan) if path is None else load_timeline(path, plan)
    if not found.iteration_s:
        raise InputError(f"{path or 'the plan'}: nothing takes any time in this iteration")
    return found


def _print_json(
    plan: "Plan",
    ran: "Timeline",
    path: "CriticalPath",
    changes: "tuple[Sensitivity, ...]",
    *,
    faster: float,
) -> None:
    from spindle_sim.cli.path_rows import change_row, share_row, step_row
    from spindle_sim.cli.rows import cluster_row, provenance, workload_row

    options = SimulationOptions(overlap_sync=plan.overlap_sync)
    print_json(
        {
            "strategy": plan.strategy,
            "backend": ran.backend,
            "iteration_s": path.iteration_s,
            "simulated_s": changes[0].base_s if changes else None,
            "faster": faster / _PERCENT,
            "kinds": [share_row(share, path, "kind") for share in path.by_kind()],
            "tasks": [share_row(share, path, "task") for share in path.by_task()],
            "metaops": [share_row(share, path, "metaop") for share in path.by_metaop()],
            "devices": [share_row(share, path, "device") for share in path.by_device()],
            "changes": [change_row(change) for change in changes],
            "steps": [step_row(step) for step in path.steps],
            "workload": workload_row(plan.workload),
            "cluster": cluster_row(plan.cluster),
            "provenance": {
                key: value
                for key, value in provenance(plan.profile, options).items()
                if key in ("tool", "profile", "overlap_sync")
            },
        }
    )


def _print(
    plan: "Plan",
    ran: "Timeline",
    path: "CriticalPath",
    changes: "tuple[Sensitivity, ...]",
    *,
    faster: float,
    executed: bool,
) -> None:
    from spindle_sim.cli.path_tables import print_changes, print_path, print_shares
    from spindle_sim.cli.tables import print_cautions, print_inputs
    from spindle_sim.units import counted, format_duration

    console = stdout_console()
    print_inputs(console, plan.workload, plan.cluster)
    console.print(
        f"Critical path of an iteration under {plan.strategy} ({ran.backend}):"
        f" {format_duration(path.iteration_s)} in {counted(len(path.steps), 'step')}, each of which"
        " waits for the one before.",
        soft_wrap=True,
    )
    print_shares(console, path)
    print_path(console, path)
    print_changes(console, changes, path, faster=faster, executed=executed)
    console.print(f"Times: {plan.profile}.", soft_wrap=True)
    print_cautions(console, [(plan.workload, plan.cluster)])
