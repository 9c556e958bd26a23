"""The paper's evaluation (section 5) on the simulated cluster, statement by statement."""

from spindle_sim.reproduce.run import (
    ALL_PARTS,
    EXPLAIN,
    PARTS,
    Options,
    Reproduction,
    cases_of,
    reproduce,
)

__all__ = [
    "ALL_PARTS",
    "EXPLAIN",
    "PARTS",
    "Options",
    "Reproduction",
    "cases_of",
    "reproduce",
]
