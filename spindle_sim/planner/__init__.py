"""From workload and cluster to a plan: the paper's steps (section 3), a file each."""

from spindle_sim.planner.make import STRATEGIES, NamedStrategy, make_plan

__all__ = ["STRATEGIES", "NamedStrategy", "make_plan"]
