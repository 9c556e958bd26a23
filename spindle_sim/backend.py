"""The seam between plans and what runs them: a plan in, a timeline out.

Backends are found through the entry point group `spindle_sim.backends`.
"""

from typing import Protocol

from spindle_sim.plan import Plan
from spindle_sim.timeline import Timeline

__all__ = ["Backend"]


class Backend(Protocol):
    """Runs a valid plan for one iteration."""

    name: str

    def run(self, plan: Plan) -> Timeline:
        """Give what happened."""
        ...
