"""Figure 13: tasks join and exit while training goes on; each system plans anew, saves, reloads.

The paper gives neither the task sets nor how long each lasts. Here four tasks of Multitask-CLIP are
joined by three more and by the last three, then the three with the least data exit. At every change
the model is saved once and the new plan's states are read by every node. Assumptions, not
measurements:

- one file server of 2 GB/s for all nodes, the top of what an NFS server is said to give (1 to
  2 GB/s; spheron.network, guide to parallel file systems for GPU clouds);
- planning takes the 3 s that the paper states as its upper bound, for every system alike: our own
  planning times are wall times and would make this figure differ from run to run;
- processes, communicators and data loaders restart in no time, for every system alike.
"""

from dataclasses import dataclass

from spindle_sim.reproduce.cases import CASE_STUDY, PHASES, SYSTEMS
from spindle_sim.reproduce.evidence import Evidence
from spindle_sim.reproduce.outcome import CaseResult

__all__ = [
    "ITERATIONS",
    "PLANNING_S",
    "STORAGE_BYTES_PER_S",
    "Course",
    "PhaseCost",
    "courses",
]

ITERATIONS = 1000  # of each task set
STORAGE_BYTES_PER_S = 2e9
PLANNING_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseCost:
    """One task set under one system; the change is what happens before its first iteration."""

    tasks: str
    iteration_s: float
    training_s: float
    save_s: float
    planning_s: float
    reload_s: float

    @property
    def change_s(self) -> float:
        """Saving, planning and reloading."""
        return self.save_s + self.planning_s + self.reload_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """All task sets, one after the other, under one system."""

    strategy: str
    phases: tuple[PhaseCost, ...]

    @property
    def total_s(self) -> float:
        """From the first iteration to the last, with every change."""
        return sum(phase.training_s + phase.change_s for phase in self.phases)


def courses(evidence: Evidence) -> tuple[Course, ...]:
    """Give the course of every system that has a plan for every task set."""
    results = [evidence.result(CASE_STUDY.workload, tasks, CASE_STUDY.gpus) for tasks in PHASES]
    known = [result for result in results if result is not None]
    if len(known) < len(PHASES):
        return ()
    return tuple(
        Course(strategy=strategy, phases=tuple(_phases(known, strategy)))
        for strategy in SYSTEMS
        if all(result.of(strategy) is not None for result in known)
    )


def _phases(results: list[CaseResult], strategy: str) -> list[PhaseCost]:
    phases = []
    before: CaseResult | None = None
    for result in results:
        outcome = result.of(strategy)
        assert outcome is not None, "only systems with a plan for every task set"
        phases.append(
            PhaseCost(
                tasks=_name(result),
                iteration_s=outcome.iteration_s,
                training_s=ITERATIONS * outcome.iteration_s,
                save_s=before.state_bytes / STORAGE_BYTES_PER_S if before else 0.0,
                planning_s=PLANNING_S if before else 0.0,
                reload_s=outcome.reload_bytes / STORAGE_BYTES_PER_S if before else 0.0,
            )
        )
        before = result
    return phases


def _name(result: CaseResult) -> str:
    tasks = result.case.tasks
    return f"first {tasks} tasks" if isinstance(tasks, int) else f"{len(tasks)} of ten tasks"
