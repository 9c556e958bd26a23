"""`spindle plan`, `validate` and `simulate`: a plan goes from hand to hand as a file."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from spindle_sim import load_plan, validate_plan
from spindle_sim.cli.application import application
from spindle_sim.errors import InputError, PlanError


def run(*arguments: str) -> Result:
    return CliRunner().invoke(application(), arguments)


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    arguments = ["multitask-clip", "--tasks", "2", "--cluster", "a800:1x4", "-o", str(path)]
    done = run("plan", *arguments)
    assert done.exit_code == 0, done.output
    assert str(path) in done.stdout
    return path


@pytest.fixture
def broken_file(plan_file: Path, tmp_path: Path) -> Path:
    document = json.loads(plan_file.read_text())
    document["slices"][0]["devices"][0] = 99
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(document))
    return path


def test_a_plan_is_written_whole_and_valid(plan_file: Path) -> None:
    assert list(plan_file.parent.iterdir()) == [plan_file]
    assert validate_plan(load_plan(plan_file)) == ()


def test_the_same_plan_is_the_same_bytes(plan_file: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.json"
    arguments = ["multitask-clip", "--tasks", "2", "--cluster", "a800:1x4", "-o", str(again)]
    assert run("plan", *arguments).exit_code == 0
    assert again.read_bytes() == plan_file.read_bytes()


def test_a_file_of_the_other_kind_points_to_the_command_for_it(
    plan_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="is a plan, not a workload: give it to `spindle sim"):
        raise_of(run("compare", str(plan_file)))
    with pytest.raises(InputError, match="is YAML, as workloads are"):
        raise_of(run("simulate", str(tmp_path / "workload.yaml")))


def raise_of(done: Result) -> None:
    assert done.exception is not None
    raise done.exception


def test_validate_says_that_a_plan_is_valid(plan_file: Path) -> None:
    done = run("validate", str(plan_file))
    assert done.exit_code == 0
    assert "valid" in done.stdout
    document = json.loads(run("validate", str(plan_file), "--json").stdout)
    assert document == {"plan": str(plan_file), "valid": True, "violations": []}


def test_validate_names_every_violation(broken_file: Path) -> None:
    done = run("validate", str(broken_file))
    assert isinstance(done.exception, PlanError)
    lines = str(done.exception).splitlines()
    assert any("99" in line for line in lines)
    found = run("validate", str(broken_file), "--json")
    assert found.exit_code == PlanError.exit_code
    violations = json.loads(found.stdout)["violations"]
    assert len(violations) == len(lines)
    assert all(violation["ids"] for violation in violations)


def test_simulate_refuses_a_plan_that_breaks_a_rule(broken_file: Path) -> None:
    done = run("simulate", str(broken_file))
    assert isinstance(done.exception, PlanError)
    assert done.stdout == ""


def test_simulate_gives_what_compare_gives(plan_file: Path) -> None:
    simulated = json.loads(run("simulate", str(plan_file), "--json").stdout)
    arguments = ["multitask-clip", "--tasks", "2", "--cluster", "a800:1x4"]
    compared = json.loads(run("compare", *arguments, "--strategies", "spindle", "--json").stdout)
    row = compared["strategies"][0]
    del row["planning_s"], row["error"]
    assert {key: simulated[key] for key in row} == row
    assert simulated["workload"] == compared["workload"]
    assert simulated["cluster"] == compared["cluster"]


def test_plan_and_simulate_give_what_compare_gives_with_overlapped_synchronization(
    tmp_path: Path,
) -> None:
    asked = ["multitask-clip", "--tasks", "4", "--cluster", "a800:2x8", "--overlap-sync"]
    file = str(tmp_path / "plan.json")
    run("plan", *asked, "-o", file)
    simulated = json.loads(run("simulate", file, "--overlap-sync", "--json").stdout)
    compared = json.loads(run("compare", *asked, "--strategies", "spindle", "--json").stdout)
    assert simulated["iteration_s"] == compared["strategies"][0]["iteration_s"]


def test_simulate_says_when_gradients_synchronize_and_takes_it_from_the_plan(
    plan_file: Path, tmp_path: Path
) -> None:
    assert "synchronize after the backward" in run("simulate", str(plan_file)).stdout
    assert (
        "synchronize beside the backward"
        in run("simulate", str(plan_file), "--overlap-sync").stdout
    )
    made_for_it = tmp_path / "beside.json"
    which = ("multitask-clip", "--tasks", "1", "--cluster", "a800:1x2")
    run("plan", *which, "--strategy", "megatron", "-o", str(made_for_it))
    assert "synchronize beside the backward" in run("simulate", str(made_for_it)).stdout
    done = json.loads(run("simulate", str(made_for_it), "--json").stdout)
    assert done["provenance"]["overlap_sync"] is True


def test_simulate_explain_and_sweep_warn_of_a_gpu_whose_estimates_are_off(tmp_path: Path) -> None:
    made, which = tmp_path / "h100.json", ("--tasks", "1", "--cluster", "h100:1x2")
    run("plan", "multitask-clip", *which, "-o", str(made))
    for arguments in (
        ("simulate", str(made)),
        ("explain", str(made)),
        ("sweep", *which, "--strategies", "seq"),
    ):
        assert "estimated too fast" in run(*arguments).stdout


def test_simulate_prints_a_table(plan_file: Path) -> None:
    printed = run("simulate", str(plan_file)).stdout
    for name in (
        "Iteration",
        "Synchronization",
        "Optimizer",
        "Utilization",
        "Peak memory of a device",
    ):
        assert name in printed


def test_simulate_writes_report_and_trace(plan_file: Path, tmp_path: Path) -> None:
    report, trace = tmp_path / "out.html", tmp_path / "trace.json"
    done = run("simulate", str(plan_file), "--report", str(report), "--trace", str(trace))
    assert done.exit_code == 0, done.output
    assert "<html" in report.read_text(encoding="utf-8")
    assert json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
