"""Checks a plan as a stranger would: from its workload and cluster, trusting no derived field."""

from spindle_sim.plan.model import Plan
from spindle_sim.plan.names import wrong_names
from spindle_sim.plan.rules.flows import check_flows
from spindle_sim.plan.rules.groups import check_groups
from spindle_sim.plan.rules.inputs import check_inputs, check_sizes
from spindle_sim.plan.rules.memory import check_memory
from spindle_sim.plan.rules.metaops import check_metaops
from spindle_sim.plan.rules.order import check_devices, check_precedence
from spindle_sim.plan.rules.rounds import check_rounds, check_sharding
from spindle_sim.plan.rules.slices import check_allocations, check_coverage
from spindle_sim.plan.rules.subject import examine
from spindle_sim.plan.rules.times import check_durations, check_starts
from spindle_sim.plan.rules.violation import Violation

__all__ = ["Violation", "validate_plan"]

_RULES = (
    check_inputs,
    check_metaops,
    check_coverage,
    check_allocations,
    check_rounds,
    check_sharding,
    check_devices,
    check_precedence,
    check_flows,
    check_groups,
    check_memory,
    check_durations,
)
# A plan that breaks one of these has no schedule, or none worth comparing with.
_BEFORE_STARTS = {
    "allocation",
    "coverage",
    "device",
    "flow",
    "metaop",
    "number",
    "precedence",
    "reference",
    "round",
    "slice-id",
}


def validate_plan(plan: Plan) -> tuple[Violation, ...]:
    """Give every rule that the plan breaks, in the order of the rules; none for a valid plan.

    Linear in the plan's size, but for sorting.
    """
    wrong = [
        Violation(rule="name", ids=(path,), message=f"{path}: {mistake}")
        for path, mistake in wrong_names(plan)
    ]
    wrong += check_sizes(plan)
    if wrong:  # the other rules would print these names and calculate with these numbers
        return tuple(wrong)
    subject = examine(plan)
    found = [violation for rule in _RULES for violation in rule(subject)]
    if not any(violation.rule in _BEFORE_STARTS for violation in found):
        found += check_starts(subject)
    return tuple(found)
