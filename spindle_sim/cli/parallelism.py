"""The parallel configurations of a plan whose strategy tunes them, as the report has them.

The report is imported where a plan is shown, so that `--help` loads nothing heavy.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spindle_sim.plan import Plan

__all__ = ["parallelism_note", "parallelism_rows"]


def parallelism_note(plan: "Plan") -> str:
    """Give half a line on the tasks' configurations; nothing where none is tuned."""
    from spindle_sim.report.parallelism import parallelism_note as note

    return note(plan)


def parallelism_rows(plan: "Plan") -> list[dict[str, object]]:
    """Give each task's configuration as plain data; nothing where none is tuned."""
    from spindle_sim.report.parallelism import parallelism_rows as rows

    return rows(plan)
