"""The parallel configurations of a plan whose strategy tunes them, as the report has them."""

from spindle_sim.report.parallelism import (
    TaskParallelism,
    parallelism,
    parallelism_note,
    parallelism_rows,
)

__all__ = ["TaskParallelism", "parallelism", "parallelism_note", "parallelism_rows"]
