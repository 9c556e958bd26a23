"""Small plans that the torch backend runs."""

from spindle_sim import make_plan, parse_cluster
from spindle_sim.plan import Plan
from spindle_sim.workload import builtin_workload
from spindle_sim.workload.tiny import tiny


def tiny_plan(strategy: str = "spindle", ranks: int = 2) -> Plan:
    """Give two tiny contrastive tasks on one node."""
    workload = tiny(builtin_workload("multitask-clip")).with_first_tasks(2)
    return make_plan(workload, parse_cluster(f"a800:1x{ranks}"), strategy)
