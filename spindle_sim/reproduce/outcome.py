"""What came of a case: one strategy's figures, and those of all strategies."""

from dataclasses import dataclass

from spindle_sim.reproduce.cases import Case

__all__ = ["CaseResult", "Outcome"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One strategy in one case; where no plan is feasible, `error` says why and all else is 0.

    In `iteration_s` gradients synchronize beside the backward, under all systems alike.
    `isolated_s` is the iteration with synchronization after it, as section 5.4 isolates it; of
    that one are `forward_backward_s` to `idle_s`, seconds of an average device that add up to it
    (`optimizer_s` isn't part of `sync_s` here), and `end_of_compute_s`, when the last device has
    computed; `makespan_s` is that with free transfers. `optimum_s` is C* of Theorem 1, summed over
    MetaLevels, in the rate form; `equation_11_s` by equation 11 as printed.
    """

    strategy: str
    error: str = ""
    iteration_s: float = 0.0
    isolated_s: float = 0.0
    forward_backward_s: float = 0.0
    sync_s: float = 0.0
    optimizer_s: float = 0.0
    send_recv_s: float = 0.0
    idle_s: float = 0.0
    end_of_compute_s: float = 0.0
    makespan_s: float = 0.0
    optimum_s: float = 0.0
    equation_11_s: float = 0.0
    utilization: float = 0.0
    device_utilization: tuple[float, ...] = ()
    metaop_utilization: tuple[tuple[str, float], ...] = ()
    over_time: tuple[tuple[float, float], ...] = ()
    memory_bytes: tuple[float, ...] = ()  # the peak of each device
    reload_bytes: float = 0.0  # states that all nodes read to begin with this plan
    rounds: int = 1
    recomputed_metaops: int = 0
    tensor_parallel: int = 1
    zero_stage: int = 0
    planning_s: float = 0.0  # wall time

    @property
    def feasible(self) -> bool:
        """Whether there is a plan."""
        return not self.error


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """All strategies of a case; `sequential` is Spindle's schedule on consecutive devices.

    `state_bytes` are all parameters and optimizer states of the model once, as a checkpoint has
    them; `profile` says where the times come from.
    """

    case: Case
    outcomes: tuple[Outcome, ...]
    sequential: Outcome | None = None
    state_bytes: float = 0.0
    profile: str = ""

    def of(self, strategy: str) -> Outcome | None:
        """Give a strategy's figures; None where it wasn't run or has no plan."""
        return next(
            (one for one in self.outcomes if one.strategy == strategy and one.feasible), None
        )
