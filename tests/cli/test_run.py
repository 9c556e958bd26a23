"""`spindle run` as a user has it: tables, JSON, files, refusals."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spindle_sim.cli.application import application
from spindle_sim.errors import UsageError
from tests.commands import spindle

PLAN = ["plan", "multitask-clip", "--tiny", "--tasks", "1", "--cluster", "a800:1x2"]


def process(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "spindle_sim", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    done = CliRunner().invoke(application(), [*PLAN, "-o", str(tmp_path / "tiny.json")])
    assert done.exit_code == 0, done.output
    return tmp_path


@pytest.mark.slow
def test_a_run_prints_both_times_and_writes_what_was_asked_for(folder: Path) -> None:
    files = ["--timeline", "timeline.json", "--trace", "trace.json"]
    done = process("run", "tiny.json", "--nproc", "2", "--json", *files, cwd=folder)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["ranks"], document["backend"]) == (2, "torch-gloo")
    assert len(document["iterations_s"]) == len(document["losses"]) == 3
    simulated, executed = document["simulated"], document["executed"]
    assert simulated.keys() == executed.keys()
    assert document["error"] == simulated["iteration_s"] / executed["iteration_s"] - 1
    assert executed["iteration_s"] in document["iterations_s"]
    assert all(row["executed_s"] > 0 and row["simulated_s"] > 0 for row in document["slices"])
    timeline = json.loads((folder / "timeline.json").read_text())
    assert {span["device"] for span in timeline["spans"]} == {0, 1}
    assert json.loads((folder / "trace.json").read_text())["traceEvents"]


@pytest.mark.slow
def test_an_emulated_run_prints_its_time_beside_the_simulated_one(folder: Path) -> None:
    done = spindle("run", "tiny.json", "--emulate", "--iterations", "1", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "emulated" in done.stdout
    assert "Iteration" in done.stdout
    assert "Losses" not in done.stdout


def test_another_number_of_processes_than_the_plan_has_devices_is_refused(folder: Path) -> None:
    done = spindle("run", "tiny.json", "--nproc", "3", cwd=folder)
    assert done.returncode == 2
    assert "--nproc 3: the plan is for 2 devices" in done.stderr


def test_custom_operators_without_a_module_are_refused_by_name_before_anything_starts(
    folder: Path,
) -> None:
    planned = spindle(*[a for a in PLAN if a != "--tiny"], "-o", "large.json", cwd=folder)
    assert planned.returncode == 0, planned.stderr
    done = spindle("run", "large.json", cwd=folder)
    assert done.returncode == 3
    assert "give a module for 'vision/stem'" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--time-scale", "2"], "--time-scale 2: is for --emulate"),
        (["--bucket-mb", "5"], "--bucket-mb 5: is for --overlap-sync"),
        (["--emulate", "--dtype", "float64"], "--dtype float64: an emulated run computes nothing"),
        (["--iterations", "2", "--until-step", "5"], "--iterations and --until-step both say"),
    ],
)
def test_an_option_that_would_be_passed_over_is_refused(
    folder: Path, arguments: list[str], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        run(str(folder / "tiny.json"), *arguments)


def run(*arguments: str) -> None:
    application()(args=["run", *arguments], standalone_mode=False)


def test_a_folder_that_cant_be_written_to_is_refused_before_anything_runs(folder: Path) -> None:
    (folder / "file").touch()
    for path, said in (("/proc/saved", "can't be written to"), (folder / "file", "is a file")):
        with pytest.raises(UsageError, match=f"--checkpoint .*{said}"):
            run(str(folder / "tiny.json"), "--checkpoint", str(path))
