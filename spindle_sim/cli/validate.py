"""`spindle validate`: check a plan file as a stranger would."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from spindle_sim.cli.console import print_json
from spindle_sim.cli.options import JsonOutput, PlanFile
from spindle_sim.errors import InputError, PlanError, Problem

if TYPE_CHECKING:
    from spindle_sim.plan import Plan

__all__ = ["load_valid_plan", "validate"]


def validate(plan: PlanFile, *, json: JsonOutput = False) -> None:
    """Check that a plan keeps every rule: one line, with ids, for each rule that it breaks."""
    from spindle_sim.plan import load_plan, validate_plan

    if json:
        violations = validate_plan(load_plan(plan))
        print_json(
            {
                "plan": plan,
                "valid": not violations,
                "violations": [asdict(violation) for violation in violations],
            }
        )
        raise typer.Exit(PlanError.exit_code if violations else 0)
    from spindle_sim.units import counted

    checked = load_valid_plan(plan)
    print(
        f"{plan}: valid: {checked.strategy} for {checked.workload.name} on {checked.cluster.name},"
        f" {counted(len(checked.metaops), 'MetaOp')} in {counted(len(checked.slices), 'slice')}"
    )


def load_valid_plan(path: str) -> "Plan":
    """Give the plan in a file.

    Raises:
        PlanError: the file holds no plan, or one that breaks a rule; with every violation.
        InputError: it is YAML, as workloads are.
    """
    from spindle_sim.plan import load_plan, validate_plan

    if Path(path).suffix in {".yaml", ".yml"}:
        raise InputError(
            f"{path:.200}: is YAML, as workloads are; a plan is JSON: make it with"
            " `spindle plan WORKLOAD -o plan.json`"
        )
    plan = load_plan(path)
    violations = validate_plan(plan)
    if violations:
        raise PlanError(
            *(
                Problem(source=path, path=violation.rule, message=violation.message)
                for violation in violations
            )
        )
    return plan
