"""Small plans that the torch backend runs."""

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count

from spindle_sim import make_plan, parse_cluster
from spindle_sim.backend import ExecutionOptions
from spindle_sim.cluster import Cluster
from spindle_sim.errors import PlanError, SpindleError
from spindle_sim.plan import Plan
from spindle_sim.workload import Workload, builtin_workload
from spindle_sim.workload.tiny import tiny
from spindle_torch.compilation import compile_plan
from spindle_torch.requirements import check_requirements
from tests.builders import make_memory
from tests.random_plans import dealt_plan
from tests.stated_plans import stated


def refusal(plan: Plan) -> str | None:
    """Say why the backend refuses a plan, if it does."""
    try:
        check_requirements(plan, ExecutionOptions(), {})
    except SpindleError as error:
        return str(error)
    return None


def tiny_plan(strategy: str = "spindle", ranks: int = 2) -> Plan:
    """Give two tiny contrastive tasks on one node."""
    workload = tiny(builtin_workload("multitask-clip")).with_first_tasks(2)
    return make_plan(workload, parse_cluster(f"a800:1x{ranks}"), strategy)


def workloads() -> dict[str, Workload]:
    """The three tiny workloads; frozen towers in two more."""
    found = {}
    for name, tasks in (("multitask-clip", 4), ("ofasys", 4), ("qwen-val", 3)):
        found[name] = tiny(builtin_workload(name)).with_first_tasks(tasks)
    for name, frozen in (("multitask-clip", "text"), ("qwen-val", "vision")):
        modules = tuple(
            replace(module, frozen=module.name == frozen) for module in found[name].modules
        )
        found[f"{name}-frozen"] = replace(found[name], modules=modules)
    return found


def dealt(
    workload: Workload,
    cluster: Cluster,
    *,
    zero1: bool = False,
    uneven: bool = False,
    first: int = 0,
) -> Iterator[tuple[int, Plan]]:
    """Give random plans that the backend takes, with or without ZeRO-1; seeds begin with `first`.

    Uneven plans aren't valid, but only since times and memory are those of equal shards.
    """
    for seed in count(first):
        choose = random.Random(seed).choice
        plan = stated(dealt_plan(choose, workload, cluster, uneven=uneven))
        memory = make_memory(plan.metaops, plan.slices, plan.parameter_groups, zero1=plan.zero1)
        plan = replace(plan, memory=memory)
        with suppress(PlanError):  # a tied projection with another degree than its table's
            compile_plan(plan)
            if plan.zero1 == zero1:
                yield seed, plan
