"""A critical path as a person reads it in the terminal: sums, the way it takes, what would help."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spindle_sim.cli.console import new_table
from spindle_sim.cli.fitting import print_table
from spindle_sim.units import counted, format_duration

if TYPE_CHECKING:
    from rich.console import Console

    from spindle_sim.metrics import CriticalPath, PathShare, PathStep
    from spindle_sim.whatif import Sensitivity

__all__ = ["print_changes", "print_path", "print_shares"]

_LISTED = 8  # rows of a table of sums
_RUNS = 20  # rows of the way that a path takes
_WHY = {
    "start": "it waits for nothing",
    "order": "its devices were busy until then",
    "input": "its input had come",
    "gradients": "the gradients were complete",
    "last_rank": "the last device had come",
    "turn": "the synchronization before had ended",
    "step": "all was synchronized",
    "late": "the device began later than the first",
    "engine": "the engine's own time",
    "unexplained": "nothing explains it",
}
_NOT_A_METAOP = "synchronization, optimizer, gaps"


def print_shares(console: "Console", path: "CriticalPath") -> None:
    """Print what the path's time goes to: by kind, by task and MetaOp, by device."""
    table = new_table("Where it goes", "", "Time", "Share")
    for share in path.by_kind():
        if share.seconds:
            table.add_row(*_cells(share, path))
    print_table(console, table)
    for title, shares in (
        ("By task", path.by_task()),
        ("By MetaOp", path.by_metaop()),
        ("By device", path.by_device()),
    ):
        _print_parts(console, title, shares, path)


def _print_parts(
    console: "Console", title: str, shares: Sequence["PathShare"], path: "CriticalPath"
) -> None:
    table = new_table(title, "", "Time", "Share", "Computing", "Transfers", "Synchronization")
    for share in shares[:_LISTED]:
        name = f"device {share.name}" if title == "By device" else share.name or _NOT_A_METAOP
        table.add_row(
            name,
            *_cells(share, path)[1:],
            format_duration(share.compute_s),
            format_duration(share.transfer_s),
            format_duration(share.synchronization_s),
        )
    rest = sum(share.seconds for share in shares[_LISTED:])
    if rest:
        table.add_row(
            f"{len(shares) - _LISTED} more", format_duration(rest), f"{rest / path.iteration_s:.1%}"
        )
    print_table(console, table)


def print_path(console: "Console", path: "CriticalPath") -> None:
    """Print the way that the path takes, steps of one MetaOp together; the longest of many."""
    runs = _runs(path.steps)
    longest = sorted(runs, key=lambda run: (-run.seconds, run.start_s))[:_RUNS]
    title = "The way it takes"
    if len(runs) > _RUNS:
        title += f" (the longest {_RUNS} of {len(runs)} parts)"
    table = new_table(title, "From", "Time", "What", "On devices", "Begins because")
    for column in table.columns[2:]:
        column.justify = "left"
    for run in sorted(longest, key=lambda run: run.start_s):
        table.add_row(
            format_duration(run.start_s),
            format_duration(run.seconds),
            run.text,
            run.places,
            _WHY[run.steps[0].why],
        )
    print_table(console, table)


def print_changes(
    console: "Console",
    changes: Sequence["Sensitivity"],
    path: "CriticalPath",
    *,
    faster: float,
    executed: bool,
) -> None:
    """Print what each change gives."""
    if not changes:
        console.print("What would help: nothing on the path is long enough to ask for.")
        return
    base_s = changes[0].base_s
    table = new_table(
        f"What if it took {faster:g} % less time? Each simulated, the same plan",
        "",
        "On the path",
        "By the path",
        "Simulated",
        "Saves",
    )
    for change in changes:
        table.add_row(
            _change_text(change),
            format_duration(change.path_s),
            "-" if change.expected_s is None else format_duration(change.expected_s),
            format_duration(change.simulated_s),
            f"{change.saved_s / base_s:.1%}",
        )
    print_table(console, table)
    console.print(
        "By the path: the iteration if this path stayed the longest chain. Where the simulation"
        " saves less, another chain is nearly as long.",
        soft_wrap=True,
    )
    if executed:
        console.print(
            f"Changes are simulated with the times that slices took: {format_duration(base_s)}"
            f" without a change, where {format_duration(path.iteration_s)} were executed; links and"
            " optimizer are the cluster's as modelled, so that nothing is asked of them.",
            soft_wrap=True,
        )


def _cells(share: "PathShare", path: "CriticalPath") -> tuple[str, str, str]:
    part = share.seconds / path.iteration_s
    return share.name, format_duration(share.seconds), f"{part:.1%}"


def _change_text(change: "Sensitivity") -> str:
    return {
        "metaop": f"computing {change.metaop}",
        "compute": "all computing",
        "links": "all links",
        "network_cards": "the network cards alone",
        "memory": "GPU memory (optimizer step, copies)",
        "overlap_sync": "gradients synchronized beside the backward (no other change)",
    }[change.kind]


@dataclass(slots=True)
class _Run:
    """Steps of one MetaOp behind one another, or of one kind where they are of none."""

    steps: list["PathStep"] = field(default_factory=list)

    @property
    def start_s(self) -> float:
        return self.steps[0].start_s

    @property
    def seconds(self) -> float:
        return self.steps[-1].end_s - self.steps[0].start_s

    @property
    def text(self) -> str:
        first = self.steps[0]
        if not first.metaop:
            return first.kind if first.kind != "step" else "optimizer step"
        kinds = list(dict.fromkeys(step.kind.value for step in self.steps))
        phases = dict.fromkeys(step.phase.value for step in self.steps if step.phase)
        several = f", {counted(len(self.steps), 'step')}" if len(self.steps) > 1 else ""
        return f"{first.metaop} {'+'.join(phases)}: {', '.join(kinds)}{several}"

    @property
    def places(self) -> str:
        devices = list(dict.fromkeys(step.device for step in self.steps))
        listed = ", ".join(map(str, devices[:4]))
        return f"{listed}, ..." if len(devices) > 4 else listed  # noqa: PLR2004


def _runs(steps: Iterable["PathStep"]) -> list[_Run]:
    runs: list[_Run] = []
    for step in steps:
        last = runs[-1].steps[-1] if runs else None
        together = last is not None and last.metaop == step.metaop
        if not together or (not step.metaop and last is not None and last.kind is not step.kind):
            runs.append(_Run())
        runs[-1].steps.append(step)
    return runs
