"""`spindle run --checkpoint` and `--resume` as a user has them."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spindle_sim.cli.application import application
from tests.commands import spindle

PLAN = ["plan", "multitask-clip", "--tiny", "--cluster", "a800:1x2"]
SAVED = ("--checkpoint", "saved", "--dtype", "float64", "--json")


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return spindle("run", *arguments, cwd=folder)


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with plans of two and of four tasks."""
    made = tmp_path_factory.mktemp("plans")
    for tasks in ("2", "4"):
        arguments = [*PLAN, "--tasks", tasks, "-o", str(made / f"{tasks}.json")]
        done = CliRunner().invoke(application(), arguments)
        assert done.exit_code == 0, done.output
    return made


@pytest.fixture(scope="module")
def begun(plans: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with these plans in which four tasks were trained for two steps."""
    made = tmp_path_factory.mktemp("begun") / "folder"
    shutil.copytree(plans, made)
    first = run(made, "4.json", *SAVED, "--iterations", "2")
    assert first.stderr == "note: saved saved/step-2\n"
    return made


@pytest.fixture
def folder(plans: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(plans, tmp_path / "folder"))


@pytest.fixture
def trained(begun: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(begun, tmp_path / "folder"))


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("2.json --resume no", 3, "error: no: doesn't exist"),
        ("2.json --resume 2.json", 3, "error: 2.json: is a file, not a folder of checkpoints"),
        ("2.json --resume .", 3, "error: .: has no checkpoint of spindle (step-N folders)"),
        ("2.json --emulate --checkpoint a", 2, "error: --emulate trains nothing"),
        ("2.json --checkpoint-every 2", 2, "error: --checkpoint-every 2: say where"),
    ],
)
def test_what_cant_go_on_is_refused_in_one_line_before_anything_starts(
    folder: Path, arguments: str, code: int, message: str
) -> None:
    done = run(folder, *arguments.split())
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_tasks_leave_and_come_back_and_the_user_is_told(trained: Path) -> None:
    second = run(trained, "2.json", *SAVED, "--resume", "saved", "--until-step", "3")
    assert json.loads(second.stdout)["first_step"] == 2
    begun, dropped, ended = second.stderr.splitlines()
    assert begun.startswith("note: goes on after step 2 from saved/step-2: 212 parameters (audio ")
    assert dropped.startswith("note: dropped: 73 parameters (depth 73); kept in saved/aside-2-")
    assert ended == "note: saved saved/step-3"
    third = run(trained, "4.json", *SAVED, "--resume", "saved", "--iterations", "1")
    assert third.returncode == 0, third.stderr
    document = json.loads(third.stdout)
    assert (document["first_step"], len(document["losses"])) == (3, 1)
    assert "note: back from saved/aside-2-" in third.stderr
    again = run(trained, "4.json", "--resume", "saved", "--until-step", "4")
    assert again.returncode == 2
    assert "the checkpoint is of step 4 already" in again.stderr
    other = run(trained, "4.json", "--resume", "saved", "--seed", "5")
    assert other.returncode == 2
    assert "give --seed 0" in other.stderr


@pytest.mark.slow
def test_a_checkpoint_with_one_bit_turned_is_refused_in_one_line(trained: Path) -> None:
    file = max((trained / "saved" / "step-2").glob("*.safetensors"), key=lambda p: p.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    done = run(trained, "2.json", "--resume", "saved", "--iterations", "1")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"error: saved/step-2: is corrupt: {file.name} isn't what was written\n"
