"""The Python API: its names, and that importing it costs nothing."""

import subprocess
import sys

import pytest

import spindle_sim

NAMES = [
    "Estimator",
    "Run",
    "SpindleError",
    "builtin_workload",
    "load_plan",
    "load_workload",
    "make_plan",
    "parse_cluster",
    "save_plan",
    "simulate",
    "summarize",
    "validate_plan",
    "write_report",
    "write_trace",
]


def test_the_public_names_are_these() -> None:
    assert spindle_sim.__all__ == NAMES
    assert set(NAMES) <= set(dir(spindle_sim))


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_there_and_documented(name: str) -> None:
    assert getattr(spindle_sim, name).__doc__


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nosuch"):
        _ = spindle_sim.nosuch


def _modules_after(statement: str) -> set[str]:
    program = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = {"numpy", "networkx", "pydantic", "plotly", "scipy", "simpy", "torch", "typer"}
    assert not heavy & _modules_after("import spindle_sim")


def test_planning_and_simulating_load_neither_torch_nor_plotly_nor_the_cli() -> None:
    statement = (
        "import spindle_sim.metrics\n"
        "from spindle_sim import builtin_workload, make_plan, parse_cluster, simulate\n"
        "workload = builtin_workload('multitask-clip').with_first_tasks(1)\n"
        "simulate(make_plan(workload, parse_cluster('a800:1x2')))"
    )
    assert not {"torch", "plotly", "typer"} & _modules_after(statement)
