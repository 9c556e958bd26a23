"""`spindle schema`: the JSON Schemas of the file formats, for editors and other tools."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from spindle_sim.cli.console import print_json
from spindle_sim.errors import UsageError, suggestion

__all__ = ["schema"]


def schema(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="workload, cluster, plan, profile, timeline or reproduction."
        ),
    ],
) -> None:
    """Print the JSON Schema of a file format."""
    schemas = _schemas()
    if name not in schemas:
        raise UsageError(f"no schema {name!r}; {suggestion(name, schemas)}")
    print_json(schemas[name]())


def _schemas() -> dict[str, Callable[[], dict[str, Any]]]:
    from spindle_sim.cluster import cluster_schema
    from spindle_sim.estimate import profile_schema
    from spindle_sim.plan import plan_schema
    from spindle_sim.report import timeline_schema
    from spindle_sim.reproduce.document import document_schema
    from spindle_sim.workload import workload_schema

    return {
        "workload": workload_schema,
        "cluster": cluster_schema,
        "plan": plan_schema,
        "profile": profile_schema,
        "timeline": timeline_schema,
        "reproduction": document_schema,
    }
