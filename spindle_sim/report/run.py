"""What a report is made from: strategies that ran, and scaling curves."""

from dataclasses import dataclass

from spindle_sim.plan import Plan
from spindle_sim.timeline import Timeline

__all__ = ["Curve", "Run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A plan and one iteration of it, as it ran."""

    plan: Plan
    timeline: Timeline

    @property
    def name(self) -> str:
        """What the report calls it."""
        return self.plan.strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A scaling curve T_m(n): (devices, seconds) of one operator, forward and backward."""

    name: str
    points: tuple[tuple[int, float], ...]
