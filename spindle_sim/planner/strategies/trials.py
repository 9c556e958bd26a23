"""Which of the configurations that are judged nearly equal is the fastest: they are simulated.

The judge is off by a few percent where traffic meets on links, and where buckets fill late.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from spindle_sim.plan import Plan
from spindle_sim.planner.strategies.judge import Option
from spindle_sim.planner.strategies.parallel import ParallelConfig
from spindle_sim.simulator import simulated_s

__all__ = ["MARGIN", "Trial", "fastest"]

# What the judge ranks, and the simulator, by how much they may differ about two configurations.
MARGIN = 0.04
_SLIGHT = 1e-3  # what is faster by less is as fast
_MOST = 5  # simulations
_MOST_OPERATIONS = 24_000  # forwards and backwards in all of them: about two seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Options of all tasks, in the order of the tasks, under a ZeRO stage, and as judged."""

    options: tuple[Option, ...]
    zero_stage: int
    seconds: float

    @property
    def configs(self) -> Mapping[str, ParallelConfig]:
        """The configuration of each task, in their order."""
        return {option.sketch.task: option.sketch.config for option in self.options}

    @property
    def family(self) -> tuple[object, ...]:
        """What the judge errs alike about: of one family the best judged is the best."""
        ways = tuple(
            (o.sketch.task, c.tp, c.pp, c.dp, c.chunks > 1)
            for o in self.options
            for c in [o.sketch.config]
        )
        return self.zero_stage, ways

    @property
    def operations(self) -> int:
        """Forwards and backwards of all micro-batches."""
        return sum(
            2 * option.sketch.micro_batches * sum(map(len, option.sketch.stages))
            for option in self.options
        )


def fastest(best: Trial, others: Iterable[Trial], plan_of: Callable[[Trial], Plan]) -> Trial:
    """Give what simulates fastest: the best judged, or one within the margin that is faster."""
    chosen = _chosen(best, sorted(others, key=lambda trial: (trial.seconds, trial.zero_stage)))
    if not chosen:
        return best
    best_s = simulated_s(plan_of(best))
    for trial in chosen:
        time_s = simulated_s(plan_of(trial))
        if time_s < best_s * (1 - _SLIGHT):
            best, best_s = trial, time_s
    return best


def _chosen(best: Trial, ranked: Sequence[Trial]) -> list[Trial]:
    """Give the best judged of each other family, as many as may be simulated."""
    families = {best.family}
    operations = best.operations
    chosen: list[Trial] = []
    for trial in ranked:
        if trial.seconds > best.seconds * (1 + MARGIN) or len(families) == _MOST:
            break
        if trial.family in families:
            continue
        operations += trial.operations
        if operations > _MOST_OPERATIONS:
            break
        families.add(trial.family)
        chosen.append(trial)
    return chosen
